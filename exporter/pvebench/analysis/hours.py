"""Like with like: what an hour of the day does to a case, learnt from its own earlier runs.

Working days and the weekend have hours of their own. An effect counts as far as the runs of that
hour agree; where they do not, or are too few, nothing is taken off.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pvebench.analysis.levels.robust import Matrix

    Hours = NDArray[np.int_]

HOUR: Final = 3600.0
DAY: Final = 86400.0
WEEK: Final = 7 * DAY
LEAST_DAYS: Final = 2.0
"""Days that must have gone by: of one day no hour can be told from a change."""
FIRST_DAYS: Final = 7.0
"""Days after which the first ones are looked at again, with what is known of hours by then."""
LEAST_HOURS: Final = 2.0
"""Hours of the day over which the runs must be spread."""
WARY: Final = 3.0
"""Variances of its mean that an hour's effect loses (James and Stein's shrinkage)."""
MEMORY: Final = 40.0
"""Runs of an hour that count: what a host did last year says little."""
KEPT: Final = 0.99
"""Share of what is known of the noise that each run leaves."""
LIKE_RUNS: Final = 2
"""Runs at an hour, or beside it, that tell what it does."""
LONG: Final = 20
"""Runs from which a run at an hour that nobody knows says nothing."""
ONE_OF: Final = 10
MOST_LIKE: Final = 5
"""An hour is known if one of so many runs was made at it, or so many at all."""
MONDAY: Final = 4
"""Days from the epoch, a Thursday, to the first Monday."""


def hours_of_week(times: Sequence[float] | Matrix) -> Hours:
    """Return of each time the hour of day, 0 to 23, or 24 to 47 at the weekend.

    Args:
        times: seconds since the epoch.
    """
    import numpy as np

    days, rest = np.divmod(np.asarray(times, dtype=float), DAY)
    weekend = (days - MONDAY) % 7 >= 5
    found: Hours = (rest // HOUR).astype(int) + 24 * weekend
    return found


def spread_out(times: Sequence[float]) -> bool:
    """Tell whether runs were made at hours so different that they may matter."""
    import numpy as np

    hours = np.asarray(times, dtype=float) % DAY // HOUR
    return int(np.count_nonzero(np.bincount(hours.astype(int)))) > LEAST_HOURS


def first_days(times: Sequence[float]) -> int:
    """Return how many of the first runs cannot be judged: their hours have not come back yet."""
    until = times[0] + (LEAST_DAYS + 1) * DAY if len(times) else 0.0
    found = bisect_left(times, until)
    return found if found > (LEAST_DAYS + 1) * 2 and spread_out(times[:found]) else 0


def without_hours(
    values: Matrix, times: Sequence[float], steps: Sequence[tuple[int, float]] = ()
) -> Matrix:
    """Return the runs without what their hour does, each by what was known before it.

    Args:
        values: [runs] logarithms, oldest first.
        times: when they ended, seconds since the epoch, UTC.
        steps: (index, effect) of known steps: they say nothing of hours.
    """
    import numpy as np

    if not spread_out(times):
        return values
    level = np.zeros(len(values))
    for index, effect in steps:
        level[:index] += effect
    found: Matrix = values - np.array(_effects(values + level, np.asarray(times)))
    return found


def _effects(values: Matrix, times: Matrix) -> list[float]:
    hours = hours_of_week(times).tolist()
    away, surprise = (one.tolist() for one in _from_the_week(values, times))
    known = int((times - times[0] < LEAST_DAYS * DAY).sum())
    looks_back = min(int((times - times[0] < FIRST_DAYS * DAY).sum()), len(times) - 1)
    sums, counts, found = [0.0] * 48, [0.0] * 48, list[float]()
    noise, weight = 0.0, 0.0
    # Half of what judging costs is this loop: each run takes the shortest way through it.
    for run, hour in enumerate(hours):
        total, count, this = sums[hour], counts[hour], away[run]
        variance = noise / weight if weight else 0.0
        if run < known:
            found.append(0.0)
        elif count >= LIKE_RUNS:
            found.append(_sure(total, count, variance))
        else:
            found.append(_of_few(hour, sums, counts, variance, run, surprise[run]))
        if count:
            rest = abs(this - total / count) * math.sqrt(count / (count + 1))
            if weight > 5 and rest**2 > 9 * variance:
                rest = 3 * math.sqrt(variance)
            noise = KEPT * noise + rest**2
            weight = KEPT * weight + 1
        if run == looks_back >= known:
            for early, place in enumerate(hours[:known]):
                found[early] = _sure(sums[place], counts[place], noise / max(weight, 1.0))
        if count >= MEMORY:
            keep = MEMORY / (MEMORY + 1)
            sums[hour], counts[hour] = keep * (total + this), keep * (count + 1)
        else:
            sums[hour], counts[hour] = total + this, count + 1
    return found


def _of_few(
    hour: int,
    sums: Sequence[float],
    counts: Sequence[float],
    variance: float,
    run: int,
    surprise: float,
) -> float:
    """Return the effect of an hour that has too few runs of its own.

    After a month of nights the first days, and the first weekend at an hour that matters on
    working days: nobody knows.
    """
    beside = _BESIDE[hour]
    near = sum(counts[one] for one in beside)
    other = (hour + 24) % 48
    if run >= LONG and near < LIKE_RUNS:
        return surprise
    if _sure(sums[other], counts[other], variance):
        return surprise
    return _sure(sum(sums[one] for one in beside), near, variance)


def _from_the_week(values: Matrix, times: Matrix) -> tuple[Matrix, Matrix]:
    """Return how far each run is from the mean of the week up to it, and to the run before it."""
    import numpy as np

    centred = values - values[0]  # the sums of a long history stay small
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    runs = np.arange(len(values))
    oldest = np.searchsorted(times, times - WEEK)
    until = centred - (sums[1:] - sums[oldest]) / (runs + 1 - oldest)
    first = np.concatenate([[0], oldest[:-1]])
    before = centred - (sums[:-1] - sums[first]) / np.maximum(1, runs - first)
    return until, before


def _sure(total: float, count: float, variance: float) -> float:
    """Return the mean effect of an hour, as far as it is sure."""
    if count < 2 or not total:
        return 0.0
    return total / count * max(0.0, 1 - WARY * variance * count / total**2)


_BESIDE: Final = [[(hour + by) % 24 + hour // 24 * 24 for by in (-1, 0, 1)] for hour in range(48)]
"""Of each hour of the week, itself with those before and after it, of the same kind of day."""


def like_hours(before: Sequence[float], after: Sequence[float]) -> Hours:
    """Return which of the runs `after` have runs before them at such an hour, by their number.

    An hour is like another of the same kind of day that is no more than an hour away. A few runs
    by day of a case that is measured at night tell too little of the day.
    """
    import numpy as np

    known = np.bincount(hours_of_week(before), minlength=48)[np.array(_BESIDE)].sum(axis=1)
    least = min(max(1, len(before) // ONE_OF), MOST_LIKE)
    found: Hours = np.flatnonzero(known[hours_of_week(after)] >= least)
    return found
