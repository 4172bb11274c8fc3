"""A whole block device as storage: its content is destroyed, so it must carry our mark.

The mark is in the first sector; volumes begin 1 MiB behind it, so that measuring never
touches it. `pvebench storage claim` writes it.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path
from typing import Final

from pvebench.drivers.storages.contract import Node, StorageOptions
from pvebench.drivers.storages.directory import drop_page_cache
from pvebench.errors import VolumeError
from pvebench.model.disk import Disk
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB, show_bytes
from pvebench.model.volume import Volume

DEVICE_MARK: Final = b"pvebench test device: content may be destroyed at any time\n"
OFFSET_BYTES: Final = MIB
"""Where volumes begin."""
_SECTOR_BYTES: Final = 512


class DeviceStorage:
    """A storage of kind `block`: one volume at a time, on a marked device."""

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        del journal  # nothing is made that would have to be undone
        self._name = options.name
        self._device = Path(options.path)

    def create(self, scenario: Scenario) -> Volume:
        """Return the device's room as a volume. Raises VolumeError if it is not ours to use."""
        check_claimed(self._device)
        room = device_bytes(self._device) - OFFSET_BYTES
        if room < scenario.volume_bytes:
            raise VolumeError(
                f"storage {self._name}: {self._device} has room for {show_bytes(room)}, "
                f"not for {show_bytes(scenario.volume_bytes)}",
                next_step="make volume.size or the scale of the pack smaller",
            )
        return Volume(
            storage=self._name,
            volid=str(self._device),
            format=str(scenario.disk.format),
            size_bytes=scenario.volume_bytes,
            offset_bytes=OFFSET_BYTES,
        )

    def remove(self, volume: Volume) -> None:
        """Leave the device as it is: marked, and full of random data."""

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return QEMU's node of the part behind the mark."""
        device = {"driver": "host_device", "filename": volume.volid, "aio": str(disk.aio)}
        return part_of(device, OFFSET_BYTES, volume.size_bytes)

    def drop_caches(self, volume: Volume) -> int | None:
        return drop_page_cache(self._device)

    def opened(self, volume: Volume) -> str:
        return volume.volid

    def close(self) -> None:
        """Nothing is kept."""


def part_of(node: Node, offset: int, size: int) -> Node:
    """Return a node that shows `size` bytes from `offset` of another."""
    return {"driver": "raw", "offset": offset, "size": size, "file": node}


def claim(device: Path, *, destroy: bool) -> None:
    """Write the mark on a device that nobody uses.

    Args:
        destroy: do so even if there is something on it.

    Raises:
        VolumeError: it is no block device, is in use, or holds data that must not be destroyed.
    """
    fd = _open_unused(device, os.O_RDWR)
    try:
        found = signatures(device)
        if os.pread(fd, len(DEVICE_MARK), 0) == DEVICE_MARK:
            return
        if found and not destroy:
            raise VolumeError(
                f"{device} is not empty: {found}",
                next_step="choose another device, or add --destroy-data if you are sure",
            )
        os.pwrite(fd, DEVICE_MARK.ljust(_SECTOR_BYTES, b"\0"), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def check_claimed(device: Path) -> None:
    """Raise VolumeError unless the device carries our mark and nobody else uses it."""
    os.close(_open_unused(device, os.O_RDONLY))
    if not carries_mark(device):
        raise VolumeError(
            f"{device} does not carry pvebench's mark; it is left alone",
            next_step=f"if its content may be destroyed: pvebench storage claim {device}",
        )


def carries_mark(device: Path) -> bool:
    """Return whether the device begins with our mark, whoever uses it."""
    with device.open("rb") as opened:
        return opened.read(len(DEVICE_MARK)) == DEVICE_MARK


def device_bytes(device: Path) -> int:
    """Return the size of a block device."""
    with device.open("rb") as opened:
        return opened.seek(0, os.SEEK_END)


def signatures(device: Path) -> str:
    """Return what wipefs finds on the device (partition tables, filesystems), or nothing."""
    command = ["wipefs", "--noheadings", "--output", "TYPE", str(device)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VolumeError(f"wipefs cannot look at {device}: {done.stderr.strip()}")
    return ", ".join(done.stdout.split())


def _open_unused(device: Path, flags: int) -> int:
    try:
        if not stat.S_ISBLK(device.stat().st_mode):
            raise VolumeError(f"{device} is not a block device")
        # O_EXCL on a block device: refused while it is mounted or part of something.
        return os.open(device, flags | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        busy = "it is mounted, or part of a RAID, LVM or ZFS" if error.errno == errno.EBUSY else ""
        raise VolumeError(f"{device} cannot be used: {error.strerror}", cause=busy) from error
