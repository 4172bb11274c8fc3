"""Storage on a whole block device, which must be claimed because its content is destroyed.

See `storages.identity`. One volume at a time is between the claim's marks.
"""

from __future__ import annotations

from pathlib import Path

from pvebench.drivers.storages.contract import Node, StorageOptions
from pvebench.drivers.storages.directory import drop_page_cache
from pvebench.drivers.storages.identity import HEAD_BYTES, ClaimedDisk, identity_of_device
from pvebench.errors import VolumeError
from pvebench.model.disk import Disk
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.units import show_bytes
from pvebench.model.volume import Identity, Volume


class DeviceStorage:
    """Storage of kind `block`: one volume at a time, on a claimed device.

    The device is held exclusively from the first volume until `close`.
    """

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        del journal  # there is nothing to undo
        self._name = options.name
        self._device = Path(options.path)
        self._disk: ClaimedDisk | None = None

    def create(self, scenario: Scenario) -> Volume:
        """Return a part of the device as a volume. Raises VolumeError: not claimed, too small."""
        disk = self._checked()
        if disk.capacity_bytes < scenario.volume_bytes:
            raise VolumeError(
                f"storage {self._name}: {show_bytes(scenario.volume_bytes)} needed, "
                f"{show_bytes(disk.capacity_bytes)} usable on {disk.path}",
                next_step="reduce volume.size or the scale of the pack",
            )
        disk.cover(HEAD_BYTES + scenario.volume_bytes)
        return Volume(
            storage=self._name,
            volid=str(disk.path),
            format=str(scenario.disk.format),
            size_bytes=scenario.volume_bytes,
            offset_bytes=HEAD_BYTES,
        )

    def _checked(self) -> ClaimedDisk:
        """Verify and return the disk. Raises VolumeError, after releasing the disk."""
        if self._disk is None:
            self._disk = ClaimedDisk(self._device)
            return self._disk
        try:
            self._disk.check()
        except VolumeError:
            self.close()
            raise
        return self._disk

    def remove(self, volume: Volume) -> None:
        """Leave the device as it is: claimed, and full of random data."""

    def check(self, volume: Volume) -> None:
        disk = self._checked()
        if str(disk.path) != volume.volid:
            raise VolumeError(
                f"storage {self._name}: {self._device} is now {disk.path}, was {volume.volid}",
                cause="the disk was removed and inserted again",
                next_step="restart pvebench",
            )

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Return QEMU's node of the part behind the claim's record."""
        device = {"driver": "host_device", "filename": volume.volid, "aio": str(disk.aio)}
        return part_of(device, HEAD_BYTES, volume.size_bytes)

    def drop_caches(self, volume: Volume) -> int | None:
        return drop_page_cache(Path(volume.volid))

    def opened(self, volume: Volume) -> str:
        return volume.volid

    def close(self) -> None:
        """Release the device."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None


def identify_device(options: StorageOptions) -> Identity:
    """Return the identity of the disk. Raises VolumeError: it is missing."""
    return identity_of_device(Path(options.path))


def part_of(node: Node, offset: int, size: int) -> Node:
    """Return a node with `size` bytes from `offset` of another node."""
    return {"driver": "raw", "offset": offset, "size": size, "file": node}
