"""Which file system or device a storage of this machine is. Nothing is changed by looking.

Device numbers and names like /dev/sdb change from boot to boot. Only identifiers that are stored in
the file system and in the disks below it count.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pvebench.drivers.storages.below import devices_below, mount_of
from pvebench.drivers.storages.claim import Record
from pvebench.drivers.storages.disk_facts import facts_of, parts_of, sysfs
from pvebench.errors import VolumeError
from pvebench.model.storage_identity import Identity, is_certain

_LASTING_FSID: Final = frozenset({"ext2", "ext3", "ext4", "btrfs", "zfs"})
"""Types whose number in statvfs(3) is made of a UUID. Others make it of the device's number."""
_OF_SERVER: Final = {"nfs": "nfs", "nfs4": "nfs", "cifs": "cifs", "smb3": "cifs"}
_ASKED: Final = (
    ("lsblk", "--nodeps", "--noheadings", "--output", "UUID"),
    ("blkid", "-p", "-s", "UUID", "-o", "value"),
)
"""The first asks udev, as any user; the second, without udev, reads the device, as root."""
_SECONDS: Final = 60.0


def identity_of_path(path: Path) -> Identity:
    """Return the file system that a path is on. Raises VolumeError: it cannot be looked at."""
    try:
        mount, number = mount_of(path), os.statvfs(path).f_fsid
        below = [one for one in devices_below(path) if os.major(one)]
    except OSError as error:
        raise VolumeError(f"{path} cannot be looked at: {error.strerror}") from error
    if mount is None:
        return {}
    if mount.type in _OF_SERVER:
        return {"type": _OF_SERVER[mount.type], "share": mount.source}
    found = {"type": mount.type}
    if mount.type in _LASTING_FSID and number:
        found["fsid"] = f"{number:x}"
    found |= {"uuid": uuid} if (uuid := _uuid(below)) else {}
    found |= _disks(below)
    if is_certain(found):
        found.pop("file", None)  # a loop device's, whose path depends on who looks
    return found if below else {**found, "source": mount.source}


def identity_of_device(path: Path) -> Identity:
    """Return the disk that a path leads to. Raises VolumeError: there is none."""
    if not path.is_block_device():
        raise VolumeError(
            f"{path} is no block device",
            cause="the disk was taken out, or the path is misspelled",
            next_step="put it back, or correct `path` in the settings",
        )
    found = {"type": "block", **_disks([path.stat().st_rdev])}
    if not is_certain(found):
        with contextlib.suppress(OSError, VolumeError), path.open("rb", buffering=0) as opened:
            found["claim"] = Record.read(opened.fileno(), path, []).claim
    return found


def _disks(devices: Iterable[int]) -> dict[str, str]:
    """Return the facts of devices and of the disks that they are made of."""
    every: dict[str, set[str]] = {}
    for device in devices:
        for one in dict.fromkeys([device, *parts_of(device)]):
            for name, text in facts_of(one).items():
                # That of a logical volume is no file system's.
                every.setdefault("device" if name == "uuid" else name, set()).add(text)
    return {name: " ".join(sorted(texts)) for name, texts in every.items()}


def _uuid(devices: list[int]) -> str:
    """Return the UUID of the file system on devices; empty: not known."""
    for device in devices[:1]:
        name = f"/dev/{sysfs(device).resolve().name.replace('!', '/')}"
        for command in _ASKED:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    [*command, name], capture_output=True, text=True, check=True, timeout=_SECONDS
                )
                if done.stdout.strip():
                    return done.stdout.strip()
    return ""
