"""Which block devices a file lies on, by the kernel: its file system's own, and all of a btrfs'.

The number that stat(2) tells of a file is that of the device below its file system, of most. Files
of a btrfs have one that leads nowhere, in each subvolume another (`btrfs_getattr` in Linux'
fs/btrfs/inode.c), as it may lie on several devices. Of which mount a file is stands in
/proc/PID/fdinfo (`mnt_id`, proc_pid_fdinfo(5)) while it is open; the mount names one of the
devices, and /sys/fs/btrfs has them all (`btrfs_sysfs_add_device` in fs/btrfs/sysfs.c).

Here of this machine; `below.sh` says the same of another.
"""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

BELOW: Final = files("pvebench.drivers.storages").joinpath("below.sh").read_text("utf-8")
"""Functions for scripts that run on another machine: `tell_path`."""
MOST_DEVICES: Final = 64
"""Of one file system; so many can be asked about at once."""
_MAJORS: Final = 1 << 12
_MINORS: Final = 1 << 20
"""The kernel's own limits (`MINORBITS` in Linux' include/linux/kdev_t.h)."""


def devices_below(path: Path) -> tuple[int, ...]:
    """Return the number of a block device, or those below a file or directory.

    Of a btrfs they are all its devices that are there. Of what lies on none it is the number that
    its file system has instead, with the major number 0. Raises OSError.
    """
    found = path.stat()
    if path.is_block_device():
        return (found.st_rdev,)
    if os.major(found.st_dev):
        return (found.st_dev,)
    return _btrfs_devices(path) or (found.st_dev,)


def parse_devices(text: str) -> tuple[int, ...] | None:
    """Return the numbers in `MAJOR:MINOR,…`, as `tell_path` says them; empty for nothing.

    None: it is not that, no device can have such a number, or one is told twice.
    """
    found = [_number(word) for word in text.split(",")] if text else []
    if 0 in found or len({*found}) != len(found) or len(found) > MOST_DEVICES:
        return None
    return tuple(found)


def show_devices(devices: tuple[int, ...]) -> str:
    """Return what `parse_devices` reads."""
    return ",".join(f"{os.major(one)}:{os.minor(one)}" for one in devices)


def _number(word: str) -> int:
    """Return the number of a device; 0: no device can have it."""
    fields = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,7})", word)
    major, minor = (int(fields[1]), int(fields[2])) if fields else (0, 0)
    return os.makedev(major, minor) if 0 < major < _MAJORS and minor < _MINORS else 0


def _btrfs_devices(path: Path) -> tuple[int, ...]:
    """Return all devices of the btrfs that a path lies on; empty: it is none, or not told."""
    source = _btrfs_source(path)
    try:
        number = show_devices((Path(source).stat().st_rdev,)) if source else ""
        for one in Path("/sys/fs/btrfs").glob("*/devices/*/dev"):
            if one.read_text("ascii").strip() == number:
                beside = sorted(one.parent.parent.glob("*/dev"))
                words = (other.read_text("ascii").strip() for other in beside)
                return parse_devices(",".join(words)) or ()
    except OSError:
        pass  # taken away in between
    return ()


def _btrfs_source(path: Path) -> str:
    """Return the device that the mount of a path names, if a btrfs is mounted there."""
    mount = mount_of(path)
    return mount.source if mount is not None and mount.type == "btrfs" else ""


class Mount(NamedTuple):
    """What is mounted: its type, and what it was mounted from."""

    type: str
    source: str


def mount_of(path: Path) -> Mount | None:
    """Return the mount that a path is on; None: the kernel does not show it. Raises OSError."""
    opened = os.open(path, os.O_PATH)
    try:
        said = Path(f"/proc/self/fdinfo/{opened}").read_text("ascii")
    finally:
        os.close(opened)
    number = re.search(r"^mnt_id:\s*(\d+)$", said, re.MULTILINE)
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        left, _, right = line.partition(" - ")
        if number and left.split(" ")[0] == number[1]:
            return Mount(*right.split(" ")[:2])
    return None
