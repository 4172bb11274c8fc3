"""Runs that a case needs before an upgrade, so that a change of a given size is significant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pvebench.analysis.arrays import np
from pvebench.analysis.difference import Difference, difference

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
    apart, least = _halves(values), math.log1p(size)
    enough = (n for n in range(LEAST_RUNS, MOST_RUNS + 1) if apart.reach(n, n) <= least)
    return next(enough, None)


def detectable(values: Sequence[float], runs: int) -> float:
    """Return the smallest relative change that so many runs on each side make significant."""
    return math.expm1(_halves(values).reach(runs, runs))


def _halves(values: Sequence[float]) -> Difference:
    logs = np.log(np.asarray(values, dtype=np.float64))
    return difference(logs[: len(logs) // 2], logs[len(logs) // 2 :])
