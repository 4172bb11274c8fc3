"""`model.ports.Hypervisor` for a node of a Proxmox VE cluster, over its API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.api.connection import version_number
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.node.node_state import (
    PoolNames,
    Versions,
    available_memory,
    coarse_cpu,
    read_state,
    vm_pressure,
)
from pvebench.drivers.proxmox.node.storage_options import StorageOptions
from pvebench.drivers.proxmox.vm import hotplug
from pvebench.drivers.proxmox.vm.agent import AgentClient, AgentGuest
from pvebench.drivers.proxmox.vm.bench_vm import BenchVm, node_time, refuse_without_rights
from pvebench.drivers.proxmox.vm.description import CLAIM_SECONDS
from pvebench.drivers.proxmox.vm.drive import (
    SLOT,
    STORAGE_TYPES,
    OperationTargets,
    drive_text,
    serial_of,
    slot_name,
    test_slots,
)
from pvebench.drivers.proxmox.vm.hotplug import Plugged, block_counters, look, stopped_by_storage
from pvebench.drivers.proxmox.vm.operations_under_load import DiskOperation
from pvebench.drivers.proxmox.vm.vm_copies import chain_kind
from pvebench.drivers.proxmox.vm.vm_create import NodeContext, VmOptions, cpu_options
from pvebench.drivers.proxmox.vm.vm_volumes import VmVolumes
from pvebench.drivers.vm_lifecycle import VmLifecycle
from pvebench.errors import DriverError, OutputUnreadable, SwitchFailed
from pvebench.log import log
from pvebench.model.disk import Bus, Disk, ScsiHw
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.guest import Guest
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.storage_use import require_memory, volume_space
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench.model.workload import Case

BOOT_SECONDS: Final = 600.0
_ALIVE_SECONDS: Final = 30.0
"""Time after a response of the guest in which a VM is used without a ping, seconds."""
_SAME_MOMENT_SECONDS: Final = 0.1
"""Maximum age of a status response that counters are read from, seconds."""


class ProxmoxHypervisor(VmLifecycle[AgentClient, Plugged]):
    """Benchmark VM on a node, and its volumes. Owned by one worker thread."""

    def __init__(self, context: NodeContext, options: VmOptions) -> None:
        """Create the driver without any request."""
        super().__init__(context.clock)
        self._on_node: NodeSsh | None = None
        self.context, self._options = context, options
        self._api, self._storages = context.api, context.storages
        self._further: dict[int, ProxmoxHypervisor] = {}
        self._pool_names = PoolNames(self._api)
        self._version: tuple[int, ...] = ()
        self._storage_options = StorageOptions(self._api, self._storages)
        self._held = VmVolumes(context, options, self._storage_options.of_new_volume)
        self.targets = OperationTargets()
        self._operation: DiskOperation | None = None
        self._scsihw = self._next_scsihw = ScsiHw.SINGLE
        self._last_status: tuple[float, Mapping[str, Any]] = (0.0, {})
        """Time of the last status request, monotonic seconds, and its response."""
        self._starting = ""
        """Task of the last start."""
        self._versions = Versions(context, self._storage_options)

    def use_ssh(self, on_node: NodeSsh) -> None:
        """Use SSH for data that the API lacks, and to drop the node's page cache."""
        self._on_node = self._storage_options.on_node = on_node

    def further_vm(self, number: int) -> ProxmoxHypervisor:
        """As `VmFunctions.further_vm`; nothing is created yet, and it is never kept."""
        if number not in self._further:
            options = replace(self._options, number=number, keep=False)
            further = self._further[number] = ProxmoxHypervisor(self.context, options)
            if self._on_node is not None:
                further.use_ssh(self._on_node)
        return self._further[number]

    def further_vmids(self) -> set[int]:
        """Return the IDs of the other VMs of the site."""
        return {vm.vmid for vm in self._further.values()} - {0}

    @property
    def vmid(self) -> int:
        """The VM's ID; 0: none."""
        return self._held.vm.vmid if self._held.vm else 0

    @property
    def vm(self) -> BenchVm | None:
        """The VM; None: none."""
        return self._held.vm

    def prepare(self, machine: Machine, *, count: int) -> None:
        """As `FurtherVm.prepare`. While it runs, its claim says that its instance lives."""
        require_memory(machine, count, available_memory(self._api, self.context.node))
        self._ensure(machine)
        self._set_up(machine)
        now = node_time(self._api, self.context.node, self._clock)
        self._held.the_vm.claim(now + CLAIM_SECONDS)

    def _ensure(self, machine: Machine, cold: Plug | None = None) -> None:
        del cold
        refuse_without_rights(self._api, self.context.pool)
        if self._held.vm is not None and self._held.template != machine.template:
            self.power_off()
            self._held.give_up(self._clock)
        if not self._held.vm_exists():
            self._forget()
            self._version = version_number(self._api)
            self._held.reuse_or_create(machine)
        if self._options.number == 1:
            self._held.tidy({self.vmid, *self.further_vmids()})

    def _forget(self) -> None:
        super()._forget()
        self._operation = None
        self._last_status = 0.0, {}

    def _require_usable(self, guest: AgentClient) -> None:
        if self._next_scsihw is not self._scsihw:
            # A controller cannot be hot-plugged; the last call of `volume` selects it.
            raise SwitchFailed(f"VM {self.vmid} runs with {self._scsihw}")
        if not guest.answered_within(_ALIVE_SECONDS):
            guest.ping()

    def _configure(self, machine: Machine, cold: Plug | None) -> Plugged | None:
        vm, scsihw = self._held.the_vm, self._next_scsihw
        hotplug.clear(vm)
        hotplug.reshape(
            vm,
            memory=machine.memory_bytes // MIB,
            scsihw=str(scsihw),
            **cpu_options(self._options, machine),
        )
        plugged = self._plug(cold) if cold is not None else None
        self._scsihw = scsihw
        return plugged

    def _begin_start(self, machine: Machine) -> None:
        del machine
        with self._explained_start():
            self._starting = self._held.the_vm.begin_start()

    def _await_guest(self) -> AgentClient:
        vm, machine = self._held.the_vm, self._state.machine
        # A system from a plug-in has no shell of the guest image.
        client = AgentClient if machine is not None and machine.foreign else AgentGuest
        guest = client(
            self._api,
            vm.path,
            self._clock,
            offsets=self._version >= (9, 1, 5),
            why_silent=self._why_silent,
        )
        with self._explained_start():
            warnings = vm.await_start(self._starting).warnings
        if "iothread" in warnings:
            # QEMU runs, but without the requested I/O thread; other warnings do not matter.
            raise SwitchFailed(f"VM {vm.vmid} started with warnings: {warnings}", evidence=warnings)
        guest.wait(seconds=BOOT_SECONDS)
        return guest

    @contextlib.contextmanager
    def _explained_start(self) -> Iterator[None]:
        try:
            yield
        except Rejected as error:
            raise SwitchFailed(
                f"starting VM {self.vmid} failed: {error.reason}",
                cause="QEMU rejects its options",
                evidence=error.evidence,
            ) from error

    def _why_silent(self) -> DriverError | None:
        """Return the error if a full storage blocks the guest, or a task has stopped it.

        Space is freed immediately: every other VM on that storage is blocked until then.
        """
        full = None
        try:
            full = stopped_by_storage(self._held.the_vm.status())
            if full is None:
                return self._held.the_vm.stopped_by()
            if (plugged := self._state.disk) is not None:
                self.power_off()
                hotplug.clear(self._held.the_vm)
                self._held.discard(plugged.plug.volume)
        except DriverError as error:
            log.warning("finding out why the guest is silent failed", reason=error.reason)
        return full

    def operate(self, name: str, target_rate: int) -> DiskOperation:
        """As `VmFunctions.operate`."""
        self._operation = DiskOperation(
            self.context,
            self._held.the_vm,
            self._disk,
            name=name,
            targets=self.targets,
            target_rate=target_rate,
        )
        return self._operation

    def _end_operation(self) -> None:
        """Remove what an operation left. Raises DriverError: not possible at present."""
        if self._operation is not None:
            self._operation.cancel()
            self._operation = None

    def _end(self) -> None:
        self._end_operation()
        if self._held.vm is not None:
            self._held.vm.stop()

    def needs_of(self, case: Case) -> int:
        """Return the bytes that the volumes of `case` in all VMs still need; 0 if unknown."""
        numbers = range(2, 2 + case.workload.further_vms)
        vms = [self, *(self.further_vm(number) for number in numbers)]
        return sum(vm.needs_bytes(case.scenario) for vm in vms)

    def needs_bytes(self, scenario: Scenario) -> int:
        """Return the bytes that the volume of `scenario` still needs; 0 if unknown."""
        thick = STORAGE_TYPES[self._storages[scenario.storage].type].thick
        need = volume_space(scenario, thick=thick)
        if self._held.vm is None:
            return 0 if self._options.keep else need
        volume = self._held.find(scenario)
        if volume is not None and volume.size_bytes >= scenario.volume_bytes:
            return 0
        return need - (volume.size_bytes if volume else 0)

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        self._ensure(scenario.machine)
        if scenario.disk.bus is Bus.SCSI:
            self._next_scsihw = scenario.disk.scsihw
        volumes = self._held
        volume = volumes.find(scenario)
        if volume is not None and volumes.fits(volume, scenario):
            return volume, False
        if volume is not None:
            self.detach()
            volumes.discard(volume)
        return volumes.create(scenario), True

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """As `VmFunctions.take_snapshots`, with snapshots of the VM, which is off meanwhile."""
        self.power_off()
        vm = self._held.the_vm
        hotplug.clear(vm)
        text = drive_text(disk, volume.volid, serial_of(0), self._storages[volume.storage].type)
        hotplug.plug(vm, slot_name(Bus.SCSI, 0), text)
        self._held.snapshots.extend(volume.volid, disk.chain)
        hotplug.clear(vm)

    def _plug(self, plug: Plug) -> Plugged:
        self._count += 1
        config = self._held.the_vm.recent_config().values
        taken = {key for key in config if SLOT.match(key)} - test_slots(config).keys()
        slot, serial = slot_name(plug.disk.bus, self._failed, taken), serial_of(self._count)
        kind = self._storages[plug.volume.storage].type
        text = drive_text(plug.disk, plug.volume.volid, serial, kind)
        return Plugged(plug, slot, serial, hotplug.plug(self._held.the_vm, slot, text))

    def _read_back(self, disk: Plugged, guest: Guest) -> Attachment:
        plug = disk.plug
        form = self._held.resolve(plug.volume) or plug.volume.format
        storage = {"type": self._storages[plug.volume.storage].type}
        attachment = look(self._held.the_vm, guest, disk, volume_format=form, storage=storage)
        return self._with_state(self._with_chain(attachment, plug, form), disk)

    def _with_chain(self, attachment: Attachment, plug: Plug, volume_format: str) -> Attachment:
        """Read back the snapshots of the volume, if it should have any."""
        if not plug.disk.chain:
            return attachment
        depth = self._held.snapshots.depth(plug.volume.volid)
        kind = chain_kind(self._api, self._storages[plug.volume.storage], volume_format)
        chain = {"chain": str(depth), "chain_kind": str(kind)}
        return replace(attachment, effective={**attachment.effective, **chain})

    def _with_state(self, attachment: Attachment, disk: Plugged) -> Attachment:
        """Record the devices for counters; add the node's state to the evidence."""
        volume = disk.plug.volume
        if self._on_node is None:
            return attachment
        with contextlib.suppress(DriverError, OutputUnreadable):
            disk.devices = self._on_node.devices(volume.volid)
        state = self._on_node.state()
        pool = self._pool_names.below(self._storages[volume.storage])
        return replace(
            attachment,
            raw=f"{attachment.raw}\n\nthe node by ssh\n{state}",
            conditions=read_state(state, pool) if pool else {},
        )

    def detach(self) -> None:
        self._end_operation()
        super().detach()

    def _unplug(self, disk: Plugged) -> None:
        hotplug.unplug(self._held.the_vm, disk.slot)

    def content(self, volume: Volume) -> str:
        """Return the content of a filled volume; containers do not outlive a start."""
        return self._held.content(volume)

    def note(self, volume: Volume, content: str) -> None:
        self._held.note(volume, content)

    @property
    def devices(self) -> tuple[int, ...]:
        """Numbers of the node's block devices below the volume in use; empty: unknown."""
        return self._state.disk.devices if self._state.disk else ()

    def drop_caches(self, volume: Volume) -> int | None:
        if self._on_node is None or STORAGE_TYPES[self._storages[volume.storage].type].network:
            return None
        try:
            return self._on_node.drop(volume.volid)
        except (DriverError, OutputUnreadable):
            if self._state.disk is not None and self._state.disk.plug.disk.cache.direct:
                return None  # the disk bypasses that cache
            raise

    def counters(self) -> BlockCounters | None:
        slot = self._disk.slot
        status = self._status(seconds=_SAME_MOMENT_SECONDS)
        if self._operation is not None and self._operation.blocks_monitor(status):
            return None  # the end of the operation says why the run failed, if it did
        return block_counters(status, slot)

    def _status(self, *, seconds: float) -> Mapping[str, Any]:
        """Return status/current, at most `seconds` old."""
        at, known = self._last_status
        now = self._clock.monotonic()
        if not known or now - at >= seconds:
            known = self._held.the_vm.status()
            self._last_status = self._clock.monotonic(), known
        return known

    def statistics(self) -> str:
        """Return QEMU's statistics from Proxmox."""
        return json.dumps(self._held.the_vm.status().get("blockstat"), indent=1)

    def environment(self) -> Environment:
        return self._versions.running(self._held.vm if self._state.guest else None)

    def host_environment(self) -> Environment:
        return self._versions.host()

    def upkeep(self) -> PendingUpdates:
        """Return the packages installed since the VM started. Never raises DriverError."""
        return self._versions.upkeep(running=self._state.guest is not None)

    def averages(self, *, cpu: bool) -> Mapping[str, float]:
        try:
            node = self._api.get(f"/nodes/{self.context.node}/status") if cpu else {}
            # They are averages over ten seconds, so a recent response is sufficient.
            averages = vm_pressure(self._status(seconds=3.0)) if self._held.vm else {}
            averages |= coarse_cpu(node)
        except DriverError:
            return {}
        return averages

    def shutdown(self) -> None:
        """Remove the VM with its volumes, or keep it with them."""
        # The worker's clock is stopped at shutdown, which must not interrupt the cleanup.
        if self._operation is not None:
            with contextlib.suppress(DriverError):
                self._operation.stop()  # the journal and the end of the VM cover what it created
        self._forget()
        self._held.give_up(SystemClock())
        if self._on_node is not None:
            self._on_node.close()
