"""Like with like: what an hour of the day does to a case, learnt from its own earlier runs.

Working days and the weekend have hours of their own. An effect counts as far as the runs of that
hour agree; where they do not, or are too few, nothing is taken off.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Matrix

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


def hour_of_week(time: float) -> int:
    """Return the hour of day, 0 to 23, or 24 to 47 at the weekend, of seconds since the epoch."""
    days, rest = divmod(time, DAY)
    weekend = (int(days) - MONDAY) % 7 >= 5
    return int(rest // HOUR) + 24 * weekend


def spread_out(times: Sequence[float]) -> bool:
    """Tell whether runs were made at hours so different that they may matter."""
    import numpy as np

    return len(np.unique(np.asarray(times) % DAY // HOUR)) > LEAST_HOURS


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
    found: Matrix = values - np.array(_effects((values + level).tolist(), times))
    return found


def _effects(values: Sequence[float], times: Sequence[float]) -> list[float]:
    sums, counts, found = [0.0] * 48, [0.0] * 48, list[float]()
    total, oldest, noise, weight = 0.0, 0, 0.0, 0.0
    first, looked = 0, False
    for run, (value, time) in enumerate(zip(values, times, strict=True)):
        hour, variance = hour_of_week(time), noise / weight if weight else 0.0
        count = counts[hour]
        mean = sums[hour] / count if count else 0.0
        late = time - times[0] >= LEAST_DAYS * DAY
        first = first if late else run + 1
        other = (hour + 24) % 48
        near = _near(hour, sums, counts)
        effect = _sure(*near, variance) if late else 0.0
        if late and run >= LONG and near[1] < LIKE_RUNS:
            # After a month of nights the first days: nobody knows.
            effect = value - total / max(1, run - oldest)
        elif late and count < 2 and _sure(sums[other], counts[other], variance):
            # The first weekend, at an hour that matters on working days: nobody knows.
            effect = value - total / max(1, run - oldest)
        found.append(effect)
        while times[oldest] < time - WEEK:
            total -= values[oldest]
            oldest += 1
        total += value
        away = value - total / (run - oldest + 1)
        if count >= 1:
            rest = abs(away - mean) * math.sqrt(count / (count + 1))
            most = 3 * math.sqrt(variance) if weight > 5 else math.inf
            noise = KEPT * noise + min(rest, most) ** 2
            weight = KEPT * weight + 1
        if late and not looked and (time - times[0] >= FIRST_DAYS * DAY or run == len(values) - 1):
            looked = True
            for early in range(first):
                place = hour_of_week(times[early])
                found[early] = _sure(sums[place], counts[place], noise / max(weight, 1.0))
        keep = MEMORY / (MEMORY + 1) if count >= MEMORY else 1.0
        sums[hour], counts[hour] = keep * (sums[hour] + away), keep * (count + 1)
    return found


def _sure(total: float, count: float, variance: float) -> float:
    """Return the mean effect of an hour, as far as it is sure."""
    if count < 2 or not total:
        return 0.0
    return total / count * max(0.0, 1 - WARY * variance * count / total**2)


def _near(hour: int, sums: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Return sum and number of the runs of an hour; of one hardly known, with those beside it."""
    if counts[hour] >= LIKE_RUNS:
        return sums[hour], counts[hour]
    places = _beside(hour)
    return sum(sums[one] for one in places), sum(counts[one] for one in places)


def _beside(hour: int) -> tuple[int, ...]:
    """Return an hour of the week with those before and after it, of the same kind of day."""
    return tuple((hour + step) % 24 + hour // 24 * 24 for step in (-1, 0, 1))


def like_hours(before: Sequence[float], after: Sequence[float]) -> list[int]:
    """Return which of the runs `after` have runs before them at such an hour, by their number.

    An hour is like another of the same kind of day that is no more than an hour away. A few runs
    by day of a case that is measured at night tell too little of the day.
    """
    known = Counter(hour_of_week(time) for time in before)
    least = min(max(1, len(before) // ONE_OF), MOST_LIKE)
    return [
        number
        for number, time in enumerate(after)
        if sum(known[hour] for hour in _beside(hour_of_week(time))) >= least
    ]
