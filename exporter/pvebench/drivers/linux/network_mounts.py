"""Kernel counters of a mounted NFS or CIFS share: the traffic to and from the server.

Such a file system is on no block device. The counters of a process (`/proc/PID/io`) are not
sufficient: uncached reads of a CIFS share are missing there, or counted for a kernel thread.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from pvebench.model.volume import BlockCounters

FILES: Final = ("/proc/self/mountinfo", "/proc/self/mountstats", "/proc/fs/cifs/Stats")
"""Files with the counters, readable for every user. See proc_pid_mountinfo(5), and in Linux
include/linux/nfs_iostat.h and fs/smb/client/cifs_debug.c."""
_SERVER_READ: Final = 4
_SERVER_WRITTEN: Final = 5
"""Indexes in mountstats' line `bytes`, after four numbers about the requests of programs."""
_NFS_OPERATION: Final = re.compile(r"^\s+([A-Z_]+): ([0-9]{1,18}) ", re.MULTILINE)
_NFS_BYTES: Final = re.compile(r"^\s+bytes:\s+((?:[0-9]{1,18} ?){8})", re.MULTILINE)
_CIFS_COUNTS: Final = {"Bytes read", "Bytes written", "Reads", "Writes", "Flushes"}
_CIFS_COUNT: Final = re.compile(rf"\b({'|'.join(sorted(_CIFS_COUNTS))}): +([0-9]{{1,18}})\b")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class _Mount(NamedTuple):
    place: str
    """Mount point as in both files, with escaped white space."""
    kind: str
    source: str


def share_counters(root: Traversable, device: int) -> BlockCounters | None:
    """Return the counters of a file system on a server since the mount, for all users.

    Args:
        root: parent of /proc. device: number of the file system, from stat(2).

    Returns:
        None: it is neither NFS nor CIFS, or the kernel does not report them.
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
    """Return the last mount of a device: another mount may cover an earlier one."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(mountinfo.splitlines()):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if fields[2] == number:
            return _Mount(fields[4], kind[0], kind[1])
    return None


def _of_nfs(mountstats: str, mount: _Mount) -> BlockCounters | None:
    start = f" mounted on {mount.place} with fstype {mount.kind} "
    # The last mount of a mount point is the visible one.
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
    """Add all connections to the share: the kernel does not report which one a mount uses."""
    counts: Counter[str] = Counter()
    for part in re.split(r"^[0-9]+\) ", stats, flags=re.MULTILINE)[1:]:
        # The text after a tab is the state of the connection.
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
    """Return the share of a mount source, which may include a directory, as Stats names it."""
    plain = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), source)
    return "\\".join(plain.replace("\\", "/").split("/")[:4]).casefold()
