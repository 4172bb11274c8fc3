"""Simulated node with a VM, its guest and its volumes, and the engine of driver `simulated`.

All of it is in simulated time. Nothing exists outside of this process, so nothing is journaled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.driver import DriverContext, Engine
from pvebench.drivers.vm_lifecycle import VmLifecycle
from pvebench.errors import HypervisorGone
from pvebench.model.disk import Disk, option_text
from pvebench.model.environment import Environment, PendingUpdates
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Clock, HostSnapshot, Progress, Site, VmFunctions
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume
from pvebench_lab.simulated import SimulatedSettings
from pvebench_lab.simulated.simulated_tools import SimulatedDisk, SimulatedOutput, simulate

BOOT_SECONDS: Final = 7.0
SWITCH_SECONDS: Final = 0.5

# --- the guest, with the programs that the runner uses

START_SECONDS: Final = 0.3
"""Duration of a tool's start-up."""
_OPERATIONS_PER_SECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """Running tool with its result, and its start in simulated seconds."""

    played: SimulatedOutput
    begun: float

    @property
    def ends(self) -> float:
        """Its end in simulated seconds."""
        return self.begun + START_SECONDS * self.played.moves_data + self.played.seconds

    def operations(self, now: float, *, per_second: float = _OPERATIONS_PER_SECOND) -> int:
        """Return the operations so far; 0 during the tool's start-up."""
        active = min(now, self.ends) - self.begun - START_SECONDS
        return max(0, round(active * per_second)) if self.played.moves_data else 0


class SimulatedGuest(Guest):
    """`model.ports.Guest` that simulates tools in simulated time."""

    def __init__(self, node: SimulatedHypervisor) -> None:
        self._node = node
        self._files: dict[str, bytes] = {}
        self._ends = 0.0
        self.alive = True
        self.job: SimulatedJob | None = None

    def run(self, argv: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> Completed:
        """Simulate the programs that the runner uses."""
        self._check()
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("test -f "):
            path = argv[2].removeprefix("test -f ")
            return Completed(int(path not in self._files), b"", b"")
        if any("iflag=direct" in word for word in argv):
            return Completed(0, argv[-1].encode(), b"")  # each sampled block has data
        if argv[0] == "/bin/kill" and self.job is not None:
            self._ends = self._node.clock.monotonic()
        return Completed(0, b"", b"")

    def start(self, argv: list[str]) -> int:
        self._check()
        now, disk = self._node.clock.monotonic(), self._disk()
        played = simulate(argv, self._files, disk)
        self.job = SimulatedJob(played, now) if played else None
        self._ends = self.job.ends if self.job else now
        return 1

    def _disk(self) -> SimulatedDisk:
        node = self._node
        if node.plugged is None:
            raise HypervisorGone("simulated: the disk was removed")
        name, disk = node.plugged.name, node.plugged.disk
        return SimulatedDisk(name=name, disk=disk, rng=node.rng, shift=node.shift(disk))

    def poll(self, pid: int) -> Completed | None:
        self._check()
        if self._node.clock.monotonic() < self._ends:
            return None
        return Completed(0, b"", b"")

    def read_file(self, path: str) -> bytes:
        self._check()
        played = self.job.played if self.job else None
        if played is not None and path == played.output:
            return played.text.encode("utf-8")
        if played is not None and path in played.logs:
            return played.logs[path].encode("utf-8")
        return self._files[path]

    def write_file(self, path: str, content: bytes) -> None:
        self._check()
        self._files[path] = content

    def _check(self) -> None:
        if not self.alive:
            raise HypervisorGone("simulated: QEMU has exited")


# --- the node


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

    A change of `facts` is an upgrade, and `shift` (disk -> factor of its IOPS) its effect.
    """

    def __init__(self, *, node: str, seed: int, clock: Clock) -> None:
        super().__init__(clock)
        self.node = node
        self.clock = clock
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
        """Do nothing: `_await_guest` waits for the boot."""

    def _await_guest(self) -> SimulatedGuest:
        self.clock.sleep(max(0.0, self._state.begun + BOOT_SECONDS - self.clock.monotonic()))
        self._running = dict(self.facts)
        return SimulatedGuest(self)

    def _require_usable(self, guest: SimulatedGuest) -> None:
        if not guest.alive:
            raise HypervisorGone("simulated: QEMU has exited")

    def further_vm(self, number: int) -> SimulatedHypervisor:
        """As `VmFunctions.further_vm`."""
        other_hypervisor = SimulatedHypervisor(node=self.node, seed=number, clock=self.clock)
        other_hypervisor.facts, other_hypervisor.shift = self.facts, self.shift
        return other_hypervisor

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        known = self.volumes.get(scenario.volume)
        reusable = known is not None and known.size_bytes == scenario.volume_bytes
        if known is not None and reusable and not known.complete:
            return known, False
        volume = Volume.of(scenario, f"simulated:{scenario.volume}", complete=scenario.disk.backing)
        self.volumes[scenario.volume] = volume
        return volume, True

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """As `VmFunctions.take_snapshots`."""
        del volume, disk
        self.clock.sleep(SWITCH_SECONDS)

    def operate(self, name: str, target_rate: int) -> SimulatedOperation:
        """As `VmFunctions.operate`."""
        del name, target_rate
        return SimulatedOperation(self)

    def _plug(self, plug: Plug) -> PluggedDisk:
        return PluggedDisk(plug.volume, plug.disk)

    def _read_back(self, disk: PluggedDisk, guest: Guest) -> Attachment:
        del guest
        self._alive()
        self.clock.sleep(SWITCH_SECONDS)
        effective = {
            key: option_text(getattr(disk.disk, key)) for key in Disk.__dataclass_fields__
        } | {"size_bytes": str(disk.volume.size_bytes)}
        return Attachment(device="/dev/simulated", effective=effective, raw="simulated")

    def _unplug(self, disk: PluggedDisk) -> None:
        del disk
        self._alive()
        self.clock.sleep(SWITCH_SECONDS)

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
        self.power_off()
        self.volumes.clear()

    def _end(self) -> None:
        if self.guest is not None:
            self.guest.alive = False

    def _alive(self) -> None:
        if self.guest is None or not self.guest.alive:
            raise HypervisorGone("simulated: QEMU has exited")


class SimulatedOperation:
    """`model.ports.Operation` that takes a second and does not slow the guest down."""

    bounds = (0.001,)
    look_seconds = 0.1

    def __init__(self, world: SimulatedHypervisor) -> None:
        self._world = world
        self._begun: float | None = None

    def prepare(self) -> None:
        pass

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
        return [
            simulated_site(SimulatedHypervisor(node=settings.node, seed=seed, clock=place.clock))
        ]


ENGINE: Final = SimulatedEngine()
