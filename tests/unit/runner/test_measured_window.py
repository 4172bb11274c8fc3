"""The measured window is that of the tool, even if the storage stalls at the start."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.model.guest import Completed
from pvebench.model.volume import BlockCounters
from pvebench.runner.measure import Measured, run_job
from pvebench.runner.window import Window
from pvebench.workloads import Job
from pvebench_lab.simulated.simulated_hypervisor import SimulatedProbe

RATE = 1000
STARTUP = 0.7
"""Seconds from the tool's start to its first I/O."""
RAMP, RUNTIME = 2.0, 6.0


class Disk:
    """A disk with a constant rate, except in a stall; times are seconds from the first I/O."""

    def __init__(self, stall: tuple[float, float], ends: float) -> None:
        self.clock, self.stall, self.ends = SimulatedClock(), stall, ends
        self.begun = self.clock.monotonic() + STARTUP

    def counters(self) -> BlockCounters:
        now = self.clock.monotonic() - self.begun
        at = min(max(now, 0.0), self.ends)
        stalled = max(0.0, min(at, self.stall[1]) - self.stall[0])
        done = round((at - stalled) * RATE)
        return BlockCounters(
            read_operations=0,
            write_operations=done,
            flush_operations=0,
            read_bytes=0,
            write_bytes=done * 4096,
            latency_seconds=done / RATE + stalled * (at >= self.stall[1]),
            idle_seconds=max(0.0, now - self.ends),
        )

    def poll(self, _: int) -> Completed | None:
        over = self.clock.monotonic() >= self.begun + self.ends + 0.3
        return Completed(0, b"", b"") if over else None

    def measure(self, **window: Any) -> Measured:
        guest = Mock(poll=self.poll, read_file=lambda _: b"", cpu_counters=lambda: "")
        probe = SimulatedProbe(self.clock)
        site: Any = Mock(
            clock=self.clock, hypervisor=self, probe=probe, poll_seconds=0.1, traffic=None
        )
        times = Window(ramp_seconds=RAMP, runtime_seconds=RUNTIME, **window)
        job = Job(argv=["fio"], files={}, output="")
        return run_job(site, guest, job, times, report=lambda *_: None)


def begin_and_end(disk: Disk, measured: Measured) -> tuple[float, float]:
    return measured.start.host.monotonic - disk.begun, measured.end.host.monotonic - disk.begun


@pytest.mark.parametrize("stall", [(1.9, 3.5), (1.0, 9.0), (1.999, 2.5)])
def test_a_stall_at_the_end_of_the_ramp_is_not_part_of_the_window(
    stall: tuple[float, float],
) -> None:
    """As fio behaves while its first flush waits for a server that writes back earlier data."""
    disk = Disk(stall, ends=stall[1] + RUNTIME)
    measured = disk.measure()
    assert begin_and_end(disk, measured) == pytest.approx((stall[1], disk.ends), abs=0.2)
    assert measured.activity.lag < 0.2


@pytest.mark.parametrize("seconds", [0.3, 1.5, 4.0])
def test_a_slow_first_operation_is_part_of_the_ramp(seconds: float) -> None:
    """As on a disk that spins up."""
    begins = max(RAMP, seconds)
    disk = Disk((0.0, seconds), ends=begins + RUNTIME)
    measured = disk.measure()
    assert begin_and_end(disk, measured) == pytest.approx((begins, disk.ends), abs=0.2)
    io_time = measured.activity.samples()[0].value
    assert io_time == pytest.approx(disk.ends, abs=0.2)


def test_the_io_of_a_tool_with_a_fast_clock_ends_early() -> None:
    measured = Disk((0.0, 0.0), ends=(RAMP + RUNTIME) / 1.1).measure()
    assert measured.activity.samples()[0].value == pytest.approx(8.0 / 1.1, abs=0.15)


@pytest.mark.parametrize("uncached", [True, False])
def test_a_tool_that_a_cache_in_the_guest_serves_has_the_planned_window(uncached: bool) -> None:
    disk = Disk((1.0, RAMP + RUNTIME), ends=RAMP + RUNTIME)
    measured = disk.measure(uncached=uncached)
    begins, ends = begin_and_end(disk, measured)
    assert (begins, ends) == pytest.approx((RAMP, RAMP + RUNTIME), abs=1.1 if uncached else 0.2)
