"""The measured window is that of the tool, even if the storage stalls at the start."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.model.guest import Completed
from pvebench.model.volume import BlockCounters, sum_of
from pvebench.runner.measure import run_job
from pvebench.runner.window import Window
from pvebench.workloads import Job
from pvebench_lab.simulated.simulated_hypervisor import SimulatedProbe

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
