"""What the kernel counts of a mounted NFS or CIFS: what went to the server and came from it.

Such a file system lies on no block device. A process' own counters (`/proc/PID/io`) are no help:
what a program reads past the page cache of a CIFS is counted there for nobody, or for a thread of
the kernel's.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from pvebench.model.volume import BlockCounters

FILES: Final = ("/proc/self/mountinfo", "/proc/self/mountstats", "/proc/fs/cifs/Stats")
"""What is read here; every user may. See proc_pid_mountinfo(5), and of Linux
include/linux/nfs_iostat.h and fs/smb/client/cifs_debug.c."""
_SERVER_READ: Final = 4
_SERVER_WRITTEN: Final = 5
"""Places in mountstats' line `bytes`; what programs asked for comes before, in four numbers."""
_NFS_OPERATION: Final = re.compile(r"^\s+([A-Z_]+): ([0-9]{1,18}) ", re.MULTILINE)
_NFS_BYTES: Final = re.compile(r"^\s+bytes:\s+((?:[0-9]{1,18} ?){8})", re.MULTILINE)
_CIFS_COUNTS: Final = {"Bytes read", "Bytes written", "Reads", "Writes", "Flushes"}
_CIFS_COUNT: Final = re.compile(rf"\b({'|'.join(sorted(_CIFS_COUNTS))}): +([0-9]{{1,18}})\b")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class _Mount(NamedTuple):
    place: str
    """As both files write it, with what would break a line escaped."""
    kind: str
    source: str


def share_counters(root: Traversable, device: int) -> BlockCounters | None:
    """Return the counters of a file system on a server since it was mounted, whoever uses it.

    Args:
        root: where /proc is. device: number of the file system, as stat(2) tells it.

    Returns:
        None: it is neither NFS nor CIFS, or the kernel does not tell.
    """
    try:
        mount = _mount_of(_text(root / "proc/self/mountinfo"), device)
        if mount is None:
            return None
        if mount.kind in ("nfs", "nfs4"):
            return _of_nfs(_text(root / "proc/self/mountstats"), mount)
        if mount.kind in ("cifs", "smb3"):
            return _of_cifs(_text(root / "proc/fs/cifs/Stats"), mount)
    except (OSError, LookupError):
        pass
    return None


def _text(path: Traversable) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _mount_of(mountinfo: str, device: int) -> _Mount | None:
    """Return the last mount of a device: one before it may lie below another's by now."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(mountinfo.splitlines()):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if fields[2] == number:
            return _Mount(fields[4], kind[0], kind[1])
    return None


def _of_nfs(mountstats: str, mount: _Mount) -> BlockCounters | None:
    start = f" mounted on {mount.place} with fstype {mount.kind} "
    # The last at a place is the one on top.
    for part in reversed(re.split(r"^device ", mountstats, flags=re.MULTILINE)):
        moved = _NFS_BYTES.search(part)
        if start in part.partition("\n")[0] and moved:
            counts = {name: int(count) for name, count in _NFS_OPERATION.findall(part)}
            sizes = [int(size) for size in moved[1].split()]
            return BlockCounters(
                read_operations=counts["READ"] + counts.get("READ_PLUS", 0),
                write_operations=counts["WRITE"],
                flush_operations=counts["COMMIT"],
                read_bytes=sizes[_SERVER_READ],
                write_bytes=sizes[_SERVER_WRITTEN],
            )
    return None


def _of_cifs(stats: str, mount: _Mount) -> BlockCounters | None:
    """Add up all connections to the share: which of them a mount uses is not told."""
    counts: Counter[str] = Counter()
    for part in re.split(r"^[0-9]+\) ", stats, flags=re.MULTILINE)[1:]:
        # After a tab stands what is wrong with it now.
        if part.partition("\n")[0].partition("\t")[0].casefold() == _share(mount.source):
            counts.update({name: int(count) for name, count in _CIFS_COUNT.findall(part)})
    if not counts.keys() >= _CIFS_COUNTS:
        return None
    return BlockCounters(
        read_operations=counts["Reads"],
        write_operations=counts["Writes"],
        flush_operations=counts["Flushes"],
        read_bytes=counts["Bytes read"],
        write_bytes=counts["Bytes written"],
    )


def _share(source: str) -> str:
    """Return the server's share of a source, which may name a directory of it, as Stats does."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), source)
    return "\\".join(plain.replace("\\", "/").split("/")[:4]).casefold()
