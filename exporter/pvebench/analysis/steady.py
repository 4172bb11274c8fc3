"""Steady state by the rule of SNIA's Solid State Storage Performance Test Specification.

Only the newest window of per-interval values counts: a cumulative mean would still carry the
first seconds of a cache hours later.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pvebench.model.conduct import SteadyRule


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How steady a series of values is.

    Attributes:
        range_ratio: (maximum - minimum) / mean of the window.
        slope_ratio: change of the fitted line from the first to the last value of the window,
            over the mean; negative: falling.
    """

    range_ratio: float
    slope_ratio: float

    def within(self, rule: SteadyRule) -> bool:
        """Return whether both figures are small enough."""
        return self.range_ratio <= rule.range_ratio and abs(self.slope_ratio) <= rule.slope_ratio


def steadiness(values: Sequence[float]) -> Steadiness | None:
    """Return the steadiness of a whole series; None for fewer than three values or a mean of 0."""
    if len(values) < 3:
        return None
    mean = statistics.fmean(values)
    if mean <= 0:
        return None
    slope = statistics.linear_regression(range(len(values)), values).slope
    excursion = slope * (len(values) - 1)
    return Steadiness((max(values) - min(values)) / mean, excursion / mean)


def is_steady(values: Sequence[float], rule: SteadyRule) -> bool:
    """Return whether the newest window of `values` (one an interval) is steady."""
    if len(values) < rule.window:
        return False
    found = steadiness(values[-rule.window :])
    return found is not None and found.within(rule)
