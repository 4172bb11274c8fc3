"""Runs that a case needs before an upgrade, so that a change of a given size is significant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pvebench.analysis.arrays import np
from pvebench.analysis.difference import critical, difference

LEAST_RUNS: Final = 7
"""Minimum runs on each side of the upgrade."""
MOST_RUNS: Final = 500
"""Beyond so many runs on each side, more runs are no practical way to the answer."""


def runs_needed(values: Sequence[float], size: float) -> int | None:
    """Return the runs on each side of an upgrade that make a change of `size` significant.

    Args:
        values: positive results of one environment, oldest first; at least four.
        size: relative change, 0.1 for 10%.

    Returns:
        None: more than MOST_RUNS.
    """
    logs = np.log(np.asarray(values, dtype=np.float64))
    half = len(logs) // 2
    spread = difference(logs[:half], logs[half:]).spread
    for runs in range(LEAST_RUNS, MOST_RUNS + 1):
        if _reach(spread, runs) <= math.log1p(size):
            return runs
    return None


def detectable(values: Sequence[float], runs: int) -> float:
    """Return the smallest relative change that so many runs on each side make significant."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    half = len(logs) // 2
    return math.expm1(_reach(difference(logs[:half], logs[half:]).spread, runs))


def _reach(spread: float, runs: int) -> float:
    """Return half of the width of the 95% CI of a difference, as a logarithm."""
    return float(spread * math.sqrt(2 / runs) * critical(0.05, 2 * runs - 2))
