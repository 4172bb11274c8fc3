"""States of a VM and its disk that all drivers share, with a backend whose steps are recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.vm_lifecycle import GUEST_SYSTEMS, GuestSystem, Power, VmLifecycle
from pvebench.errors import (
    Busy,
    GuestTimeout,
    HypervisorGone,
    NeverBooted,
    PvebenchError,
    SwitchFailed,
)
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.guest import Guest
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench.model.volume import Attachment, Plug, Volume

MACHINE = Machine(memory_bytes=512 * MIB, cpus=1)
DISK = Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE)
COLD = replace(DISK, bus=Bus.SATA)
VOLUME = Volume(storage="local", volid="v", format="raw", size_bytes=1)


@dataclass
class Plugged:
    plug: Plug
    name: str = "scsi1"


class RecordedVm(VmLifecycle[Guest, Plugged]):
    """VM whose steps are recorded, and of which one may fail."""

    def __init__(self) -> None:
        super().__init__(SimulatedClock())
        self.steps: list[str] = []
        self.fault: tuple[str, PvebenchError] | None = None

    @property
    def power(self) -> Power:
        return self._state.power

    def prepare(self) -> None:
        self._set_up(MACHINE)

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if self.fault is not None and self.fault[0] == name:
            _, error = self.fault
            self.fault = None
            raise error

    def _configure(self, machine: Machine, cold: Plug | None) -> Plugged | None:
        self._step("configure")
        return Plugged(cold) if cold else None

    def _begin_start(self, machine: Machine) -> None:
        self._step("start")

    def _await_guest(self) -> Guest:
        self._step("await")
        self._clock.sleep(3.0)
        return cast(Guest, object())

    def _require_usable(self, guest: Guest) -> None:
        self._step("ping")

    def _end(self) -> None:
        self._step("end")

    def _plug(self, plug: Plug) -> Plugged:
        self._step("plug")
        return Plugged(plug)

    def _unplug(self, disk: Plugged) -> None:
        self._step("unplug")

    def _read_back(self, disk: Plugged, guest: Guest) -> Attachment:
        self._step("read back")
        return Attachment(device="/dev/x", effective={})

    def seen(self) -> list[str]:
        """Return the steps since the last call."""
        steps, self.steps = self.steps, []
        return steps


@pytest.fixture
def vm() -> RecordedVm:
    return RecordedVm()


def test_a_running_vm_is_reused_and_restarted_for_other_options(vm: RecordedVm) -> None:
    guest = vm.boot(MACHINE)
    assert (vm.seen(), vm.boot_seconds) == (["end", "configure", "start", "await"], 3.0)
    assert vm.boot(MACHINE) is guest
    assert vm.seen() == ["ping"]
    assert vm.boot(replace(MACHINE, cpus=2)) is not guest
    assert vm.seen() == ["end", "configure", "start", "await"]


@pytest.mark.parametrize("step", ["end", "configure", "start", "await"])
def test_after_a_failed_restart_the_next_boot_starts_from_power_off(
    vm: RecordedVm, step: str
) -> None:
    first = vm.boot(MACHINE)
    vm.fault = step, GuestTimeout("late")
    with pytest.raises(GuestTimeout, match="late"):
        vm.boot(replace(MACHINE, cpus=2))
    vm.seen()
    assert vm.boot(MACHINE) is not first
    assert (vm.seen(), vm.power) == (["end", "configure", "start", "await"], Power.RUNNING)


def test_a_silent_guest_is_restarted(vm: RecordedVm) -> None:
    first = vm.boot(MACHINE)
    vm.fault = "ping", GuestTimeout("silent")
    assert vm.boot(MACHINE) is not first


def test_a_launched_vm_is_awaited_and_a_silent_one_restarted(vm: RecordedVm) -> None:
    with pytest.raises(SwitchFailed, match="VM not prepared"):
        vm.launch(MACHINE)
    vm.prepare()
    vm.launch(MACHINE)
    assert (vm.seen(), vm.power) == (["end", "configure", "start"], Power.STARTING)
    vm.fault = "await", GuestTimeout("silent")
    with pytest.raises(GuestTimeout):
        vm.boot(MACHINE)
    assert (vm.seen(), vm.power) == (["await"], Power.BROKEN)
    vm.boot(MACHINE)
    assert vm.seen() == ["end", "configure", "start", "await"]


def test_a_guest_of_another_system_that_never_answers_is_not_awaited_again(
    vm: RecordedVm, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = GuestSystem(
        guest=lambda client, *_: client, min_memory=1, boot_seconds=1, if_silent="boot it by hand"
    )
    monkeypatch.setitem(GUEST_SYSTEMS._objects, "other", system)
    vm.fault = "await", GuestTimeout("silent")
    with pytest.raises(NeverBooted, match="silent") as caught:
        vm.boot(replace(MACHINE, os="other"))
    assert (caught.value.next_step, caught.value.retryable) == ("boot it by hand", False)


def test_a_disk_is_replaced_while_the_vm_runs(vm: RecordedVm) -> None:
    vm.boot(MACHINE)
    vm.attach(VOLUME, DISK)
    vm.seen()
    vm.attach(VOLUME, replace(DISK, cache=Cache.WRITEBACK))
    assert vm.seen() == ["unplug", "plug", "read back"]
    vm.detach()
    vm.detach()
    assert (vm.seen(), vm.power) == (["unplug"], Power.RUNNING)


def test_a_cold_disk_is_only_read_back_and_ends_with_the_vm(vm: RecordedVm) -> None:
    vm.boot(MACHINE, Plug(VOLUME, COLD))
    vm.seen()
    vm.attach(VOLUME, COLD)
    vm.detach()
    assert (vm.seen(), vm.power) == (["read back", "end"], Power.OFF)
    with pytest.raises(SwitchFailed, match="disk missing after power-on"):
        vm.attach(VOLUME, COLD)


@pytest.mark.parametrize("step", ["plug", "read back", "unplug"])
def test_after_a_failed_switch_the_vm_is_restarted(vm: RecordedVm, step: str) -> None:
    guest = vm.boot(MACHINE)
    if step == "unplug":
        vm.attach(VOLUME, DISK)
    vm.fault = step, HypervisorGone("QEMU exited", cause="it was killed")
    what = "could not attach v as scsi, cache=none, aio=io_uring: QEMU exited"
    with pytest.raises(SwitchFailed) as failed:
        vm.attach(VOLUME, DISK)
    assert failed.value.happened.startswith(what.rpartition(": ")[0])
    assert failed.value.cause == "it was killed"
    assert vm.power is Power.BROKEN
    vm.detach()
    assert vm.boot(MACHINE) is not guest


def test_a_locked_vm_was_not_changed_and_stays_in_use(vm: RecordedVm) -> None:
    guest = vm.boot(MACHINE)
    vm.fault = "plug", Busy("VM locked")
    with pytest.raises(Busy):
        vm.attach(VOLUME, DISK)
    assert vm.boot(MACHINE) is guest


def test_a_vm_that_does_not_end_is_not_used_again(vm: RecordedVm) -> None:
    guest = vm.boot(MACHINE)
    vm.attach(VOLUME, DISK)
    vm.fault = "end", HypervisorGone("does not end")
    with pytest.raises(HypervisorGone):
        vm.boot(replace(MACHINE, cpus=2))
    assert vm.boot(MACHINE) is not guest
