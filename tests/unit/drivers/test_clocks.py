"""Waits in simulated time."""

from __future__ import annotations

from pvebench.drivers.clocks import SimulatedClock, attempts


def test_attempts_come_after_each_pause_and_once_when_the_time_is_over() -> None:
    clock = SimulatedClock()
    assert [clock.monotonic() for _ in attempts(clock, seconds=3.0, pause=1.0)] == [0, 1, 2, 3, 4]
    assert len([*attempts(clock, seconds=0.0, pause=1.0)]) == 2


def test_pauses_between_attempts_grow_by_half_up_to_the_longest() -> None:
    clock = SimulatedClock()
    times = [clock.monotonic() for _ in attempts(clock, seconds=9.0, pause=2.0, longest=4.0)]
    assert times == [0, 2, 5, 9, 13]
