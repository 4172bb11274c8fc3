"""Storages of kind `block`: a claimed whole device.

Its content is destroyed, so it must be claimed; see `storages.identity`. One volume at a time is
between the claim's marks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pvebench.drivers.storages.contract import Kind, Node, Storage, StorageContext, part_of
from pvebench.drivers.storages.directory import PathSettings, require_disk
from pvebench.drivers.storages.identity import HEAD_BYTES, ClaimedDisk, identity_of_device
from pvebench.drivers.storages.own_files import drop_page_cache
from pvebench.drivers.storages.server_link import ServerSettings
from pvebench.errors import StorageHangs, VolumeError
from pvebench.model.disk import Disk, Format
from pvebench.model.ports import Journal
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.units import show_bytes
from pvebench.model.volume import Identity, Volume


class DeviceStorage(Storage):
    """Storage of kind `block`: one volume at a time, on a claimed device.

    The device is held exclusively from the first volume until `close`.
    """

    def __init__(self, context: StorageContext[PathSettings], journal: Journal) -> None:
        del journal  # there is nothing to undo
        self._name = context.name
        self._device = context.settings.path
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
        return Volume.of(scenario, str(disk.path), offset_bytes=HEAD_BYTES)

    def _checked(self) -> ClaimedDisk:
        """Verify and return the disk. Raises VolumeError, after releasing the disk."""
        if self._disk is None:
            self._disk = ClaimedDisk(self._device)
        try:
            self._disk.check()
        except StorageHangs:
            raise  # the kernel would wait for its I/O in the close; the next run checks it again
        except VolumeError:
            self.close()
            raise
        return self._disk

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

    def close(self) -> None:
        """Release the device."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None


def identify_device(context: StorageContext[PathSettings]) -> Identity:
    """Return the identity of the disk. Raises VolumeError: it is missing, or in memory."""
    require_disk(context)
    return identity_of_device(context.settings.path)


class BlockSettings(PathSettings, ServerSettings):
    """Keys of kind `block`: a whole device, whose content is destroyed."""


BLOCK: Final = Kind(
    holds=StorageKind(
        name="block",
        formats=frozenset({Format.RAW}),
        own_device=True,
        no_container="containers on claimed block devices are not supported",
    ),
    settings=BlockSettings,
    make=DeviceStorage,
    identify=identify_device,
)
