"""Benchmark VM of a node and its volumes: created, or reused from an earlier start.

Volumes are created at the storage but freed through the VM: a storage frees a volume only for its
administrators, a VM its own. So a volume is freed as `unusedN`, and the rest with the VM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.bench_vm import KIND, BenchVm
from pvebench.drivers.proxmox.vm.description import Filled, filled_of
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, test_slots, unused_volumes, volume_name
from pvebench.drivers.proxmox.vm.leftover_vms import find_kept, fit, undo_vms
from pvebench.drivers.proxmox.vm.template import usable_template
from pvebench.drivers.proxmox.vm.vm_copies import VmSnapshots, try_to_remove
from pvebench.drivers.proxmox.vm.vm_create import (
    NodeContext,
    VmOptions,
    clone_options,
    make_vm,
    upload_iso,
    vm_options,
)
from pvebench.errors import (
    DriverError,
    HypervisorGone,
    NotOwned,
    OutcomeUnknown,
    ServerGone,
    SwitchFailed,
    VolumeError,
)
from pvebench.log import log
from pvebench.model.disk import Format
from pvebench.model.ports import Clock, of_kinds
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.storage_use import RESERVE_BYTES, Space, volume_space
from pvebench.model.units import KIB, MIB
from pvebench.model.volume import Volume

_CREATE_SECONDS: Final = 300.0
_TRIES: Final = 100
_TIDY_SECONDS: Final = 600.0


def space_of(status: Mapping[str, Any], storage: str, node: str, min_free: int = 0) -> Space:
    """Return the space of a storage from the status that a node reports.

    Raises VolumeError: there is none, or it is disabled or not active there, for which Proxmox
    reports 0 bytes.
    """
    if not status:
        raise VolumeError(
            f"storage {storage} is not on {node}, or not in the pool",
            next_step="run `pvebench check`, which names the command",
        )
    if not status.get("active"):
        off = not int(status.get("enabled", 1))
        step = f"set {storage} --disable 0" if off else f"status --storage {storage}"
        raise VolumeError(
            f"storage {storage} on {node} is {'disabled' if off else 'not active'}",
            cause="" if off else "it is not mounted, or its server does not respond",
            next_step=f"run `pvesm {step}` on {node}",
        )
    reserve = max(RESERVE_BYTES, min_free)
    return Space(free=int(status.get("avail", 0)), where=f"on {node}", reserve=reserve)


class VmVolumes:
    """pvebench's VM and volumes on a node. Owned by one worker thread.

    Args:
        storage_options: returns the options that new volumes of a storage have, by name in packs.

    Attributes:
        vm: the VM; None: there is none.
        template: ID of the VM that the VM is a clone of; 0: none.
    """

    def __init__(
        self, context: NodeContext, options: VmOptions, storage_options: Callable[[str], str]
    ) -> None:
        self._context, self._options = context, options
        self._storage_options = storage_options
        self._api, self._clock = context.api, context.clock
        self._node, self._storages = context.node, context.storages
        self.template = 0
        self._tidied = self._clock.monotonic()
        self._use(None)

    def _use(self, vm: BenchVm | None) -> None:
        """Begin the record of a VM's volumes."""
        self.vm = vm
        self._created_with: dict[str, str] = {}
        """volid -> options of its storage at its creation."""
        self._chained: set[str] = set()
        """volids that may have snapshots."""
        self._known: dict[str, Volume] = {}
        self._formats: dict[str, str] = {}
        self._filled: dict[str, Filled] = {}
        """volid -> its record in the VM's description."""

    @property
    def the_vm(self) -> BenchVm:
        """The VM; raises SwitchFailed if there is none."""
        if self.vm is None:
            raise SwitchFailed("no benchmark VM")
        return self.vm

    @property
    def snapshots(self) -> VmSnapshots:
        """Snapshots of the VM's volumes."""
        return VmSnapshots(self.the_vm)

    def find(self, scenario: Scenario) -> Volume | None:
        """Return the existing volume for `scenario`, of any size."""
        return self._known.get(scenario.volume)

    def fits(self, volume: Volume, scenario: Scenario) -> bool:
        """Return whether a volume has the size, and still all options of its storage."""
        options = self._created_with.get(volume.volid)
        current = options == self._storage_options(volume.storage)
        return current and volume.size_bytes == scenario.volume_bytes

    def create(self, scenario: Scenario) -> Volume:
        """Create a new, unfilled volume.

        Raises:
            NoSpace: the storage has too little space for the filled volume.
            VolumeError: creation failed.
        """
        cluster_storage, kind = self._storages[scenario.storage], scenario.disk.format
        storage = cluster_storage.id
        try:
            status = self._api.get(f"/nodes/{self._node}/storage/{storage}/status")
        except Rejected as error:
            raise VolumeError(f"storage {storage} of {self._node}: {error.text}") from error
        need = volume_space(scenario, thick=STORAGE_TYPES[cluster_storage.type].thick)
        space = space_of(status, storage, self._node, cluster_storage.min_free or 0)
        space.require(storage, need)
        extension = STORAGE_TYPES[cluster_storage.type].extension
        options = self._storage_options(scenario.storage)
        volid = self._allocate(storage, kind, scenario.volume_bytes, extension=extension)
        volume = Volume.of(scenario, volid)
        self._known[scenario.volume] = volume
        self._created_with[volid] = options
        if scenario.disk.chain:
            self._chained.add(volid)
        return volume

    def _allocate(self, storage: str, kind: Format, size_bytes: int, *, extension: bool) -> str:
        path = f"/nodes/{self._node}/storage/{storage}/content"
        whole = size_bytes % MIB == 0
        size = f"{size_bytes // MIB}M" if whole else str(size_bytes // KIB)
        for number in range(_TRIES):
            name = volume_name(
                self.the_vm.vmid, self.the_vm.mark, kind, number, extension=extension
            )
            try:
                return str(
                    self._api.post(
                        path,
                        seconds=_CREATE_SECONDS,
                        vmid=self.the_vm.vmid,
                        filename=name,
                        size=size,
                        format=str(kind),
                    )
                )
            except OutcomeUnknown:
                return self._look_for(storage, name)
            except Rejected as error:
                if "already exists" not in error.text:
                    raise VolumeError(f"volume {name} on {storage}: {error.reason}") from error
        raise VolumeError(
            f"storage {storage} has {_TRIES} volumes of VM {self.the_vm.vmid} already"
        )

    def _look_for(self, storage: str, name: str) -> str:
        """Return the volid of a volume after a lost response; the name is unique to this VM."""
        for volid in self._listed(storage):
            if volid.endswith(name):
                return volid
        raise VolumeError(
            f"volume {name} on {storage} not created: the server did not respond",
            next_step="no action needed; the next run creates one",
        )

    def discard(self, volume: Volume) -> None:
        """Remove a volume, which must not be plugged in.

        Raises NotOwned: its name does not contain the VM's marker.
        """
        self._known = {key: known for key, known in self._known.items() if known != volume}
        self._formats.pop(volume.volid, None)
        self.note(volume, "")
        if not self.the_vm.owns(volume.volid):
            raise NotOwned(f"volume {volume.volid} not changed: not created by pvebench")
        seen = self.the_vm.verify_owner()
        if volume.volid in test_slots(seen.values).values():
            raise VolumeError(f"volume {volume.volid} still plugged in")
        if volume.volid in self._chained:
            self.snapshots.remove(volume.volid)
            seen = self.the_vm.verify_owner()
        key = unused_volumes(seen.values).get(volume.volid)
        if key is not None:  # else it was never plugged in: `BenchVm.destroy` removes it
            self.the_vm.change(f"free {volume.volid}", delete=key)

    def resolve(self, volume: Volume) -> str:
        """Return the volume's format from the storage; empty if the token may not list it."""
        if volume.volid not in self._formats:
            try:
                entries = self._listed(self._storages[volume.storage].id)
            except DriverError:
                return ""
            self._formats |= {volid: str(row.get("format", "")) for volid, row in entries.items()}
        return self._formats.get(volume.volid, "")

    def _listed(self, storage: str) -> dict[str, Mapping[str, Any]]:
        """Return volid -> storage entry, for the volumes of the VM."""
        path = f"/nodes/{self._node}/storage/{storage}/content"
        entries = self._api.get(path, content="images", vmid=self.the_vm.vmid)
        return {str(entry["volid"]): entry for entry in entries}

    def _take_over(self) -> None:
        """Reuse the filled volumes of a kept VM; free its other volumes.

        Raises:
            As `BenchVm.change`.
        """
        config = self.the_vm.verify_owner().values
        claimed = filled_of(config)
        self._filled = {volume.volid: volume for volume in claimed if self._holds(volume)}
        self._known |= {
            record.key: Volume(
                storage=record.storage,
                volid=record.volid,
                format=record.format,
                size_bytes=record.size_bytes,
            )
            for record in self._filled.values()
        }
        self._created_with |= {volid: record.options for volid, record in self._filled.items()}
        if len(claimed) > len(self._filled):
            self.the_vm.note_filled(self._filled.values())
        unfilled = [
            key
            for volid, key in unused_volumes(config).items()
            if self.the_vm.owns(volid) and volid not in self._filled
        ]
        if unfilled:
            self.the_vm.change("free unfilled volumes", delete=",".join(unfilled))

    def _holds(self, record: Filled) -> bool:
        """Return whether a volume has the storage, its options, format and size of its record."""
        storage = self._storages.get(record.storage)
        if storage is None or not record.volid.startswith(f"{storage.id}:"):
            return False
        if not self.the_vm.owns(record.volid):
            return False
        with contextlib.suppress(VolumeError):  # `fits` asks again before the volume is used
            if record.options != self._storage_options(record.storage):
                return False
        entry = self._listed(storage.id).get(record.volid, {})
        # From 9.1 on, the size of an inactive qcow2 volume on LVM is only approximate.
        listed = (str(entry.get("format")), entry.get("size", record.listed_bytes))
        return listed == (record.format, record.listed_bytes)

    def content(self, volume: Volume) -> str:
        record = self._filled.get(volume.volid)
        return record.content if record else ""

    def note(self, volume: Volume, content: str) -> None:
        filled = {volid: record for volid, record in self._filled.items() if volid != volume.volid}
        keys = (key for key, known in self._known.items() if known.volid == volume.volid)
        if content and (key := next(keys, "")):
            entry = self._listed(self._storages[volume.storage].id).get(volume.volid, {})
            filled[volume.volid] = Filled(
                key=key,
                storage=volume.storage,
                volid=volume.volid,
                content=content,
                format=str(entry.get("format")),
                size_bytes=volume.size_bytes,
                listed_bytes=int(entry.get("size", 0)),
                options=self._created_with.get(volume.volid, ""),
            )
        if filled != self._filled:
            self.the_vm.note_filled(filled.values())
            self._filled = filled

    def vm_exists(self) -> bool:
        """Return whether there is a VM that pvebench still owns; drop it otherwise.

        Raises DriverError: the VM's state is unknown at present.
        """
        if self.vm is None:
            return False
        try:
            self.vm.recent_config()
        except (HypervisorGone, NotOwned):
            self._use(None)
        return self.vm is not None

    def tidy(self, in_use: Collection[int]) -> None:
        """Retry periodically to remove own archives, and own VMs that were locked before.

        Args:
            in_use: IDs of the VMs to leave alone.
        """
        if self.vm is None or self._clock.monotonic() - self._tidied < _TIDY_SECONDS:
            return
        self._tidied = self._clock.monotonic()
        try_to_remove(self.vm)
        keep = self._options.keep
        for line in undo_vms(self._context, keep=keep, concerns=lambda vmid: vmid not in in_use):
            log.warning("leftover from an earlier start", node=self._context.node, result=line)

    def reuse_or_create(self, machine: Machine) -> None:
        """Reuse the kept VM, or create one.

        Raises NotOwned, GuestImageError, DriverError: as `make_vm`, `upload_iso` and
            `usable_template`.
        """
        node = self._context.node
        self.template, iso, template = machine.template, "", None
        options = vm_options(node, self._options, machine)
        if machine.template:
            template = usable_template(self._api, node, machine.template)
            options = clone_options(node, self._options, machine)
        else:
            iso = upload_iso(self._context, self._options.iso_storage, self._context.image)
        if not (self._options.keep and self._take_up(options, iso)):
            vm, _ = make_vm(self._context, options, iso, template)
            self._use(vm)

    def _take_up(self, options: Mapping[str, Any], iso: str) -> bool:
        """Reuse the VM that was kept with filled volumes; return whether there is one."""
        kept = find_kept(self._context, self.template)
        if kept is None:
            return False
        vm, in_use = kept
        fit(vm, options, iso)
        self._use(vm)
        try:
            self._take_over()
            in_use()
        except BaseException:
            self._use(None)
            raise
        return True

    def give_up(self, clock: Clock) -> None:
        """Remove the VM with its volumes, or keep it with them.

        With the benchmark VM, all others of the node in the journal are removed.

        Args:
            clock: clock that is not stopped, so that a stop does not interrupt the cleanup.

        Raises ServerGone: cleanup is not possible at present.
        """
        node, own = self._context.node, self.vm.vmid if self.vm else 0
        further = self._options.number > 1

        def concerns(vmid: int) -> bool:
            return vmid == own or not further

        access = replace(self._context, clock=clock)
        lines = undo_vms(access, keep=self._options.keep, clean=True, concerns=concerns)
        self._use(None)
        if any(
            details.get("node") == node and concerns(int(details["vmid"]))
            for _, details in of_kinds(self._context.journal, KIND)
        ):
            raise ServerGone(
                "; ".join(lines),
                next_step="follow the steps above, if any, then run `pvebench cleanup`; the next "
                "start of pvebench retries, too",
            )
