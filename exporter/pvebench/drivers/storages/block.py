"""A whole block device as storage: its content is destroyed, so it must be claimed for that.

See `storages.claim`. One volume at a time lies between the claim's marks.
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
    """A storage of kind `block`: one volume at a time, on a claimed device.

    The device is held from the first volume until `close`, so that nobody else takes it.
    """

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        del journal  # nothing is made that would have to be undone
        self._name = options.name
        self._device = Path(options.path)
        self._disk: ClaimedDisk | None = None

    def create(self, scenario: Scenario) -> Volume:
        """Return the device's room as a volume. Raises VolumeError if it is not ours to use."""
        disk = self._checked()
        if disk.room_bytes < scenario.volume_bytes:
            raise VolumeError(
                f"storage {self._name}: {disk.path} has room for {show_bytes(disk.room_bytes)}, "
                f"not for {show_bytes(scenario.volume_bytes)}",
                next_step="make volume.size or the scale of the pack smaller",
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
        """Return the disk, looked at just now. Raises VolumeError; it is let go then."""
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
                f"storage {self._name}: {self._device} is {disk.path} now, and was {volume.volid}",
                cause="the disk was taken out and put in again",
                next_step="start pvebench anew",
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
        """Let the device go."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None


def identify_device(options: StorageOptions) -> Identity:
    """Return which disk it is. Raises VolumeError: it is missing."""
    return identity_of_device(Path(options.path))


def part_of(node: Node, offset: int, size: int) -> Node:
    """Return a node that shows `size` bytes from `offset` of another."""
    return {"driver": "raw", "offset": offset, "size": size, "file": node}
