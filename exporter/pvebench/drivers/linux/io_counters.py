"""Kernel counters of block devices, and of mounted NFS and CIFS shares.

A share is on no block device; its counters are those of the traffic to and from the server. Those
of a process (`/proc/PID/io`) are not sufficient: uncached reads of a CIFS share are missing there,
or counted for a kernel thread.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from importlib.resources.abc import Traversable
from typing import Final

from pvebench.drivers.linux.block_devices import show_devices
from pvebench.files import Mount, mounts, unescaped
from pvebench.model.units import SECTOR, kernel_number
from pvebench.model.volume import BlockCounters, sum_of

SHARE_FILES: Final = ("/proc/self/mountinfo", "/proc/self/mountstats", "/proc/fs/cifs/Stats")
"""Files with the counters, readable for every user. See proc_pid_mountinfo(5), and in Linux
include/linux/nfs_iostat.h and fs/smb/client/cifs_debug.c."""
_SERVER_READ: Final = 4
_SERVER_WRITTEN: Final = 5
"""Indexes in mountstats' line `bytes`, after four numbers about the requests of programs."""
_NFS_OPERATION: Final = re.compile(r"^\s+([A-Z_]+): ([0-9]{1,18}) ", re.MULTILINE)
_NFS_BYTES: Final = re.compile(r"^\s+bytes:\s+((?:[0-9]{1,18} ?){8})", re.MULTILINE)
_CIFS_COUNTS: Final = {"Bytes read", "Bytes written", "Reads", "Writes", "Flushes"}
_CIFS_COUNT: Final = re.compile(rf"\b({'|'.join(sorted(_CIFS_COUNTS))}): +([0-9]{{1,18}})\b")


def counters_of(root: Traversable, devices: tuple[int, ...]) -> BlockCounters | None:
    """Return the sum of block devices' counters, or those of a file system on a server.

    Those of all devices of one btrfs are added: data that it stores twice (RAID1, or its metadata
    on a single device) was written twice, and counts twice.

    Args:
        devices: as returned by `block_devices.devices_below`.

    Returns:
        None: no counters, as for an overlay or a ZFS dataset, or a device was removed.
    """
    try:
        return sum_of(device_counters(root, device) for device in devices)
    except FileNotFoundError:
        return share_counters(root, devices[0])


def files_of(devices: tuple[int, ...]) -> tuple[str, ...]:
    """Return the files that `counters_of` reads."""
    # A file system without a block device has a major number of 0.
    if not all(map(os.major, devices)):
        return SHARE_FILES
    return tuple(f"/sys/dev/block/{show_devices((device,))}/stat" for device in devices)


def device_counters(root: Traversable, device: int) -> BlockCounters:
    """Return the counters of a block device since the machine's boot.

    Raises OSError: the device does not exist.
    """
    text = (root / "sys/dev/block" / show_devices((device,)) / "stat").read_text("ascii")
    fields = [*map(kernel_number, text.split()), *[0] * 6]  # discards since 4.18, flushes since 5.5
    return BlockCounters(
        read_operations=fields[0],
        write_operations=fields[4],
        flush_operations=fields[15],
        read_bytes=fields[2] * SECTOR,
        write_bytes=fields[6] * SECTOR,
        unmap_operations=fields[11],
        unmap_bytes=fields[13] * SECTOR,
        latency_seconds=(fields[3] + fields[7]) / 1000,
    )


# --- shares


def share_counters(root: Traversable, device: int) -> BlockCounters | None:
    """Return the counters of a file system on a server since the mount, for all users.

    Args:
        root: parent of /proc. device: number of the file system, from stat(2).

    Returns:
        None: it is neither NFS nor CIFS, or the kernel does not report them.
    """
    try:
        number = show_devices((device,))
        found = mounts(_text(root / "proc/self/mountinfo"))
        mount = [mount for mount in found if mount.device == number][-1]
        if mount.type in ("nfs", "nfs4"):
            return _of_nfs(_text(root / "proc/self/mountstats"), mount)
        if mount.type in ("cifs", "smb3"):
            return _of_cifs(_text(root / "proc/fs/cifs/Stats"), mount)
    except (OSError, LookupError):
        pass
    return None


def _text(path: Traversable) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _of_nfs(mountstats: str, mount: Mount) -> BlockCounters | None:
    start = f" mounted on {mount.point} with fstype {mount.type} "
    # The last mount of a mount point is the visible one.
    for part in reversed(re.split(r"^device ", mountstats, flags=re.MULTILINE)):
        moved = _NFS_BYTES.search(part)
        if start in unescaped(part.partition("\n")[0]) and moved:
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


def _of_cifs(stats: str, mount: Mount) -> BlockCounters | None:
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
    return "\\".join(source.replace("\\", "/").split("/")[:4]).casefold()
