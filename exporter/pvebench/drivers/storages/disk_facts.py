"""What the kernel and util-linux say of a block device: which it is, who uses it, what is on it.

What a partition table, file system, LVM, RAID or LUKS looks like is libblkid's knowledge, which
wipefs prints (all that it finds, where blkid would print one); partitions, holders, mounts and swap
are lsblk's. A device of which they cannot tell is not used.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pvebench.errors import VolumeError

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
