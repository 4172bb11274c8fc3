"""Block devices below a file, and the identity, users and content of block devices.

For most file systems, stat(2) returns the device below the file system. Files of btrfs, which may
be on several devices, have a number of no device, a different one per subvolume (`btrfs_getattr`
in Linux' fs/btrfs/inode.c). The mount of an open file is in /proc/PID/fdinfo (`mnt_id`,
proc_pid_fdinfo(5)); the mount names one of the devices, and /sys/fs/btrfs has all of them
(`btrfs_sysfs_add_device` in fs/btrfs/sysfs.c).

This module is for this machine; `block_devices.sh` does the same on another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.linux.host_tools import run_program
from pvebench.errors import OutputUnreadable, StorageHangs, VolumeError
from pvebench.files import Mount, mounts, unescaped
from pvebench.model.environment import NO_BARRIER
from pvebench.model.units import whole_number

# --- identity, users and content of a block device, from the kernel and util-linux
#
# libblkid detects partition tables, file systems, LVM, RAID and LUKS; wipefs prints all of them,
# where blkid would print one. lsblk prints partitions, holders, mounts and swap. A device for which
# they fail is not used.

_IDENTITY: Final = {
    "wwn": ("wwid", "device/wwid"),
    "serial": ("serial", "device/serial", "device/vpd_pg80"),
    "uuid": ("dm/uuid", "md/uuid"),
    "file": ("loop/backing_file",),
}
"""Identifying facts of a disk: name -> files of its sysfs directory, of which the first counts."""
_NO_NUMBERS: Final = frozenset(
    {
        *("default", "defaultstring", "invalid", "na", "none", "null", "unknown", "unspecified"),
        *("notavailable", "notpresent", "notspecified", "tobefilledbyoem"),
        *("serial", "serialnumber", "systemserialnumber"),
    }
)
"""Words in place of a number, in lower case and without other characters."""
_ORDERED: Final = "01234567890123456789abcdef"
_MIN_ORDERED: Final = 6
"""Minimum length of digits in order that are a placeholder."""
_TRANSPORTS: Final = {
    "/usb": "usb",
    "/nvme": "nvme",
    "/virtio": "virtio",
    "/ata": "sata",
    "/session": "iscsi",
    "/end_device-": "sas",
    "/mmc": "mmc",
}
"""Part of a disk's path in sysfs -> how it is connected; the first match counts."""
_OF_PARTITIONS: Final = ("partition", "start")
_TEXT_BYTES: Final = 512
_SECONDS: Final = 60.0


def identity(number: int, *, root: Path = Path("/")) -> str:
    """Return a block device's identity, as distinct from a later device of the same name.

    It comes from sysfs, not udev, so it is the same in a container and during the boot.

    Args:
        number: the device's number, as in `st_rdev`.
        root: parent of `sys`.
    """
    facts = facts_of(number, root=root)
    facts["sectors"] = _text(sysfs(number, root=root) / "size")
    return ", ".join(f"{name} {text}" for name, text in facts.items() if text)


def facts_of(number: int, *, root: Path = Path("/")) -> dict[str, str]:
    """Return the known facts of `identity` that stay when the device grows."""
    below = sysfs(number, root=root).resolve()
    facts = {name: _text(below / name) for name in _OF_PARTITIONS}
    whole = below.parent if facts["partition"] else below
    for name, files in _IDENTITY.items():
        texts = (_text(whole / file) for file in files)
        facts[name] = next((text for text in texts if text and not _is_placeholder(text)), "")
    return {name: text for name, text in facts.items() if text}


def _is_placeholder(text: str) -> bool:
    """Return whether any number of devices may report this number or UUID.

    Zeros, one repeated character, digits in order, or a word: Linux prints `(null)` for a serial
    number that a driver lacks. Of a WWN, its type (`naa.`, `eui.`) does not count.
    """
    if text.startswith("/"):
        return False  # the file of a loop device
    number = re.sub(r"[^0-9a-z]", "", re.sub(r"^[a-z0-9]{3,4}\.", "", text.lower()))
    ordered = len(number) >= _MIN_ORDERED and number in _ORDERED
    return ordered or number in _NO_NUMBERS or bool(re.fullmatch(r"0*|(.)\1{3,}", number))


def hardware_of(number: int, *, root: Path = Path("/")) -> dict[str, str]:
    """Return the model and the transport of a disk, as far as the kernel shows them."""
    below = sysfs(number, root=root).resolve()
    model = _text(below / "device/model") or _text(below.parent / "device/model")
    path = f"{below}/"
    transport = next((name for mark, name in _TRANSPORTS.items() if mark in path), "")
    return {name: text for name, text in (("model", model), ("transport", transport)) if text}


def parts_of(number: int, *, root: Path = Path("/")) -> list[int]:
    """Return the lowest devices below a device-mapper device, or itself.

    An md array is not split: it stays the same when a failed member is replaced.
    """
    below = sysfs(number, root=root).resolve()
    parts = _slaves(below) if (below / "dm").is_dir() else []
    return [leaf for part in parts for leaf in parts_of(part, root=root)] or [number]


def _slaves(below: Path) -> list[int]:
    parts = sorted(_text(path) for path in below.glob("slaves/*/dev"))
    return [os.makedev(*map(int, part.split(":"))) for part in parts]


_MEMORY_TYPES: Final = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs"})
_MEMORY_DEVICE: Final = re.compile(r"(?:zram|ram|nullb)\d+|scsi_debug|RAMDISK-MCP")
"""Names of devices, and models of SCSI disks."""
_LOOP_GET_STATUS64: Final = 0x4C05
_LOOP_INFO64_BYTES: Final = 232
"""See Linux' include/uapi/linux/loop.h; the first field is the number of the file system."""


def memory_below(path: Path, *, root: Path = Path("/")) -> str:
    """Return what holds all data of a path in memory, such as `tmpfs` or `zram0`.

    Empty: a disk, a server, or unknown (in another mount namespace). Raises OSError.
    """
    mount = None if path.is_block_device() else mount_of(path)
    if mount is not None and mount.type in _MEMORY_TYPES:
        return mount.type
    if mount is not None and mount.type == "overlay":
        upper = re.search(r"(?:^|,)upperdir=([^,]+)", mount.options)
        name = unescaped(upper[1]) if upper else ""
        with contextlib.suppress(OSError):  # another user's
            return _memory_of_name(re.sub(r"\\(.)", r"\1", name), root)  # overlay's own escapes
        return ""
    return _memory_of(devices_below(path), root)


def _memory_of(devices: Iterable[int], root: Path) -> str:
    found = [_memory_of_device(sysfs(number, root=root).resolve(), root) for number in devices]
    return " ".join(dict.fromkeys(found)) if all(found) else ""


def _memory_of_device(below: Path, root: Path) -> str:
    for place in (below, below.parent):  # the second one of a partition
        for name in (place.name, _text(place / "device/model")):
            if _MEMORY_DEVICE.fullmatch(name):
                return name
        with contextlib.suppress(OSError):
            return _memory_of_name(_backing_file(place), root) or _memory_of_loop(place.name)
    return _memory_of(_slaves(below) or _slaves(below.parent), root)


def _backing_file(loop: Path) -> str:
    return os.fsdecode((loop / "loop/backing_file").read_bytes()).rstrip("\n")


def _memory_of_loop(name: str) -> str:
    """Return the type of a deleted or hidden file's memory. Raises OSError: no right to open."""
    with Path("/dev", name).open("rb") as device:
        status = fcntl.ioctl(device, _LOOP_GET_STATUS64, bytes(_LOOP_INFO64_BYTES))
    number = show_devices((int.from_bytes(status[:8], sys.byteorder),))
    found = (mount.type for mount in mounts() if mount.device == number)
    return next((kind for kind in found if kind in _MEMORY_TYPES), "")


_ZFS_SECONDS: Final = 10.0


def flushes_ignored(path: Path, *, root: Path = Path("/")) -> str:
    """Return what visibly ignores the flushes of a path; empty: nothing, or it is unknown."""
    with contextlib.suppress(OSError):
        mount = None if path.is_block_device() else mount_of(path)
        if mount is not None and (option := NO_BARRIER.search(mount.options)):
            return f"mount option {option[1]} of {mount.point}"
        if mount is not None and mount.type == "zfs":
            return f"sync=disabled of {mount.source}" * _is_unsynced(mount.source)
        return _ignored_by(devices_below(path), root)
    return ""


def _is_unsynced(dataset: str) -> bool:
    command = ["zfs", "get", "-H", "-o", "value", "sync", dataset]
    with contextlib.suppress(OSError, VolumeError, subprocess.TimeoutExpired):
        return run_program(command, seconds=_ZFS_SECONDS).stdout.strip() == "disabled"
    return False


def _ignored_by(devices: Iterable[int], root: Path) -> str:
    places = [sysfs(number, root=root).resolve() for number in devices]
    return next(filter(None, (_ignored_by_device(place, root) for place in places)), "")


def _ignored_by_device(below: Path, root: Path) -> str:
    for place in (below, below.parent):  # the second one of a partition
        words = _text(root / f"proc/{_text(place / 'pid') or '-'}/cmdline")
        if re.search("cache=?unsafe", words):
            return f"the NBD server of {place.name} with cache=unsafe"
        with contextlib.suppress(OSError):
            return flushes_ignored(Path(_backing_file(place)), root=root)
    return _ignored_by(_slaves(below) or _slaves(below.parent), root)


def _memory_of_name(name: str, root: Path) -> str:
    path = Path(name)
    return memory_below(path, root=root) if path.is_absolute() and path.exists() else ""


def sysfs(number: int, *, root: Path = Path("/")) -> Path:
    """Return the directory of a block device below /sys."""
    return root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(_TEXT_BYTES).decode("ascii", "ignore")
    except OSError:
        return ""
    return " ".join("".join(c for c in content if c.isprintable() or c == "\n").split())


def users(device: Path) -> list[str]:
    """Return the mounts, swap, partitions and holders (LVM, RAID, dm-crypt …) of a device.

    Raises VolumeError: they are unknown. StorageHangs: it does not respond.
    """
    output = _output("lsblk", "--json", "--output", "NAME,TYPE,MOUNTPOINTS", str(device))
    uses: list[str] = []
    for entry in output["blockdevices"]:
        uses += _mounts(entry)
        for child in entry.get("children", ()):
            uses += _below(child)
    return uses


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
    """Return what libblkid finds, such as partition tables and LUKS. Raises as `users`."""
    output = _output("wipefs", "--no-act", "--json", str(device))
    return [f"{entry['type']} at byte {int(entry['offset'], 16)}" for entry in output["signatures"]]


def _output(*command: str) -> dict[str, Any]:
    try:
        done = run_program(command, seconds=_SECONDS)
        done.check_returncode()
        output: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise StorageHangs(
            f"{command[0]} did not end within {_SECONDS:.0f} s for {command[-1]}"
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        why = str(getattr(error, "stderr", "") or error).strip()
        raise VolumeError(
            f"{command[0]} failed for {command[-1]}: {why}",
            cause="util-linux is not installed, or the device does not respond",
            next_step=f"run `{' '.join(command)}`",
        ) from error
    return output


DEVICE_FUNCTIONS: Final = (
    resources.files("pvebench.drivers.linux").joinpath("block_devices.sh").read_text("utf-8")
)
"""Functions for scripts that run on another machine: `describe_path`."""
MAX_DEVICES: Final = 64
"""Maximum devices of one file system, and of one query."""
_MAJORS: Final = 1 << 12
_MINORS: Final = 1 << 20
"""The kernel's limits (`MINORBITS` in Linux' include/linux/kdev_t.h)."""


def devices_below(path: Path) -> tuple[int, ...]:
    """Return the number of a block device, or those below a file or directory.

    For btrfs they are all of its present devices. Without a device it is the number of the file
    system, whose major number is 0. Raises OSError.
    """
    status = path.stat()
    if path.is_block_device():
        return (status.st_rdev,)
    if os.major(status.st_dev):
        return (status.st_dev,)
    return _btrfs_devices(path) or (status.st_dev,)


def parse_devices(text: str) -> tuple[int, ...] | None:
    """Parse `MAJOR:MINOR,…`, the output of `describe_path`; an empty text has none.

    None: another format, an impossible number, or a duplicate.
    """
    devices = [_number(word) for word in text.split(",")] if text else []
    if 0 in devices or len({*devices}) != len(devices) or len(devices) > MAX_DEVICES:
        return None
    return tuple(devices)


def show_devices(devices: tuple[int, ...]) -> str:
    """Return device numbers in the format of `parse_devices`."""
    return ",".join(f"{os.major(device)}:{os.minor(device)}" for device in devices)


def _number(word: str) -> int:
    """Return the number of a device; 0: impossible."""
    fields = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,7})", word)
    major, minor = (int(fields[1]), int(fields[2])) if fields else (0, 0)
    return os.makedev(major, minor) if 0 < major < _MAJORS and minor < _MINORS else 0


def _btrfs_devices(path: Path) -> tuple[int, ...]:
    """Return all devices of a path's btrfs; empty: another file system, or unknown."""
    mount = mount_of(path)
    if mount is None or mount.type != "btrfs":
        return ()
    try:
        number = show_devices((Path(mount.source).stat().st_rdev,))
        for member in Path("/sys/fs/btrfs").glob("*/devices/*/dev"):
            if member.read_text("ascii").strip() == number:
                members = sorted(member.parent.parent.glob("*/dev"))
                words = (path.read_text("ascii").strip() for path in members)
                return parse_devices(",".join(words)) or ()
    except OSError:
        pass  # unmounted in between
    return ()


def mount_of(path: Path) -> Mount | None:
    """Return the mount of a path; None: the kernel does not show it. Raises OSError."""
    opened = os.open(path, os.O_PATH)
    try:
        info = Path(f"/proc/self/fdinfo/{opened}").read_text("ascii")
    finally:
        os.close(opened)
    number = re.search(r"^mnt_id:\s*(\d+)$", info, re.MULTILINE)
    return next((mount for mount in mounts() if number and mount.number == number[1]), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFile:
    """File or device at a volume's path."""

    size_bytes: int
    is_device: bool


def whole(output: bytes, what: str) -> int:
    """Return the number in a machine's output. Raises OutputUnreadable; `what` describes it."""
    text = output.strip()
    if (number := whole_number(text)) is None:
        raise OutputUnreadable(
            f"{text[:60]!r} is not a number: {what}",
            cause="the shell there prints text of its own, or a program is unsupported",
            next_step="run `ssh … true` as that user: it must print nothing",
        )
    return number


def parse_device(output: bytes, path: str) -> tuple[VolumeFile, tuple[int, ...]]:
    """Return the file at a path, and the numbers of the devices that it is or is on.

    Args:
        output: of `describe_path` in `block_devices.sh`.

    Raises OutputUnreadable: unexpected output.
    """
    text = output.decode("utf-8", "replace").strip()
    fields = _DEVICE.fullmatch(text)
    of_btrfs = parse_devices(fields["members"] or "") if fields else None
    if fields is None or of_btrfs is None:
        raise OutputUnreadable(
            f"unexpected description of {path}: {text[:99]!r}",
            cause="the shell there prints text of its own",
        )
    is_device = fields["what"] == "block special file"
    own = os.makedev(int(fields["major"], 16), int(fields["minor"], 16))
    file = VolumeFile(size_bytes=int(fields["size"]), is_device=is_device)
    return file, (own,) if is_device else of_btrfs or (int(fields["below"]),)


_DEVICE: Final = re.compile(
    r"(?P<what>[a-z ]+)\|(?P<major>[0-9a-f]{1,3})\|(?P<minor>[0-9a-f]{1,5})"
    r"\|(?P<below>[0-9]{1,18})\|(?P<size>[0-9]{1,18})(\|(?P<members>[0-9:,]{0,999}))?"
)
