"""One node of a Proxmox VE cluster: `model.ports.Hypervisor` over its API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.host import SystemClock
from pvebench.drivers.proxmox import switching
from pvebench.drivers.proxmox.agent import AgentGuest
from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.drive import (
    drive_text,
    read_back,
    serial_of,
    slot_name,
)
from pvebench.drivers.proxmox.environment import node_facts, version_number, vm_facts
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.iso import upload_iso
from pvebench.drivers.proxmox.storages import STORAGE_TYPES
from pvebench.drivers.proxmox.undo import undo_pending
from pvebench.drivers.proxmox.vm import KIND, BenchVm, Place, make_vm, refuse_lock
from pvebench.drivers.proxmox.volumes import Volumes
from pvebench.errors import (
    DriverError,
    GuestSilent,
    HypervisorGone,
    NotOurs,
    ServerGone,
    SwitchFailed,
)
from pvebench.guest import GuestImage
from pvebench.model.disk import Bus, Disk, ScsiHw
from pvebench.model.environment import Environment
from pvebench.model.ports import (
    Attachment,
    BlockCounters,
    Clock,
    Guest,
    Journal,
    Plug,
    Volume,
)
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB

_BOOT_SECONDS: Final = 180.0
_SEEN_SECONDS: Final = 20.0
"""How long the guest may take to see a disk that QEMU has."""
UNVERIFIED: Final = ("aio", "preallocation")
"""QEMU tells its aio nowhere; how much of a file is allocated is the storage's own business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VmOptions:
    """What the benchmark VM is, beside what scenarios say.

    Attributes:
        iso_storage: where the guest's image is kept; its content must allow `iso`.
        cpu: CPU type; `host` hides nothing from the guest.
        machine: machine type; empty: the newest that the node has.
        kvm: False only where nested virtualisation is missing; results carry accel=tcg.
    """

    iso_storage: str
    cpu: str = "host"
    machine: str = ""
    kvm: bool = True


@dataclass(slots=True)
class _Plugged:
    """The test disk that is in the VM now."""

    plug: Plug
    slot: str
    serial: str
    value: str


class ProxmoxNode:
    """The benchmark VM on one node, and its volumes. Owned by one worker thread."""

    def __init__(
        self, api: Api, *, place: Place, options: VmOptions, image: GuestImage, journal: Journal,
        clock: Clock, storage_types: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Make the driver; nothing is asked or changed yet.

        Args:
            storage_types: storage id -> its type in Proxmox's words.
        """
        self._api = api
        self._place = place
        self._options = options
        self._image = image
        self._journal = journal
        self._clock = clock
        self._types = dict(storage_types)
        self._version: tuple[int, ...] = ()
        self._vm: BenchVm | None = None
        self._volumes: Volumes | None = None
        self._guest: AgentGuest | None = None
        self._machine: Machine | None = None
        self._scsihw = ScsiHw.SINGLE
        self._cold: Plug | None = None
        self._plugged: _Plugged | None = None
        self._warnings = ""
        self._broken = False
        self._attempt = 0
        self._count = 0
        self._boot_seconds = 0.0
        self.pending_changes: dict[str, str] = {}

    @property
    def vmid(self) -> int:
        """The VM's number; 0: there is none."""
        return self._vm.vmid if self._vm else 0

    @property
    def boot_seconds(self) -> float:
        """How long the last boot took. See the port."""
        return self._boot_seconds

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the running guest, booting or restarting it where needed. See the port."""
        self._ensure_vm(machine)
        if self._guest is not None and not self._must_restart(machine, cold):
            return self._guest
        scsihw = cold.disk.scsihw if cold and cold.disk.bus is Bus.SCSI else ScsiHw.SINGLE
        self._guest = None
        return self._restart(machine, cold, scsihw)

    def _ensure_vm(self, machine: Machine) -> BenchVm:
        """Return the VM, making it where there is none (any more)."""
        if self._vm is not None:
            try:
                self._vm.prove_ours()
            except (HypervisorGone, NotOurs):
                self._forget()
            else:
                return self._vm
        self._version = version_number(self._api)
        node, storage = self._place.node, self._options.iso_storage
        iso = upload_iso(self._api, node, storage, self._image, self._clock)
        self._vm, _ = make_vm(
            self._api, self._clock, self._place, self._journal,
            options=self._vm_options(machine), iso=iso,
        )  # fmt: skip
        self._volumes = Volumes(self._api, node, self._vm)
        return self._vm

    def _forget(self) -> None:
        """The VM is gone, and its volumes with it."""
        self._vm = self._volumes = self._guest = self._machine = None
        self._cold = self._plugged = None

    def _vm_options(self, machine: Machine) -> dict[str, Any]:
        options: dict[str, Any] = {
            "name": f"pvebench-{self._place.node}",
            "ostype": "l26",
            "memory": machine.memory_bytes // MIB,
            "balloon": 0,
            "cores": machine.cpus,
            "cpu": self._options.cpu,
            "machine": self._options.machine or None,
            "scsihw": str(ScsiHw.SINGLE),
            # Both versions know the older name; a freeze in mid-run would be measured.
            "agent": "enabled=1,freeze-fs-on-backup=0",
            "hotplug": "disk",
            "boot": "order=ide2",
            "serial0": "socket",
            "vga": "serial0",
            "tablet": 0,
            "onboot": 0,
        }
        if not self._options.kvm:
            options["kvm"] = 0
        return {key: value for key, value in options.items() if value is not None}

    def _must_restart(self, machine: Machine, cold: Plug | None) -> bool:
        if self._broken or machine != self._machine or cold != self._cold or self._guest is None:
            return True
        try:
            self._guest.ping()
        except DriverError:
            return True
        return False

    def _restart(self, machine: Machine, cold: Plug | None, scsihw: ScsiHw) -> AgentGuest:
        vm = self._the_vm
        self.power_off()
        refuse_lock(vm.status(), vm.vmid)
        switching.clear(vm)
        switching.reshape(
            vm, memory=machine.memory_bytes // MIB, cores=machine.cpus, scsihw=str(scsihw)
        )
        if cold is not None:
            self._plug(cold)
        guest = AgentGuest(self._api, vm.path, self._clock, offsets=self._version >= (9, 1, 5))
        begun = self._clock.monotonic()
        try:
            self._warnings = vm.start().warnings
        except Rejected as error:
            raise SwitchFailed(
                f"VM {vm.vmid} did not start: {error.reason}",
                cause="QEMU refuses its options",
                evidence=error.evidence,
            ) from error
        self._machine, self._cold, self._scsihw = machine, cold, scsihw
        guest.wait(seconds=_BOOT_SECONDS)
        self._boot_seconds = self._clock.monotonic() - begun
        self._guest, self._broken = guest, False
        return guest

    def power_off(self) -> None:
        """Stop the VM. See the port."""
        if self._vm is not None:
            self._vm.stop()
        self._guest = self._machine = self._cold = self._plugged = None

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the scenario's volume and whether it is new. See the port."""
        self._ensure_vm(scenario.machine)
        volumes = self._the_volumes
        known = volumes.find(scenario)
        if known is not None and known.size_bytes == scenario.volume_bytes:
            return known, False
        if known is not None:
            self.detach()
            volumes.free(scenario)
        return volumes.create(scenario), True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Plug `volume` with the options of `disk` and read back what came of it. See the port."""
        plug = Plug(volume, disk)
        try:
            if not disk.cold:
                self.detach()
                self._give_controller(disk)
                self._plug(plug)
            return self._read_back(plug)
        except DriverError as error:
            self._broken = True
            self._attempt += 1  # a slot that made trouble is not used again
            raise SwitchFailed(
                f"could not attach {volume.volid} as {disk.bus}, cache={disk.cache}, "
                f"aio={disk.aio}: {error}",
                next_step="the VM is restarted for the next run",
                evidence=error.evidence,
            ) from error

    def _give_controller(self, disk: Disk) -> None:
        """Restart with another SCSI controller where the disk needs one: none can be hot-plugged.

        Raises:
            SwitchFailed: the VM came back with another QEMU, so what was known of it is wrong.
        """
        if disk.bus is not Bus.SCSI or disk.scsihw is self._scsihw:
            return
        machine, guest = self._machine, self._guest
        if machine is None or guest is None:
            raise SwitchFailed("the VM is not running")
        before = self._running()
        self._restart(machine, None, disk.scsihw)
        if self._running() != before:
            raise SwitchFailed("the node's QEMU was upgraded meanwhile; the VM runs the new one")
        self._guest = guest  # the same machine to its owner

    def _running(self) -> tuple[str, str]:
        status = self._the_vm.status()
        return str(status.get("running-qemu")), str(status.get("running-machine"))

    def _plug(self, plug: Plug) -> None:
        self._count += 1
        slot = slot_name(plug.disk.bus, self._attempt)
        serial = serial_of(self._count)
        has_aio = not STORAGE_TYPES[self._types[plug.volume.storage]].network
        text = drive_text(plug.disk, plug.volume.volid, serial, has_aio=has_aio)
        value = switching.plug(self._the_vm, slot, text)
        self._plugged = _Plugged(plug, slot, serial, value)

    def _read_back(self, plug: Plug) -> Attachment:
        now = self._plugged
        if now is None or now.plug != plug or self._guest is None:
            raise SwitchFailed("the disk was to be there since power-on, but is not")
        vm = self._the_vm
        config = vm.config()
        status = vm.status()
        seen = self._find_in_guest(self._guest, now.serial)
        effective = read_back(
            now.slot, str(config.get(now.slot, "")), scsihw=str(config.get("scsihw", "lsi")),
            volume_format=self._the_volumes.resolve(plug.volume) or plug.volume.format,
        )  # fmt: skip
        effective["size_bytes"] = seen.get("size_bytes", "")
        effective["cache"] = _seen_cache(effective["cache"], plug.disk, seen)
        if now.slot not in status.get("blockstat", {}):
            raise SwitchFailed(f"QEMU has no disk in {now.slot}")
        told = {command: vm.monitor(command) for command in ("info block -v", "info iothreads")}
        effective["iothread"] = _seen_iothread(effective["iothread"], now.slot, told)
        raw = {"config": config, "monitor": told, "guest": seen, "start_warnings": self._warnings}
        return Attachment(
            device=seen["device"], effective=effective, unverified=UNVERIFIED,
            raw=json.dumps(raw, indent=1, sort_keys=True),
        )  # fmt: skip

    def _find_in_guest(self, guest: AgentGuest, serial: str) -> dict[str, str]:
        deadline = self._clock.monotonic() + _SEEN_SECONDS
        while True:
            done = guest.run(["/usr/bin/pvebench-disk", serial], timeout=_SEEN_SECONDS)
            if done.exit_code == 0:
                words = done.stdout.decode("utf-8", "replace").split()
                return dict(word.split("=", 1) for word in words)
            if self._clock.monotonic() > deadline:
                raise GuestSilent(f"the guest does not see the disk within {_SEEN_SECONDS:.0f} s")
            self._clock.sleep(0.5)

    def detach(self) -> None:
        """Unplug the test disk. See the port."""
        if self._plugged is None:
            return
        if self._broken or self._plugged.plug.disk.cold:
            self.power_off()  # it is taken out while the VM is off
            return
        try:
            switching.unplug(self._the_vm, self._plugged.slot)
        except DriverError as error:
            self._broken = True
            self._attempt += 1
            raise SwitchFailed(str(error), evidence=error.evidence) from error
        self._plugged = None

    def drop_caches(self, volume: Volume) -> int | None:
        """Return None: the page cache is another machine's. See the port."""
        return None

    def counters(self) -> BlockCounters:
        """Return QEMU's counters of the attached disk. See the port."""
        if self._plugged is None:
            raise SwitchFailed("no test disk is attached")
        status = self._the_vm.status()
        if status.get("qmpstatus") == "io-error":
            raise HypervisorGone(
                "QEMU has stopped the VM after an I/O error", cause="the storage is full"
            )
        mine = status.get("blockstat", {}).get(self._plugged.slot)
        if mine is None:
            raise HypervisorGone(
                f"QEMU tells nothing of {self._plugged.slot} (status {status.get('qmpstatus')})",
                cause="the VM was stopped, or its monitor is busy",
            )
        return BlockCounters(
            read_operations=int(mine["rd_operations"]),
            write_operations=int(mine["wr_operations"]),
            flush_operations=int(mine["flush_operations"]),
            read_bytes=int(mine["rd_bytes"]),
            write_bytes=int(mine["wr_bytes"]),
            unmap_operations=int(mine.get("unmap_operations", 0)),
        )

    def environment(self) -> Environment:
        """Return the running environment. See the port."""
        facts, pending = node_facts(self._api, self._place.node)
        if self._vm is not None and self._guest is not None:
            more, waiting = vm_facts(
                self._vm.status(), self._vm.config(), qemu_package=facts.get("qemu_package", "")
            )
            facts |= more
            pending |= waiting
            if "qemu" in waiting:
                del facts["qemu_package"]  # of the package that does not run yet
        self.pending_changes = pending
        return self._environment(facts)

    def host_environment(self) -> Environment:
        """Return what is known without a VM. See the port."""
        try:
            facts, self.pending_changes = node_facts(self._api, self._place.node)
        except DriverError:
            facts = {}
        return self._environment(facts)

    def _environment(self, facts: Mapping[str, str]) -> Environment:
        image = {
            "guest_image": self._image.digest[:12],
            "guest_kernel": self._image.versions.get("kernel", ""),
            "fio": self._image.versions.get("fio", ""),
        }
        return Environment(node=self._place.node, facts={**facts, **image})

    def shutdown(self) -> None:
        """Remove the VM with its volumes. See the port."""
        # The user's wish to stop must not stop the tidying up: a clock that nobody has stopped.
        node = self._place.node
        lines = undo_pending(self._journal, self._api, SystemClock(), node=node)
        self._forget()
        if any(
            kind == KIND and details["node"] == node for _, kind, details in self._journal.pending()
        ):
            raise ServerGone(
                "; ".join(lines), next_step="it is removed at the next start of pvebench"
            )

    @property
    def _the_vm(self) -> BenchVm:
        if self._vm is None:
            raise SwitchFailed("there is no VM")
        return self._vm

    @property
    def _the_volumes(self) -> Volumes:
        if self._volumes is None:
            raise SwitchFailed("there is no VM")
        return self._volumes


def _seen_cache(configured: str, disk: Disk, seen: Mapping[str, str]) -> str:
    """Return the cache mode, if what the guest sees of it agrees with what is configured."""
    sees = "write-back" if disk.cache.write_cache else "write-through"
    if seen.get("write_cache") == sees:
        return configured
    return f"{configured}, but the guest sees {seen.get('write_cache')}"


def _seen_iothread(configured: str, slot: str, told: Mapping[str, str | None]) -> str:
    """Return whether the disk has an I/O thread, by QEMU's own word where it may be asked."""
    text = told["info iothreads"]
    if text is None:
        return configured
    names = (f"iothread-{slot}:", f"iothread-virtio{slot}:")
    return str(int(any(name in text for name in names)))
