"""Everything on a host has moved where most of its cases have, not a few of them far."""

from __future__ import annotations

import numpy as np
import pytest

from pvebench.analysis.event_effects import common_of
from pvebench.analysis.group_effects import judge_cases, shifts_at_place

CASES, BEFORE = 8, 60


def groups_of(ratios: list[float], *, after: int, seed: int) -> list[tuple[tuple[str, str], ...]]:
    """Return which groups are told of an event that moved each case of a small host by a ratio."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0.0, 0.03, (CASES, BEFORE + after))
    values[:, BEFORE:] += np.log(ratios)[:, None]
    shared = np.median(values, axis=0)
    known = shifts_at_place((values - shared)[:, :BEFORE], (values - shared)[:, BEFORE:])
    host = common_of(shared, [86400.0 * run for run in range(BEFORE + after)], BEFORE)
    of_node = judge_cases(known, [{}] * CASES, host=host)
    return [found.group for found in of_node.groups if abs(found.effect) >= 0.02]


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
