"""Difference of two configurations over several workloads, with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pvebench.analysis.arrays import np
from pvebench.analysis.difference import CHANCE, difference


@dataclass(frozen=True, slots=True)
class JointDifference:
    """Mean change over workloads: 0.1 is 10% more; low and high: its confidence interval."""

    ratio: float
    low: float
    high: float


def joint_difference(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    levels: Sequence[tuple[float, float]],
    *,
    chance: float = CHANCE,
) -> JointDifference:
    """Return the difference of `after` to `before`, the geometric mean over workloads.

    Args:
        pairs: (before, after) per workload: positive results, at least two each.
        levels: (before, after) per workload: the current values that outputs show. The ratio is
            that of these; the interval, which is one of means, is widened to contain it.
        chance: probability that the interval misses; lower for several comparisons.
    """
    found = [
        difference(np.log(np.asarray(before)), np.log(np.asarray(after)), chance=chance)
        for before, after in pairs
    ]
    middle = sum(one.effect for one in found) / len(found)
    reach = math.sqrt(sum(((one.high - one.low) / 2) ** 2 for one in found)) / len(found)
    effect = sum(math.log(after / before) for before, after in levels) / len(levels)
    low, high = min(effect, middle - reach), max(effect, middle + reach)
    return JointDifference(math.expm1(effect), math.expm1(low), math.expm1(high))
