"""Known noise patterns, which are no changes: hours of the day, alternating levels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Final

from pvebench.analysis.arrays import Matrix, Places, np
from pvebench.analysis.levels import MEAN_TO_SIGMA, TINY, median
from pvebench.model.units import DAY

# --- effects of the hour of the day, estimated from earlier runs of the case ---
#
# Working days and the weekend have separate hours. An effect is used as far as the runs of that
# hour agree; if they do not, or are too few, no correction is made.

HOUR: Final = 3600.0
WEEK: Final = 7 * DAY
LEAST_DAYS: Final = 2.0
"""Minimum days of history: one day cannot separate an hour's effect from a change."""
LEAST_HOURS: Final = 2.0
"""Minimum spread of the runs over the hours of the day."""
WARY: Final = 6.0
"""Shrinkage of an hour's effect, in variances of its mean (James and Stein)."""
MEMORY: Final = 40
"""Maximum days per hour: older behavior of a host is less relevant."""
TYPICAL: Final = 4.0
"""Weight of the typical spread between days, in days of one hour."""
LIKE_DAYS: Final = 2
"""Minimum days with runs at an hour, or an adjacent one, to estimate its effect."""
ONE_OF: Final = 10
MOST_LIKE: Final = 5
"""An hour has enough earlier runs with a share of 1 / ONE_OF of all runs, or with MOST_LIKE."""
MONDAY: Final = 4
"""Days from the epoch, a Thursday, to the first Monday."""


def hours_of_week(times: Sequence[float] | Matrix) -> Places:
    """Return the hour of day of each time: 0 to 23, or 24 to 47 at the weekend.

    Args:
        times: seconds since the epoch.
    """
    days, rest = np.divmod(np.asarray(times, dtype=float), DAY)
    weekend = (days - MONDAY) % 7 >= 5
    hours: Places = (rest // HOUR).astype(int) + 24 * weekend
    return hours


def spread_out(times: Sequence[float]) -> bool:
    """Return whether the runs were at more than `LEAST_HOURS` different hours of the day."""
    hours = np.asarray(times, dtype=float) % DAY // HOUR
    return int(np.count_nonzero(np.bincount(hours.astype(int)))) > LEAST_HOURS


def first_days(times: Sequence[float]) -> int:
    """Return how many of the first runs cannot be judged, as their hours have not recurred yet."""
    until = times[0] + (LEAST_DAYS + 1) * DAY if len(times) else 0.0
    count = bisect_left(times, until)
    return count if count > (LEAST_DAYS + 1) * 2 and spread_out(times[:count]) else 0


def without_hours(
    values: Matrix, times: Sequence[float], steps: Sequence[tuple[int, float]] = ()
) -> Matrix:
    """Return the runs without the effect of their hour, estimated from the runs before each.

    The runs of an hour of a day count once: neighboring runs agree anyway. An effect is as certain
    as the days agree. The first days are estimated with the day after them.

    Args:
        values: [runs] logarithms, oldest first.
        times: when they ended, seconds since the epoch, UTC.
        steps: (index, effect) of known steps, which are not effects of hours.
    """
    if not spread_out(times):
        return values.copy()
    ended = np.asarray(times, dtype=float)
    until = _from_the_week(values, ended, steps)
    starts = np.flatnonzero(np.diff(ended // HOUR, prepend=-1.0))
    counts = np.diff(starts, append=len(ended))
    days = ended[0] + np.array([LEAST_DAYS, LEAST_DAYS + 1]) * DAY
    old, known = np.searchsorted(ended[starts], days).tolist()
    away = np.add.reduceat(until, starts) / counts
    cells = _Cells(hours_of_week(ended[starts]), away, old, known)
    corrected: Matrix = values - np.repeat(cells.effects(), counts)
    return corrected


def _from_the_week(values: Matrix, ended: Matrix, steps: Sequence[tuple[int, float]]) -> Matrix:
    """Return the distances from the mean of the last week."""
    levelled = values - values[0]  # keeps the sums of a long history small
    for index, effect in steps:
        levelled[:index] += effect
    sums = np.concatenate([[0.0], np.cumsum(levelled)])
    runs = np.arange(len(values))
    oldest = np.searchsorted(ended, ended - WEEK)
    away: Matrix = levelled - (sums[1:] - sums[oldest]) / (runs + 1 - oldest)
    return away


class _Cells:
    """Hours with runs, oldest first.

    Args:
        hours: [cells] hour of the week.
        away: [cells] mean distance of its runs from the level.
        old, known: number of cells in the first days, and in those that estimate their effects.
    """

    def __init__(self, hours: Places, away: Matrix, old: int, known: int) -> None:
        self._hours, self._away, self._old, self._known = hours, away, old, known
        order = np.argsort(hours, kind="stable")
        self._keys = hours[order] * len(hours) + order
        self._sums, self._squares = (
            np.concatenate([[0.0], np.cumsum(part)]) for part in (away[order], away[order] ** 2)
        )

    def effects(self) -> Matrix:
        """Return the effect on each cell."""
        now = np.arange(len(self._hours))
        first, end = self._earlier(self._hours, now)
        first = np.maximum(first, end - MEMORY)
        count = end - first
        mean = (self._sums[end] - self._sums[first]) / np.maximum(count, 1)
        rest = self._squares[end] - self._squares[first] - count * mean**2
        own = np.maximum(rest, 0.0) / np.maximum(count - 1, 1)
        surprise = np.abs(self._away - mean) * np.sqrt(count / (count + 1))
        variance = (TYPICAL * _typical(surprise, count) + count * own) / (TYPICAL + count)
        effects = _shrunk(mean, count, variance)
        few = np.flatnonzero((count < LIKE_DAYS) & (now >= self._old))
        near, days = self._near(few)
        effects[few] = _shrunk(near / np.maximum(days, 1), days, variance[few])
        if self._known < len(effects):
            last = dict(zip(self._hours[: self._known].tolist(), effects, strict=False))
            effects[: self._old] = [last[hour] for hour in self._hours[: self._old].tolist()]
        else:
            effects[: self._old] = 0.0
        return effects

    def _earlier(self, hours: Places, cells: Places) -> tuple[Places, Places]:
        """Return the range, in the order by hour, of the cells at `hours` before `cells`."""
        keys = hours * len(self._hours)
        return np.searchsorted(self._keys, keys), np.searchsorted(self._keys, keys + cells)

    def _near(self, cells: Places) -> tuple[Matrix, Places]:
        """Return sum and number of the earlier cells at the hour of cells and the adjacent ones.

        An hour may be unknown for example in the first runs by day after a month of nights.
        """
        first, end = self._earlier(_adjacent(self._hours[cells]), cells[:, None])
        return (self._sums[end] - self._sums[first]).sum(axis=1), (end - first).sum(axis=1)


def _typical(surprise: Matrix, count: Places) -> Matrix:
    """Return the typical variance between days before each cell."""
    sums = np.concatenate([[0.0], np.cumsum(surprise)])
    known = np.concatenate([[0.0], np.cumsum(count > 0)])
    return np.asarray((MEAN_TO_SIGMA * sums[:-1] / np.maximum(known[:-1], 1)) ** 2)


def _shrunk(mean: Matrix, count: Places, variance: Matrix) -> Matrix:
    """Return mean effects of hours, shrunk by their uncertainty."""
    share = 1 - WARY * variance / np.maximum(count * mean**2, TINY**2)
    shrunk: Matrix = np.where(count >= LIKE_DAYS, mean * np.maximum(share, 0.0), 0.0)
    return shrunk


def _adjacent(hours: Places) -> Places:
    """Return each hour, the one before and the one after, on the same kind of day; [..., 3]."""
    own: Places = hours[..., None]
    return (own + np.arange(-1, 2)) % 24 + own // 24 * 24


def like_hours(before: Sequence[float], after: Sequence[float]) -> Places:
    """Return the indexes of runs in `after` that have enough runs before at a similar hour.

    Similar hours are at most one hour apart on the same kind of day. A few runs by day of a case
    that mostly runs at night are not enough. All runs, if they are always at the same hours.
    """
    if not spread_out([*before, *after]):
        return np.arange(len(after))
    known = np.bincount(hours_of_week(before), minlength=48)[_adjacent(np.arange(48))].sum(axis=1)
    least = min(max(1, len(before) // ONE_OF), MOST_LIKE)
    indexes: Places = np.flatnonzero(known[hours_of_week(after)] >= least)
    return indexes


OFTEN: Final = 2
"""Earlier visits after which a level is typical of a case."""
LONGER: Final = 1.5
"""Minimum duration, in its longest earlier visits, of a level that is not typical any more."""
STAYED: Final = 40
"""Minimum runs of such a level."""
ALIKE: Final = 0.35
"""Share of a step within which two levels are equal."""


def usual_level(logs: Matrix, places: Sequence[int], effect: float) -> bool:
    """Return whether a case was often at its present level, or beyond it, for as long as now.

    Args:
        logs: [runs], oldest first.
        places: first run of each level, the present one last.
        effect: the step to the present level.
    """
    borders = [0, *places, len(logs)]
    levels = [
        float(np.median(logs[begin:end])) if end > begin else 0.0
        for begin, end in pairwise(borders)
    ]
    least = levels[-1] - ALIKE * effect
    visits, length = [0], 0
    for level, (begin, end) in zip(levels[:-1], pairwise(borders[:-1]), strict=True):
        beyond = (level - least) * effect >= 0
        length = length + end - begin if beyond else 0
        visits = [*visits[:-1], length] if beyond else [*visits, 0]
    visits = [visit for visit in visits if visit]
    present = len(logs) - places[-1]
    return len(visits) >= OFTEN and present < max(STAYED, LONGER * max(visits))


STUCK: Final = 40
"""Minimum runs on one side of a case's range that may be a level …"""
STUCK_TIMES: Final = 3.0
"""… and their number in the longest earlier time on that side."""
SMOOTH: Final = 5
"""Runs of the median that is compared with the middle of the range; a shorter crossing is noise."""
BETWEEN: Final = 0.2
"""Maximum share of medians in the middle quarter of the range: of two levels, few are there."""


def stuck_since(logs: Matrix) -> int | None:
    """Return from which run on a case has been on one side of its range for longer than ever.

    Its two levels may be too close to each other, or alternate too often, to be reported as steps.

    Args:
        logs: [runs], with known steps leveled out.
    """
    if len(logs) < STUCK * (1 + STUCK_TIMES) / 2:
        return None
    low, high = np.quantile(logs, [0.1, 0.9])
    away = median(np.lib.stride_tricks.sliding_window_view(logs, SMOOTH)) - (low + high) / 2
    if np.mean(np.abs(away) < (high - low) / 8) > BETWEEN:
        return None
    stays = [len(list(runs)) for _, runs in groupby((away > 0).tolist())]
    while len(stays) > 2 and stays[-2] < SMOOTH:
        stays[-3:] = [sum(stays[-3:])]
    longest = max(stays[-3::-2], default=0)
    place = len(logs) - stays[-1] - SMOOTH // 2
    return place if stays[-1] >= max(STUCK, STUCK_TIMES * longest) and longest else None
