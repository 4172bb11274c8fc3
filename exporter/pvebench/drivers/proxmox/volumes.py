"""Test volumes of one benchmark VM: made through the storage, freed through the VM.

A storage frees a volume only for its administrators; a VM frees its own. So a volume goes back
by way of `unusedN`, and whatever is left goes with the VM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.drive import test_slots, unused_volumes
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.storages import (
    MARK,
    STORAGE_TYPES,
    ClusterStorage,
    volume_name,
)
from pvebench.drivers.proxmox.vm import BenchVm
from pvebench.errors import DriverError, NoSpace, NotOurs, OutcomeUnknown, VolumeError
from pvebench.model.disk import Format
from pvebench.model.ports import Volume
from pvebench.model.scenario import Scenario
from pvebench.model.units import KIB, MIB, show_bytes

RESERVE_BYTES: Final = 256 * MIB
"""Left free on the storage beside the volume: a thin pool that fills up stops every VM on it."""
_CREATE_SECONDS: Final = 300.0
_TRIES: Final = 100


class Volumes:
    """The volumes of one VM, by what scenarios need them for."""

    def __init__(
        self, api: Api, node: str, vm: BenchVm, storages: Mapping[str, ClusterStorage]
    ) -> None:
        """Make the book of a new VM's volumes.

        Args:
            storages: name in packs -> storage of the cluster.
        """
        self._storages = storages
        self._api = api
        self._node = node
        self._vm = vm
        self._known: dict[str, Volume] = {}

    def find(self, scenario: Scenario) -> Volume | None:
        """Return the volume that is there for `scenario`, of whatever size."""
        return self._known.get(scenario.volume)

    def create(self, scenario: Scenario) -> Volume:
        """Make a new, unfilled volume.

        Raises:
            NoSpace: the storage could not hold it when it is full.
            VolumeError: it could not be made.
        """
        storage, kind = self._storages[scenario.storage].id, scenario.disk.format
        self._check_space(storage, scenario.volume_bytes)
        volid = self._allocate(storage, kind, scenario.volume_bytes)
        volume = Volume(
            storage=scenario.storage,
            volid=volid,
            format=str(kind),
            size_bytes=scenario.volume_bytes,
        )
        self._known[scenario.volume] = volume
        return volume

    def _check_space(self, storage: str, size_bytes: int) -> None:
        status = self._status(storage)
        free = int(status.get("avail", 0))
        if free < size_bytes + RESERVE_BYTES:
            raise NoSpace(
                f"storage {storage}: {show_bytes(free)} free on {self._node}, a volume of "
                f"{show_bytes(size_bytes)} does not fit ({show_bytes(RESERVE_BYTES)} stay free)",
                next_step="free space, or make volume.size or the scale of the pack smaller",
            )

    def _status(self, storage: str) -> Mapping[str, Any]:
        try:
            found: dict[str, Any] = self._api.get(f"/nodes/{self._node}/storage/{storage}/status")
        except Rejected as error:
            raise VolumeError(f"storage {storage} of {self._node}: {error.text}") from error
        if not found.get("active") or found.get("type") not in STORAGE_TYPES:
            raise VolumeError(
                f"storage {storage} of {self._node} is not active, or of a type that holds no "
                f"test volumes ({found.get('type')})",
                next_step="see what there is: pvebench check",
            )
        return found

    def _allocate(self, storage: str, kind: Format, size_bytes: int) -> str:
        extension = STORAGE_TYPES[str(self._status(storage)["type"])].extension
        path = f"/nodes/{self._node}/storage/{storage}/content"
        for number in range(_TRIES):
            name = volume_name(self._vm.vmid, kind, number, extension=extension)
            try:
                return str(
                    self._api.post(
                        path, seconds=_CREATE_SECONDS, vmid=self._vm.vmid, filename=name,
                        size=f"{size_bytes // MIB}M" if size_bytes % MIB == 0
                        else str(size_bytes // KIB), format=str(kind),
                    )
                )  # fmt: skip
            except OutcomeUnknown:
                return self._look_for(storage, name)
            except Rejected as error:
                if "already exists" not in error.text:
                    raise VolumeError(f"volume {name} on {storage}: {error.reason}") from error
        raise VolumeError(f"storage {storage} is full of volumes of VM {self._vm.vmid}")

    def _look_for(self, storage: str, name: str) -> str:
        """Return the volid of a volume whose making was not answered; nobody else names so."""
        path = f"/nodes/{self._node}/storage/{storage}/content"
        for entry in self._api.get(path, content="images", vmid=self._vm.vmid):
            if str(entry["volid"]).endswith(name):
                return str(entry["volid"])
        raise VolumeError(
            f"volume {name} on {storage}: the server did not answer, and it is not there",
            next_step="nothing to do: the next run makes one",
        )

    def free(self, scenario: Scenario) -> None:
        """Remove the scenario's volume, which must not be plugged in.

        Raises:
            NotOurs: its name does not carry our mark.
        """
        volume = self._known.pop(scenario.volume, None)
        if volume is None:
            return
        if MARK not in volume.volid:
            raise NotOurs(f"volume {volume.volid} is left alone: its name is not one of ours")
        config = self._vm.config()
        if volume.volid in test_slots(config).values():
            raise VolumeError(f"volume {volume.volid} is still plugged in")
        key = unused_volumes(config).get(volume.volid)
        if key is not None:  # else it was never plugged in, and goes with the VM
            self._vm.change(f"free {volume.volid}", delete=key)

    def resolve(self, volume: Volume) -> str:
        """Return the volume's format as the storage tells it; empty where it may not be asked."""
        storage = self._storages[volume.storage].id
        path = f"/nodes/{self._node}/storage/{storage}/content"
        try:
            entries = self._api.get(path, content="images", vmid=self._vm.vmid)
        except DriverError:
            return ""
        return next((str(entry["format"]) for entry in entries if entry["volid"] == volume.volid),
                    "")  # fmt: skip
