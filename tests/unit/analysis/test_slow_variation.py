"""Slow variation of a case without an event is no change."""

from __future__ import annotations

from testing.answers import ask
from testing.noise import stream, unchanged


def test_a_step_within_the_slow_variation_of_a_case_is_no_change() -> None:
    quiet = [unchanged("slow wander", stream(1, "slow wander", n)) for n in range(20)]
    assert sum(ask(one).red for one in quiet) <= 1
    swing, steady = (unchanged(kind, stream(3, kind), 240, 8) for kind in ("slow wander", "AR(1)"))
    assert not ask(swing).red
    assert ask(swing.changed(180, 0.7)).red
    assert ask(steady.changed(180, 0.93)).red


def test_a_wandering_level_is_not_two_levels() -> None:
    series = unchanged("slow wander", stream(6, "slow wander", 10))
    assert not ask(series).red


def test_switches_between_two_levels_with_short_stays_are_no_changes() -> None:
    series = unchanged("independent", stream(7, "switches", 1), 226, 8)
    for number, place in enumerate((17, 53, 61, 94, 110, 169, 175, 199, 214)):
        series = series.changed(place, 0.8 if number % 2 else 1.25)
    assert not ask(series).changes
    assert ask(series.changed(216, 0.5)).red
