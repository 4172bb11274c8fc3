"""A tool that does not end or fails, and the window that is measured."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.linux.host_tools import HostTools
from pvebench.drivers.vm_lifecycle import Power, VmState
from pvebench.errors import GuestTimeout, Interrupted, ToolFailed, ToolStuck
from pvebench.model.guest import Completed
from pvebench.model.run import Outcome, Run
from pvebench.model.volume import BlockCounters, sum_of
from pvebench.runner.measure import (
    MAX_REPORT_BYTES,
    finish_job,
    run_job,
    stuck_tool_report,
    wait_for_end,
    wait_for_io,
)
from pvebench.runner.window import Window
from pvebench.workloads import Job
from pvebench_lab.simulated.simulated_hypervisor import SimulatedGuest, SimulatedProbe
from testing.faulty_node import Fault
from testing.packs import ROOT, write_pack
from testing.simulations import Simulation, simulate

Answer = Callable[[SimulatedGuest], Completed]


def saying(answer: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have simulated guests give `answer` when asked about a pid; return the timeouts they get."""
    plain, timeouts = SimulatedGuest.run, []

    def run(
        guest: SimulatedGuest, argv: list[str], *, stdin: bytes = b"", timeout: float = 30.0
    ) -> Completed:
        if "inflight" not in argv[-2]:
            return plain(guest, argv, stdin=stdin, timeout=timeout)
        timeouts.append(timeout)
        return Completed(0, answer(), b"")

    monkeypatch.setattr(SimulatedGuest, "run", run)
    return timeouts


def hung_run(directory: Path) -> Run:
    simulation = simulate(directory, faults={Fault.TOOL_HANGS: 1.0}, pack=write_pack(directory))
    simulation.worker.run()
    return simulation.recorder.runs[0]


def test_a_run_whose_tool_does_not_end_keeps_what_guest_and_qemu_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = saying(lambda: b"/sys/block/vda/inflight: 0 32\n", monkeypatch)
    run = hung_run(tmp_path)
    assert run.outcome is Outcome.FAILED
    assert "did not end within its deadline" in run.evidence["error"]
    assert "inflight" not in run.evidence["error"]
    assert "/sys/block/vda/inflight: 0 32" in run.evidence["stuck"]
    assert run.evidence["stuck"].count('"write_operations":') == 2
    assert timeouts[0] <= 10.0


def fails(error: Exception) -> Callable[[], bytes]:
    def answer() -> bytes:
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [GuestTimeout("nobody answers"), OSError("broken"), KeyError("x")]
)
def test_a_guest_that_inconclusive_does_not_hide_that_the_tool_did_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    saying(fails(error), monkeypatch)
    run = hung_run(tmp_path)
    assert run.reason == "the tool did not end within its deadline"
    assert f"not available: {type(error).__name__}" in run.evidence["stuck"]
    assert '"write_operations":' in run.evidence["stuck"]


def test_a_wish_to_stop_is_heard_while_the_guest_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying(fails(Interrupted("stop")), monkeypatch)
    with pytest.raises(Interrupted):
        hung_run(tmp_path)


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saying(lambda: "€".encode() * MAX_REPORT_BYTES, monkeypatch)
    kept = hung_run(tmp_path).evidence["stuck"]
    assert MAX_REPORT_BYTES - 3 < len(kept.encode()) <= MAX_REPORT_BYTES


def booted(directory: Path) -> Simulation:
    """Return a simulation whose VM is on, after one step of its worker."""
    simulation = simulate(directory, pack=write_pack(directory), cycles=None)
    simulation.worker.step()
    return simulation


def test_what_a_stopped_program_and_its_children_do_is_read_from_proc(tmp_path: Path) -> None:
    """Asked of this machine, by the very script that the guest runs."""
    site = booted(tmp_path).worker._site
    tools = HostTools()
    pid = tools.start(["/bin/sh", "-c", "sleep 600 & wait"])
    while ": sleep " not in stuck_tool_report(site, tools, pid):
        pass  # the shell has to start it first
    os.kill(pid, signal.SIGSTOP)
    while "T (stopped)" not in (said := stuck_tool_report(site, tools, pid)):
        pass  # the kernel takes its time on a busy machine
    tools.close()
    assert f"\n-- {pid}/task/{pid}: " in said
    assert ": sleep " in said
    assert "== interrupts\n" in said
    assert "== end of the kernel log\n\n==" in said  # this machine's is nobody's business


def test_where_nothing_counts_io_the_tools_start_is_all_that_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = booted(tmp_path).worker._site
    monkeypatch.setattr(site.hypervisor, "counters", lambda: None)
    guest = SimulatedGuest(site.hypervisor)  # type: ignore[arg-type] # it is the world
    begun = site.clock.monotonic()
    assert wait_for_io(site, guest, 1) is None
    assert site.clock.monotonic() == begun
    assert "after the guest's report\nno I/O counters\n" in stuck_tool_report(site, guest, 1)


def test_waiting_for_the_first_io_in_vain_says_the_same(tmp_path: Path) -> None:
    site = booted(tmp_path).worker._site
    guest = SimulatedGuest(site.hypervisor)  # type: ignore[arg-type] # it is the world
    guest._ends = math.inf  # a tool that does nothing, for ever
    disk = Mock()  # nothing of it is read
    site.hypervisor._state = VmState(Power.RUNNING, client=guest, disk=disk)  # type: ignore[attr-defined] # likewise
    with pytest.raises(ToolStuck, match="moved no data") as caught:
        wait_for_io(site, guest, 1)
    assert "QEMU's counters" in caught.value.evidence
    with pytest.raises(ToolStuck, match="did not end") as caught:
        wait_for_end(site, guest, 1, deadline=0.0)
    assert "QEMU's counters" in caught.value.evidence


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("enospc.json", "error=No space left on device"),
        ("missing.json", "fio: file creation disallowed by allow_file_create=0"),
    ],
)
def test_the_reason_is_the_tools_error_and_no_bracket_of_its_json(name: str, error: str) -> None:
    """Witness: outputs of fio in `golden/fio`, whose status is 1 and whose stderr is empty."""
    job = Job(argv=["fio"], files={}, output=str(ROOT / "tests/golden/fio" / name))
    with pytest.raises(ToolFailed) as raised:
        finish_job(HostTools(), job, Completed(1, b"", b""))
    assert raised.value.happened.startswith("fio ended with status 1: fio: ")
    assert raised.value.happened.endswith(error)


STARTUP, RAMP, RUNTIME = 0.7, 2.0, 6.0
PLANNED = RAMP + RUNTIME


def qemu(operations: int, latency: float, idle: float) -> BlockCounters:
    names = ("rd_operations", "wr_operations", "flush_operations", "rd_bytes", "wr_bytes")
    times = {"wr_total_time_ns": round(latency * 1e9), "idle_time_ns": round(idle * 1e9)}
    return BlockCounters.of_qemu({**dict.fromkeys(names, 0), "wr_operations": operations, **times})


class Disk:
    """A disk with a constant rate, except in a stall; times are seconds from the first I/O."""

    def __init__(self, stall: tuple[float, float], ends: float) -> None:
        self.clock, self.stall, self.ends = SimulatedClock(), stall, ends
        self.begun = self.clock.monotonic() + STARTUP

    def counters(self) -> BlockCounters:
        now, (begin, end) = self.clock.monotonic() - self.begun, self.stall
        at = min(max(now, 0.0), self.ends)
        stalled = max(0.0, min(at, end) - begin)
        busy = at - stalled * (at < end)
        done = qemu(round((at - stalled) * 1000), latency=busy, idle=max(0.0, now - self.ends))
        return sum_of([qemu(0, latency=0.0, idle=9.0), done]).since(qemu(0, latency=0.0, idle=0.0))

    def poll(self, _: int) -> Completed | None:
        ends = self.begun + self.ends + 0.3
        return Completed(0, b"", b"") if self.clock.monotonic() >= ends else None

    def measure(self, **window: Any) -> tuple[float, float, float]:
        """Return begin and end of the window, and the time of the I/O."""
        guest = Mock(poll=self.poll, read_file=lambda _: b"", cpu_counters=lambda: "")
        probe, clock = SimulatedProbe(self.clock), self.clock
        site: Any = Mock(clock=clock, hypervisor=self, probe=probe, poll_seconds=0.1, traffic=None)
        times = Window(ramp_seconds=RAMP, runtime_seconds=RUNTIME, **window)
        job = Job(argv=[""], files={}, output="")
        measured = run_job(site, guest, job, times, report=lambda *_: None)
        ends = [mark.host.monotonic - self.begun for mark in (measured.start, measured.end)]
        assert measured.activity.lag < 0.2
        return ends[0], ends[1], measured.activity.samples()[0].value


@pytest.mark.parametrize("stall", [(1.9, 3.5), (1.0, 9.0), (1.999, 2.5)])
def test_a_stall_at_the_end_of_the_ramp_delays_the_window(stall: tuple[float, float]) -> None:
    """As fio behaves while its first flush waits for a server that writes back earlier data."""
    begin, end, _ = Disk(stall, ends=stall[1] + RUNTIME).measure()
    assert (begin, end) == pytest.approx((stall[1], stall[1] + RUNTIME), abs=0.2)


@pytest.mark.parametrize("seconds", [0.3, 1.5, 4.0])
def test_a_slow_first_operation_is_part_of_the_ramp(seconds: float) -> None:
    ends = max(RAMP, seconds) + RUNTIME
    measured = Disk((0.0, seconds), ends).measure()
    assert measured == pytest.approx((ends - RUNTIME, ends, ends), abs=0.2)


def test_the_io_of_a_tool_with_a_fast_clock_ends_early() -> None:
    assert Disk((0.0, 0.0), PLANNED / 1.1).measure()[2] == pytest.approx(PLANNED / 1.1, abs=0.15)


@pytest.mark.parametrize("uncached", [True, False])
def test_a_tool_that_a_cache_in_the_guest_serves_has_the_planned_window(uncached: bool) -> None:
    begin, end, _ = Disk((1.0, PLANNED), ends=PLANNED).measure(uncached=uncached)
    assert (begin, end) == pytest.approx((RAMP, PLANNED), abs=1.1)
