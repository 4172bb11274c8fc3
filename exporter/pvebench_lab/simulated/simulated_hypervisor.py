"""Simulated node with a VM and its volumes, and the engine of driver `simulated`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.driver import DriverContext, Engine
from pvebench.drivers.vm_lifecycle import VmLifecycle
from pvebench.errors import GuestTimeout, HypervisorGone, SwitchFailed
from pvebench.model.disk import Cache, ChainKind, Disk, option_text
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.guest import Guest
from pvebench.model.ports import Clock, HostSnapshot, Journal, Progress, Site, VmFunctions
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench.model.workload import COPIES
from pvebench_lab.simulated import SimulatedSettings
from pvebench_lab.simulated.simulated_guest import (
    VM_KIND,
    VOLUME_KIND,
    Fault,
    Faults,
    Reality,
    SimulatedGuest,
    undo_simulated,
)

BOOT_SECONDS: Final = 7.0
SWITCH_SECONDS: Final = 0.5
_TARGET: Final = "operation-target"


@dataclass(slots=True)
class PluggedDisk:
    """Attached disk."""

    volume: Volume
    disk: Disk

    @property
    def name(self) -> str:
        """Name that distinguishes this disk from others."""
        return f"{self.volume.volid} {self.disk.bus} {self.disk.cache}"

    @property
    def plug(self) -> Plug:
        """The volume and its options."""
        return Plug(self.volume, self.disk)


class SimulatedHypervisor(VmLifecycle[SimulatedGuest, PluggedDisk]):
    """`model.ports.Hypervisor` of a simulated node.

    Args:
        instance: prefix of the names of its VMs and volumes.

    A change of `facts` is an upgrade, and `shift` (disk -> factor of its IOPS) its effect.
    """

    def __init__(
        self,
        *,
        node: str,
        seed: int,
        clock: Clock,
        journal: Journal,
        faults: Faults | None = None,
        reality: Reality | None = None,
        instance: str = "",
    ) -> None:
        super().__init__(clock)
        self.node = node
        self._instance = instance
        self.reality = reality or Reality()
        self.clock = clock
        self.faults = faults or Faults(seed)
        self.rng = random.Random(f"numbers/{seed}/{node}")  # noqa: S311 # not for secrets
        self._running: dict[str, str] = {}
        self.facts = {
            "kernel": "simulated-1",
            "qemu": "simulated-1",
            "accel": "simulated",
            "fio": "simulated",
        }
        self.shift: Callable[[Disk], float] = lambda _: 1.0
        self.volumes: dict[str, Volume] = {}
        self._entries: dict[str, int] = {}
        self._journal = journal

    @property
    def guest(self) -> SimulatedGuest | None:
        """The guest of the running VM."""
        return self._state.client

    @property
    def plugged(self) -> PluggedDisk | None:
        """The attached disk."""
        return self._state.disk

    def prepare(self, machine: Machine, *, count: int) -> None:
        """As `FurtherVm.prepare`."""
        del count
        self._set_up(machine)

    def _configure(self, machine: Machine, cold: Plug | None) -> PluggedDisk | None:
        del machine
        return PluggedDisk(cold.volume, cold.disk) if cold is not None else None

    def _begin_start(self, machine: Machine) -> None:
        del machine
        self._entries["vm"] = self._journal.open(VM_KIND, {"name": self._own(self.node)})
        self.reality.start_vm(self._own(self.node))

    def _await_guest(self) -> SimulatedGuest:
        self.clock.sleep(max(0.0, self._state.begun + BOOT_SECONDS - self.clock.monotonic()))
        if self.faults.strikes(Fault.BOOT_HANGS):
            self._power_off()
            raise GuestTimeout("simulated: no response of the guest agent")
        self._running = dict(self.facts)
        return SimulatedGuest(self)

    def _require_usable(self, guest: SimulatedGuest) -> None:
        if not guest.alive:
            raise HypervisorGone("simulated: QEMU has exited")

    def further_vm(self, number: int) -> SimulatedHypervisor:
        """As `VmFunctions.further_vm`."""
        other_hypervisor = SimulatedHypervisor(
            node=self.node,
            seed=number,
            clock=self.clock,
            journal=self._journal,
            faults=self.faults,
            reality=self.reality,
            instance=f"{self._instance}vm{number}.",
        )
        other_hypervisor.facts, other_hypervisor.shift = self.facts, self.shift
        return other_hypervisor

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        known = self.volumes.get(scenario.volume)
        reusable = known is not None and known.size_bytes == scenario.volume_bytes
        if known is not None and reusable and not known.complete:
            return known, False
        if known is not None:
            self._remove(scenario.volume)
        name = self._own(scenario.volume)
        entry = self._journal.open(VOLUME_KIND, {"name": name})
        self.reality.make_volume(name)
        volume = Volume(
            storage=scenario.storage,
            volid=f"simulated:{scenario.volume}",
            format=str(scenario.disk.format),
            size_bytes=scenario.volume_bytes,
            complete=scenario.disk.backing,
        )
        self.volumes[scenario.volume] = volume
        self._entries[scenario.volume] = entry
        return volume, True

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """As `VmFunctions.take_snapshots`; each overlay is one more volume."""
        name = volume.volid.partition(":")[2]
        overlays = disk.chain if disk.chain_kind is ChainKind.VOLUME else 0
        for key in (f"{name}.snap{number + 1}" for number in range(overlays)):
            if key not in self._entries:
                self._entries[key] = self._journal.open(VOLUME_KIND, {"name": self._own(key)})
            self.reality.make_volume(self._own(key))
        self.clock.sleep(SWITCH_SECONDS)

    def operate(self, name: str, target_rate: int) -> SimulatedOperation:
        """As `VmFunctions.operate`."""
        del target_rate
        return SimulatedOperation(self, name)

    def make_target(self) -> None:
        """Create the volume that an operation copies to; it ends with the attachment."""
        self._entries[_TARGET] = self._journal.open(VOLUME_KIND, {"name": self._own(_TARGET)})
        self.reality.make_volume(self._own(_TARGET))

    def _remove_target(self) -> None:
        if _TARGET in self._entries:
            self.reality.remove_volume(self._own(_TARGET))
            self._journal.close(self._entries.pop(_TARGET))

    def _plug(self, plug: Plug) -> PluggedDisk:
        return PluggedDisk(plug.volume, plug.disk)

    def _read_back(self, disk: PluggedDisk, guest: Guest) -> Attachment:
        del guest
        self._alive()
        self.clock.sleep(SWITCH_SECONDS)
        if self.faults.strikes(Fault.ATTACH_FAILS):
            self._power_off()
            raise SwitchFailed("simulated: hot-plug failed")
        if self.faults.strikes(Fault.WRONG_CACHE):
            cache = next(cache for cache in Cache if cache is not disk.disk.cache)
            disk.disk = replace(disk.disk, cache=cache)
        effective = {
            key: option_text(getattr(disk.disk, key)) for key in Disk.__dataclass_fields__
        } | {"size_bytes": str(disk.volume.size_bytes)}
        return Attachment(device="/dev/simulated", effective=effective, raw="simulated")

    def _unplug(self, disk: PluggedDisk) -> None:
        del disk
        if self.guest is None or not self.guest.alive:
            self._power_off()
            return
        self._alive()
        self.clock.sleep(SWITCH_SECONDS)
        if self.faults.strikes(Fault.DETACH_FAILS):
            self._power_off()
            raise SwitchFailed("simulated: the guest does not release the disk")
        self._remove_target()

    def drop_caches(self, volume: Volume) -> int | None:
        return 0

    def counters(self) -> BlockCounters:
        """Return counters that grow while a job runs."""
        self._alive()
        job = self.guest.job if self.guest else None
        now = self.clock.monotonic()
        done = job.operations(now) if job else 0
        flushes = job.operations(now, per_second=job.played.flushes_per_second) if job else 0
        return BlockCounters(
            read_operations=done,
            write_operations=done,
            flush_operations=flushes,
            read_bytes=done * 4096,
            write_bytes=done * 4096,
        )

    def statistics(self) -> str:
        return ""

    def environment(self) -> Environment:
        return Environment(node=self.node, facts=self.facts, simulated=True)

    def upkeep(self) -> PendingUpdates:
        """Return the facts that changed since the VM was started."""
        changed = {
            name: fact for name, fact in self.facts.items() if fact != self._running.get(name)
        }
        if self.guest is None or not changed:
            return PendingUpdates()
        return PendingUpdates(pending=changed, restart=", ".join(changed))

    def host_environment(self) -> Environment:
        return self.environment()

    def shutdown(self) -> None:
        self._power_off()
        for key in list(self.volumes):
            self._remove(key)

    def _own(self, name: str) -> str:
        return f"{self._instance}{name}"

    def _remove(self, key: str) -> None:
        del self.volumes[key]
        for own in [
            name for name in self._entries if name == key or name.startswith(f"{key}.snap")
        ]:
            self.reality.remove_volume(self._own(own))
            self._journal.close(self._entries.pop(own))

    def _end(self) -> None:
        if self.guest is not None:
            self.guest.alive = False
        self._remove_target()
        entry = self._entries.pop("vm", None)
        if entry is not None:
            self.reality.end_vm(self._own(self.node))
            self._journal.close(entry)

    def _alive(self) -> None:
        if self.guest is None or not self.guest.alive:
            raise HypervisorGone("simulated: QEMU has exited")
        if self.faults.strikes(Fault.QEMU_EXITS):
            self._power_off()
            raise HypervisorGone("simulated: QEMU has exited")


class SimulatedOperation:
    """`model.ports.Operation` that takes a second and does not slow the guest down."""

    bounds = (0.001,)
    look_seconds = 0.1

    def __init__(self, world: SimulatedHypervisor, name: str) -> None:
        self._world = world
        self._copies = name in COPIES
        self._begun: float | None = None

    def prepare(self) -> None:
        if self._copies:
            self._world.make_target()

    def begin(self) -> None:
        self._begun = self._world.clock.monotonic()

    def look(self) -> Progress:
        done = self._world.counters().operations
        begun = self._begun
        ended = begun is not None and self._world.clock.monotonic() >= begun + 1.0
        return Progress(operations=done, latencies=(done, 0), ended=ended)

    def cancel(self) -> None:
        pass


class SimulatedProbe:
    """`model.ports.HostProbe` of a host with a constant load of 50%."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def snapshot(self) -> HostSnapshot:
        """Return counters that grow steadily with simulated time."""
        now = self._clock.monotonic()
        shares = {"total": 1.0, "qemu": 0.8, "vcpu": 0.5, "iothread": 0.1, "other": 0.2}
        return HostSnapshot(
            monotonic=now, cpu_seconds={key: now * share for key, share in shares.items()}, cpus=2
        )


def simulated_site(hypervisor: SimulatedHypervisor) -> Site:
    """Return the site of a simulated node."""
    return Site(
        node=hypervisor.node,
        hypervisor=hypervisor,
        probe=SimulatedProbe(hypervisor.clock),
        clock=hypervisor.clock,
        simulated=True,
        upkeep=hypervisor.upkeep,
        vms=VmFunctions(
            take_snapshots=hypervisor.take_snapshots,
            operate=hypervisor.operate,
            further_vm=hypervisor.further_vm,
        ),
    )


class SimulatedEngine(Engine):
    """`drivers.driver.Engine` of a simulated node."""

    def make_clock(self, *, endless: bool) -> SimulatedClock:
        """Return the simulated clock; for an endless worker it runs at real speed."""
        return SimulatedClock(datetime.now(UTC), pace=1.0 if endless else 0.0)

    def sites(self, settings: SimulatedSettings, place: DriverContext) -> list[Site]:
        seed = settings.simulation.seed
        hypervisor = SimulatedHypervisor(
            node=settings.node, seed=seed, clock=place.clock, journal=place.journal
        )
        return [simulated_site(hypervisor)]

    def undo(self, settings: SimulatedSettings, journal: Journal) -> list[str]:
        return undo_simulated(journal, Reality())


ENGINE: Final = SimulatedEngine()
