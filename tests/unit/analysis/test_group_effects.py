"""Everything on a host has moved where most of its cases have, not a few of them far."""

from __future__ import annotations

import numpy as np
import pytest

from pvebench.analysis.event_effects import common_of
from pvebench.analysis.group_effects import shift_of_cases
from pvebench.analysis.placebos import Past
from testing.answers import material
from testing.noise import Series

CASES, BEFORE = 8, 60


def groups_of(ratios: list[float], *, after: int, seed: int) -> list[tuple[tuple[str, str], ...]]:
    """Return which groups are told of an event that moved each case of a small host by a ratio."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0.0, 0.03, (CASES, BEFORE + after))
    values[:, BEFORE:] += np.log(ratios)[:, None]
    shared = np.median(values, axis=0)
    times = np.arange(BEFORE + after) * 86400.0
    histories = material([Series(times, row) for row in values], CASES * [{}]).histories
    own = values - shared
    known = Past(own[:, :BEFORE]).at(own[:, BEFORE:], np.full(CASES, after))
    host = common_of(shared, times.tolist(), BEFORE)
    steps = shift_of_cases(known, histories, times[BEFORE], host=host).values()
    return sorted({step.group.labels for step in steps if step.group})


def told(ratios: list[float], *, after: int) -> int:
    """Return on how many of sixty hosts everything is told to have moved."""
    return sum(groups_of(ratios, after=after, seed=seed) == [()] for seed in range(60))


@pytest.mark.parametrize("after", [1, 3, 8])
def test_two_of_eight_cases_that_lost_much_are_not_everything(after: int) -> None:
    assert told([0.6, 0.7, *6 * [1.0]], after=after) <= 2


def test_half_of_the_cases_are_not_everything() -> None:
    assert told([*4 * [0.9], *4 * [1.0]], after=8) <= 2


@pytest.mark.parametrize("after", [1, 3, 8])
def test_what_costs_every_case_a_tenth_is_everything(after: int) -> None:
    assert told(CASES * [0.9], after=after) >= 58
