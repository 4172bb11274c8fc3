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
