"""A simulated VM and its volumes, as the port of hypervisors wants them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pvebench.drivers.simulated.clock import SimulatedClock
from pvebench.drivers.simulated.faults import Fault, Faults
from pvebench.drivers.simulated.guest import SimulatedGuest
from pvebench.drivers.simulated.numbers import flushes_per_second
from pvebench.drivers.simulated.reality import VM_KIND, VOLUME_KIND, Reality
from pvebench.errors import GuestSilent, HypervisorGone, SwitchFailed
from pvebench.model.disk import Cache, Disk, option_text
from pvebench.model.environment import Environment, Upkeep
from pvebench.model.ports import Guest, Journal
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, BlockCounters, Plug, Volume

BOOT_SECONDS: Final = 7.0
SWITCH_SECONDS: Final = 0.5


@dataclass(slots=True)
class Plugged:
    """The attached disk."""

    volume: Volume
    disk: Disk

    @property
    def name(self) -> str:
        """What distinguishes this disk from others."""
        return f"{self.volume.volid} {self.disk.bus} {self.disk.cache}"


class World:
    """`model.ports.Hypervisor` of a simulated node.

    Changing `facts` is an upgrade, and `shift` (disk -> factor of its IOPS) what it costs.
    """

    def __init__(
        self, *, node: str, seed: int, clock: SimulatedClock, journal: Journal,
        faults: Faults | None = None, reality: Reality | None = None,
    ) -> None:  # fmt: skip
        self.node = node
        self.reality = reality or Reality()
        self.clock = clock
        self.faults = faults or Faults(seed)
        self.rng = random.Random(f"numbers/{seed}/{node}")  # noqa: S311 # not for secrets
        self._running: dict[str, str] = {}
        self.facts = {
            "kernel": "simulated-1", "qemu": "simulated-1", "accel": "simulated",
            "fio": "simulated",
        }  # fmt: skip
        self.shift: Callable[[Disk], float] = lambda _: 1.0
        self.plugged: Plugged | None = None
        self.guest: SimulatedGuest | None = None
        self.volumes: dict[str, Volume] = {}
        self._entries: dict[str, int] = {}
        self._journal = journal
        self._machine: Machine | None = None
        self._cold: Plug | None = None
        self.boot_seconds = 0.0

    def boot(self, machine: Machine, cold: Plug | None = None) -> Guest:
        """Return the guest. See the port."""
        same = (machine, cold) == (self._machine, self._cold)
        if self.guest is not None and self.guest.alive and same:
            return self.guest
        self._end_vm()
        begun = self.clock.monotonic()
        self._entries["vm"] = self._journal.open(VM_KIND, {"name": self.node})
        self.reality.start_vm(self.node)
        self.clock.sleep(BOOT_SECONDS)
        if self.faults.strikes(Fault.BOOT_HANGS):
            self._end_vm()
            raise GuestSilent("simulated: the guest's agent does not answer")
        self.guest, self._machine, self._cold = SimulatedGuest(self), machine, cold
        self._running = dict(self.facts)
        self.boot_seconds = self.clock.monotonic() - begun
        return self.guest

    def power_off(self) -> None:
        """End the VM. See the port."""
        self._end_vm()

    def volume(self, scenario: Scenario) -> tuple[Volume, bool]:
        """Return the volume and whether it is new. See the port."""
        known = self.volumes.get(scenario.volume)
        reusable = known is not None and known.size_bytes == scenario.volume_bytes
        if known is not None and reusable and not known.complete:
            return known, False
        if known is not None:
            self._remove(scenario.volume)
        entry = self._journal.open(VOLUME_KIND, {"name": scenario.volume})
        self.reality.make_volume(scenario.volume)
        volume = Volume(
            storage=scenario.storage, volid=f"simulated:{scenario.volume}",
            format=str(scenario.disk.format), size_bytes=scenario.volume_bytes,
            complete=scenario.disk.backing,
        )  # fmt: skip
        self.volumes[scenario.volume] = volume
        self._entries[scenario.volume] = entry
        return volume, True

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        """Plug the disk. See the port."""
        self._alive()
        self.clock.sleep(SWITCH_SECONDS)
        if self.faults.strikes(Fault.ATTACH_FAILS):
            self._end_vm()
            raise SwitchFailed("simulated: hot-plug failed")
        self.plugged = Plugged(volume, disk)
        effective = {key: option_text(getattr(disk, key)) for key in Disk.__dataclass_fields__} | {
            "size_bytes": str(volume.size_bytes)
        }
        if self.faults.strikes(Fault.WRONG_CACHE):
            effective["cache"] = str(next(cache for cache in Cache if cache is not disk.cache))
        return Attachment(device="/dev/simulated", effective=effective, raw="simulated")

    def detach(self) -> None:
        """Unplug the disk. See the port."""
        if self.plugged is None:
            return
        if self.plugged.disk.cold or self.guest is None or not self.guest.alive:
            self._end_vm()
            return
        self._alive()
        self.clock.sleep(SWITCH_SECONDS)
        if self.faults.strikes(Fault.DETACH_FAILS):
            self._end_vm()
            raise SwitchFailed("simulated: the guest keeps the disk")
        self.plugged = None

    def drop_caches(self, volume: Volume) -> int | None:
        """Nothing is cached. See the port."""
        return 0

    def counters(self) -> BlockCounters:
        """Return counters that grow while a job runs. See the port."""
        self._alive()
        job = self.guest.job if self.guest else None
        now = self.clock.monotonic()
        done = job.operations(now) if job else 0
        flushes = 0
        if job and self.plugged:
            rate = flushes_per_second(self.plugged.disk, job.workload)
            flushes = job.operations(now, per_second=rate)
        return BlockCounters(
            read_operations=done, write_operations=done, flush_operations=flushes,
            read_bytes=done * 4096, write_bytes=done * 4096,
        )  # fmt: skip

    def environment(self) -> Environment:
        """Return what the simulation says of itself. See the port."""
        return Environment(node=self.node, facts=self.facts, simulated=True)

    def upkeep(self) -> Upkeep:
        """Return which facts were changed since the VM was started. See the port."""
        changed = {
            name: fact for name, fact in self.facts.items() if fact != self._running.get(name)
        }
        if self.guest is None or not changed:
            return Upkeep()
        return Upkeep(pending=changed, restart=", ".join(changed))

    def host_environment(self) -> Environment:
        """The same: nothing is behind it. See the port."""
        return self.environment()

    def shutdown(self) -> None:
        """Leave nothing. See the port."""
        self._end_vm()
        for key in list(self.volumes):
            self._remove(key)

    def _remove(self, key: str) -> None:
        del self.volumes[key]
        self.reality.remove_volume(key)
        self._journal.close(self._entries.pop(key))

    def _end_vm(self) -> None:
        if self.guest is not None:
            self.guest.alive = False
        self.guest = self.plugged = None
        entry = self._entries.pop("vm", None)
        if entry is not None:
            self.reality.end_vm(self.node)
            self._journal.close(entry)

    def _alive(self) -> None:
        if self.guest is None or not self.guest.alive:
            raise HypervisorGone("simulated: QEMU has exited")
        if self.faults.strikes(Fault.QEMU_EXITS):
            self._end_vm()
            raise HypervisorGone("simulated: QEMU has exited")
