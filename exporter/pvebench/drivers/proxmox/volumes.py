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
from pvebench.drivers.proxmox.marks import Filled, filled_of
from pvebench.drivers.proxmox.storages import (
    MARK,
    STORAGE_TYPES,
    ClusterStorage,
    volume_name,
)
from pvebench.drivers.proxmox.vm import BenchVm
from pvebench.errors import DriverError, NoSpace, NotOurs, OutcomeUnknown, VolumeError
from pvebench.model.disk import Format
from pvebench.model.scenario import Scenario
from pvebench.model.units import KIB, MIB, show_bytes
from pvebench.model.volume import Volume

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
        self._filled: dict[str, Filled] = {}
        """volid -> what the VM's description says of it."""

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
        for volid in self._listed(storage):
            if volid.endswith(name):
                return volid
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
        self.note(volume, "")
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
        try:
            entries = self._listed(self._storages[volume.storage].id)
        except DriverError:
            return ""
        return str(entries.get(volume.volid, {}).get("format", ""))

    def _listed(self, storage: str) -> dict[str, Mapping[str, Any]]:
        """Return volid -> what the storage tells of it, for the volumes of our VM."""
        path = f"/nodes/{self._node}/storage/{storage}/content"
        entries = self._api.get(path, content="images", vmid=self._vm.vmid)
        return {str(entry["volid"]): entry for entry in entries}

    def take_over(self) -> None:
        """Know the filled volumes that the VM was kept for; free what else of ours it has.

        Raises:
            As `BenchVm.change`.
        """
        config = self._vm.prove_ours()
        claimed = filled_of(config)
        self._filled = {one.volid: one for one in claimed if self._holds(one)}
        self._known |= {
            one.key: Volume(
                storage=one.storage, volid=one.volid, format=one.format, size_bytes=one.size_bytes
            )
            for one in self._filled.values()
        }
        if len(claimed) > len(self._filled):
            self._vm.note_filled(self._filled.values())
        useless = [
            key for volid, key in unused_volumes(config).items()
            if MARK in volid and volid not in self._filled
        ]  # fmt: skip
        if useless:
            self._vm.change("free what is not filled", delete=",".join(useless))

    def _holds(self, one: Filled) -> bool:
        """Whether a volume is where and what it was when it was filled."""
        storage = self._storages.get(one.storage)
        if storage is None or MARK not in one.volid or not one.volid.startswith(f"{storage.id}:"):
            return False
        entry = self._listed(storage.id).get(one.volid, {})
        told = (str(entry.get("format")), entry.get("size"))
        return told == (one.format, one.listed_bytes)

    def content(self, volume: Volume) -> str:
        """Return what the volume was filled with. See `model.ports.Keeper`."""
        one = self._filled.get(volume.volid)
        return one.content if one else ""

    def note(self, volume: Volume, content: str) -> None:
        """Write into the VM's description what a volume holds. See `model.ports.Keeper`."""
        filled = {volid: one for volid, one in self._filled.items() if volid != volume.volid}
        if content:
            entry = self._listed(self._storages[volume.storage].id).get(volume.volid, {})
            key = next(key for key, known in self._known.items() if known.volid == volume.volid)
            filled[volume.volid] = Filled(
                key=key, storage=volume.storage, volid=volume.volid, content=content,
                format=str(entry.get("format")), size_bytes=volume.size_bytes,
                listed_bytes=int(entry.get("size", 0)),
            )  # fmt: skip
        if filled != self._filled:
            self._vm.note_filled(filled.values())
            self._filled = filled
