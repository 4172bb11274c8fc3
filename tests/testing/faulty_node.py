"""A simulated node with an outside that survives its process, a journal, and faults.

The simulations kill its process at any moment and look at what is left outside.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from pvebench.errors import GuestTimeout, HypervisorGone, SwitchFailed
from pvebench.model.disk import Cache, ChainKind, Disk
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import Clock, Journal
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.volume import Attachment, Volume
from pvebench.model.workload import COPIES
from pvebench_lab.simulated.simulated_hypervisor import (
    PluggedDisk,
    SimulatedGuest,
    SimulatedHypervisor,
    SimulatedOperation,
)

VM_KIND: Final = "simulated-vm"
VOLUME_KIND: Final = "simulated-volume"
"""Kinds of the journal entries of a faulty node."""
_TARGET: Final = "operation-target"


def _nothing() -> None:
    pass


class Reality:
    """Existing VMs and volumes.

    Args:
        moment: called before and after every change; a test may end the process there.
    """

    def __init__(self, moment: Callable[[], None] = _nothing) -> None:
        self.vms: set[str] = set()
        self.unmarked: set[str] = set()
        """VMs whose creation, a task of the node, has not reached their ownership marker."""
        self.volumes: set[str] = set()
        self.moment = moment

    def start_vm(self, name: str) -> None:
        """Add a VM: first without its marker, as Proxmox does."""
        self._change(lambda: self.unmarked.add(name))
        self.await_vm(name)
        self.moment()

    def await_vm(self, name: str) -> None:
        """Wait for the end of the creation of a VM, if it is being created."""
        if name in self.unmarked:
            self.unmarked.discard(name)
            self.vms.add(name)

    def end_vm(self, name: str) -> None:
        """End a VM, if it exists."""
        self._change(lambda: self.vms.discard(name))

    def make_volume(self, name: str) -> None:
        """Add a volume."""
        self._change(lambda: self.volumes.add(name))

    def remove_volume(self, name: str) -> None:
        """Remove a volume, if it exists."""
        self._change(lambda: self.volumes.discard(name))

    def _change(self, change: Callable[[], None]) -> None:
        self.moment()
        change()
        self.moment()


def undo_simulated(journal: Journal, reality: Reality) -> list[str]:
    """Undo every open change of a faulty node; return a line about each."""
    lines = []

    def end_vm(name: str) -> None:
        reality.await_vm(name)
        reality.end_vm(name)

    undo = {VM_KIND: end_vm, VOLUME_KIND: reality.remove_volume}
    for number, kind, details in journal.pending():
        if kind in undo and "name" in details:
            undo[kind](details["name"])
            journal.close(number)
            lines.append(f"removed {kind} {details['name']}")
    return lines


class Fault(StrEnum):
    """Fault that has been observed with a real driver."""

    BOOT_HANGS = "boot_hangs"
    ATTACH_FAILS = "attach_fails"
    WRONG_CACHE = "wrong_cache"
    QEMU_EXITS = "qemu_exits"
    TOOL_FAILS = "tool_fails"
    GUEST_HANGS = "guest_hangs"
    OUTPUT_TRUNCATED = "output_truncated"
    DETACH_FAILS = "detach_fails"
    TOOL_HANGS = "tool_hangs"


class Faults:
    """Random faults, determined by a seed.

    Args:
        rates: fault -> probability at each opportunity, 0 to 1.
    """

    def __init__(self, seed: int, rates: Mapping[Fault, float] | None = None) -> None:
        self._random = random.Random(f"faults/{seed}")
        self._rates = dict(rates or {})

    def strikes(self, fault: Fault) -> bool:
        """Return whether `fault` happens now."""
        rate = self._rates.get(fault, 0.0)
        return rate > 0 and self._random.random() < rate


class FaultyGuest(SimulatedGuest):
    """Guest of a node with `faults`."""

    def __init__(self, node: Any) -> None:
        super().__init__(node)
        self._faulty: FaultyHypervisor = node

    def poll(self, pid: int) -> Completed | None:
        ended = super().poll(pid)
        if ended is None:
            return None
        if self._faulty.faults.strikes(Fault.TOOL_HANGS):
            self._ends = math.inf  # it hangs without I/O
            return None
        if self._faulty.faults.strikes(Fault.TOOL_FAILS):
            return Completed(1, b"", b"simulated: the tool failed")
        return ended

    def read_file(self, path: str) -> bytes:
        content = super().read_file(path)
        of_tool = self.job is not None and path == self.job.played.output
        truncated = of_tool and self._faulty.faults.strikes(Fault.OUTPUT_TRUNCATED)
        return content[: len(content) // 2] if truncated else content

    def _check(self) -> None:
        super()._check()
        if self._faulty.faults.strikes(Fault.GUEST_HANGS):
            self.alive = False
            self._faulty.clock.sleep(15.0)
            raise GuestTimeout("simulated: no response of the guest agent")


class FaultyHypervisor(SimulatedHypervisor):
    """A simulated node whose VMs and volumes exist in `reality` and are journaled.

    Args:
        instance: prefix of the names of its VMs and volumes.
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
        super().__init__(node=node, seed=seed, clock=clock)
        self._instance = instance
        self.reality = reality or Reality()
        self.faults = faults or Faults(seed)
        self._entries: dict[str, int] = {}
        self._journal = journal

    def _begin_start(self, machine: Machine) -> None:
        del machine
        self._entries["vm"] = self._journal.open(VM_KIND, {"name": self._own(self.node)})
        self.reality.start_vm(self._own(self.node))

    def _await_guest(self) -> SimulatedGuest:
        super()._await_guest()
        if self.faults.strikes(Fault.BOOT_HANGS):
            self.power_off()
            raise GuestTimeout("simulated: no response of the guest agent")
        return FaultyGuest(self)

    def further_vm(self, number: int) -> SimulatedHypervisor:
        other_hypervisor = FaultyHypervisor(
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
        volume, is_new = super().volume(scenario)
        if is_new:
            self._remove(scenario.volume)  # of another size, or its snapshots
            self._make(scenario.volume)
            self.volumes[scenario.volume] = volume
        return volume, is_new

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        """Add a volume for each overlay."""
        name = volume.volid.partition(":")[2]
        overlays = disk.chain if disk.chain_kind is ChainKind.VOLUME else 0
        for number in range(overlays):
            self._make(f"{name}.snap{number + 1}")
        super().take_snapshots(volume, disk)

    def operate(self, name: str, target_rate: int) -> SimulatedOperation:
        del target_rate
        return FaultyOperation(self, name)

    def make_target(self) -> None:
        """Create the volume that an operation copies to; it ends with the attachment."""
        self._make(_TARGET)

    def _make(self, key: str) -> None:
        if key not in self._entries:
            self._entries[key] = self._journal.open(VOLUME_KIND, {"name": self._own(key)})
        self.reality.make_volume(self._own(key))

    def _remove_target(self) -> None:
        if _TARGET in self._entries:
            self.reality.remove_volume(self._own(_TARGET))
            self._journal.close(self._entries.pop(_TARGET))

    def _read_back(self, disk: PluggedDisk, guest: Guest) -> Attachment:
        attachment = super()._read_back(disk, guest)
        if self.faults.strikes(Fault.ATTACH_FAILS):
            self.power_off()
            raise SwitchFailed("simulated: hot-plug failed")
        if self.faults.strikes(Fault.WRONG_CACHE):
            cache = next(cache for cache in Cache if cache is not disk.disk.cache)
            disk.disk = replace(disk.disk, cache=cache)
            return replace(attachment, effective={**attachment.effective, "cache": str(cache)})
        return attachment

    def _unplug(self, disk: PluggedDisk) -> None:
        if self.guest is None or not self.guest.alive:
            self.power_off()
            return
        super()._unplug(disk)
        if self.faults.strikes(Fault.DETACH_FAILS):
            self.power_off()
            raise SwitchFailed("simulated: the guest does not release the disk")
        self._remove_target()

    def shutdown(self) -> None:
        self.power_off()
        for key in list(self.volumes):
            self._remove(key)

    def _own(self, name: str) -> str:
        return f"{self._instance}{name}"

    def _remove(self, key: str) -> None:
        del self.volumes[key]
        for name in [
            entry for entry in self._entries if entry == key or entry.startswith(f"{key}.snap")
        ]:
            self.reality.remove_volume(self._own(name))
            self._journal.close(self._entries.pop(name))

    def _end(self) -> None:
        super()._end()
        self._remove_target()
        entry = self._entries.pop("vm", None)
        if entry is not None:
            self.reality.end_vm(self._own(self.node))
            self._journal.close(entry)

    def _alive(self) -> None:
        super()._alive()
        if self.faults.strikes(Fault.QEMU_EXITS):
            self.power_off()
            raise HypervisorGone("simulated: QEMU has exited")


class FaultyOperation(SimulatedOperation):
    """Operation that copies to a volume of its own."""

    def __init__(self, world: FaultyHypervisor, name: str) -> None:
        super().__init__(world)
        self._faulty, self._copies = world, name in COPIES

    def prepare(self) -> None:
        if self._copies:
            self._faulty.make_target()
