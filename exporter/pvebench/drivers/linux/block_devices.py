"""Which block devices a file lies on, by the kernel: its file system's own, and all of a btrfs'.

The number that stat(2) tells of a file is that of the device below its file system, of most. Files
of a btrfs have one that leads nowhere, in each subvolume another (`btrfs_getattr` in Linux'
fs/btrfs/inode.c), as it may lie on several devices. Of which mount a file is stands in
/proc/PID/fdinfo (`mnt_id`, proc_pid_fdinfo(5)) while it is open; the mount names one of the
devices, and /sys/fs/btrfs has them all (`btrfs_sysfs_add_device` in fs/btrfs/sysfs.c).

Here of this machine; `below.sh` says the same of another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from pvebench.errors import VolumeError

# --- What the kernel and util-linux say of a block device: which it is, who uses it, what is on it.
#
# What a partition table, file system, LVM, RAID or LUKS looks like is libblkid's knowledge, which
# wipefs prints (all that it finds, where blkid would print one); partitions, holders, mounts and
# swap
# are lsblk's. A device of which they cannot tell is not used.

_IDENTITY: Final = {
    "wwn": ("wwid", "device/wwid"),
    "serial": ("serial", "device/serial", "device/vpd_pg80"),
    "uuid": ("dm/uuid", "md/uuid"),
    "file": ("loop/backing_file",),
}
"""What tells a disk from another: its name -> files of its sysfs directory, the first counts."""
_OF_PARTITIONS: Final = ("partition", "start")
_TEXT_BYTES: Final = 512
_SECONDS: Final = 60.0


def identity(number: int, *, root: Path = Path("/")) -> str:
    """Return what tells a block device from another that later has its name.

    From sysfs, not udev: the answer is the same in a container and while the machine starts.

    Args:
        number: the device's, as `st_rdev` has it.
        root: where `sys` is.
    """
    facts = facts_of(number, root=root)
    facts["sectors"] = _text(sysfs(number, root=root) / "size")
    return ", ".join(f"{name} {text}" for name, text in facts.items() if text)


def facts_of(number: int, *, root: Path = Path("/")) -> dict[str, str]:
    """Return the facts of `identity` that stay when the device grows; those that are known."""
    below = sysfs(number, root=root).resolve()
    facts = {name: _text(below / name) for name in _OF_PARTITIONS}
    whole = below.parent if facts["partition"] else below
    for name, files in _IDENTITY.items():
        facts[name] = next((text for file in files if (text := _text(whole / file))), "")
    return {name: text for name, text in facts.items() if text}


def parts_of(number: int, *, root: Path = Path("/")) -> list[int]:
    """Return the devices that a device-mapper device is made of, down to the last; or itself.

    An array of md is one thing: a member that fails and is replaced makes no other of it.
    """
    below = sysfs(number, root=root).resolve()
    parts = (
        sorted(_text(one) for one in below.glob("slaves/*/dev")) if (below / "dm").is_dir() else []
    )
    numbers = [os.makedev(*map(int, one.split(":"))) for one in parts]
    return [leaf for one in numbers for leaf in parts_of(one, root=root)] or [number]


def sysfs(number: int, *, root: Path = Path("/")) -> Path:
    """Return the directory of a block device below /sys."""
    return root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            found = opened.read(_TEXT_BYTES).decode("ascii", "ignore")
    except OSError:
        return ""
    return " ".join("".join(one for one in found if one.isprintable() or one == "\n").split())


def found_on(device: Path) -> list[str]:
    """Return who uses the device and what is on it, in words; nothing: it is free and empty.

    Raises:
        VolumeError: that cannot be told.
    """
    return [*users(device), *signatures(device)]


def users(device: Path) -> list[str]:
    """Return the mounts, swap, partitions and holders (LVM, RAID, dm-crypt …) of a device."""
    said = _told("lsblk", "--json", "--output", "NAME,TYPE,MOUNTPOINTS", str(device))
    found: list[str] = []
    for entry in said["blockdevices"]:
        found += _mounts(entry)
        for child in entry.get("children", ()):
            found += _below(child)
    return found


def _below(entry: Mapping[str, Any]) -> Iterator[str]:
    kind = "partition" if entry["type"] == "part" else f"holder of type {entry['type']}"
    yield f"{kind} {entry['name']}"
    yield from _mounts(entry)
    for child in entry.get("children", ()):
        yield from _below(child)


def _mounts(entry: Mapping[str, Any]) -> Iterator[str]:
    for where in filter(None, entry["mountpoints"]):
        yield f"{entry['name']} is {'swap' if where == '[SWAP]' else f'mounted at {where}'}"


def signatures(device: Path) -> list[str]:
    """Return the partition tables, file systems, LVM, RAID, LUKS … that libblkid finds."""
    said = _told("wipefs", "--no-act", "--json", str(device))
    return [f"{one['type']} at byte {int(one['offset'], 16)}" for one in said["signatures"]]


def _told(*command: str) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
        said: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        why = str(getattr(error, "stderr", "") or error).strip()
        raise VolumeError(
            f"{command[0]} cannot look at {command[-1]}: {why}",
            cause="util-linux is not installed, or the device does not answer",
            next_step=f"try it by hand: {' '.join(command)}",
        ) from error
    return said


BELOW: Final = resources.files("pvebench.drivers.linux").joinpath("below.sh").read_text("utf-8")
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
