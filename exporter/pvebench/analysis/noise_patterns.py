"""Known noise patterns: slow hours of the day, occasional slow periods, two alternating levels.

They are not changes: they show the influence of other workloads on a case.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from pvebench.analysis.arrays import Matrix, Places, np
from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.difference import size_text
from pvebench.analysis.levels import MAD_TO_SIGMA

# --- effects of the hour of the day, estimated from earlier runs of the case ---
#
# Working days and the weekend have separate hours. An effect is used as far as the runs of that
# hour agree; if they do not, or are too few, no correction is made.

HOUR: Final = 3600.0
DAY: Final = 86400.0
WEEK: Final = 7 * DAY
LEAST_DAYS: Final = 2.0
"""Minimum days of history: one day cannot separate an hour's effect from a change."""
FIRST_DAYS: Final = 7.0
"""Days after which the effects in the first days are estimated again with the data so far."""
LEAST_HOURS: Final = 2.0
"""Minimum spread of the runs over the hours of the day."""
WARY: Final = 3.0
"""Shrinkage of an hour's effect, in variances of its mean (James and Stein)."""
MEMORY: Final = 40.0
"""Effective number of runs per hour: older behavior of a host is less relevant."""
KEPT: Final = 0.99
"""Decay of the noise estimate per run."""
KEPT_EVERY: Final = 512
"""Runs between snapshots of the estimates, to continue from."""
LIKE_RUNS: Final = 2
"""Minimum runs at an hour, or an adjacent one, to estimate its effect."""
LONG: Final = 20
"""Runs from which a run at an hour without earlier runs is ignored."""
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

    Args:
        values: [runs] logarithms, oldest first.
        times: when they ended, seconds since the epoch, UTC.
        steps: (index, effect) of known steps, which are not effects of hours.
    """
    if not spread_out(times):
        return values
    hourly = Hourly(values, times)
    for index, effect in steps:
        hourly.add_step(index, effect)
    corrected: Matrix = values - hourly.effects(0, len(values))
    return corrected


@dataclass(slots=True)
class _Known:
    """Estimates before a run: effect of each hour, and noise."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 48)
    counts: list[float] = field(default_factory=lambda: [0.0] * 48)
    noise: float = 0.0
    weight: float = 0.0

    def copy(self) -> _Known:
        return _Known([*self.sums], [*self.counts], self.noise, self.weight)


class Hourly:
    """Effects of the hour on each run, estimated from the runs before it.

    The estimates are incremental: a step that is found later only costs the runs after it.

    Args:
        values: [runs] logarithms, oldest first.
        times: when they ended, seconds since the epoch, UTC.
    """

    def __init__(self, values: Matrix, times: Sequence[float]) -> None:
        ended = np.asarray(times)
        self._values, self._hours = values, hours_of_week(ended).tolist()
        self._oldest = np.searchsorted(ended, ended - WEEK)
        self._first = int((ended - ended[0] < LEAST_DAYS * DAY).sum())
        looks_back = int((ended - ended[0] < FIRST_DAYS * DAY).sum())
        self._looks_back = min(looks_back, len(ended) - 1)
        self._steps: list[tuple[int, float]] = []
        self._effects: list[float] = []
        self._known = [_Known()]  # before the first run, and before each multiple of KEPT_EVERY

    def add_step(self, index: int, effect: float) -> None:
        """Level out a step: the runs before `index` count as if they were after it."""
        self._steps.append((index, effect))
        kept = min(index, len(self._effects)) // KEPT_EVERY
        del self._effects[kept * KEPT_EVERY :], self._known[kept + 1 :]

    def effects(self, begin: int, end: int) -> Matrix:
        """Return the effects on the runs from `begin` to before `end`."""
        # The first days are estimated again with more data.
        until = min(max(end, self._looks_back + 1), len(self._values))
        if len(self._effects) < until:
            self._go_on_to(until)
        return np.array(self._effects[begin:end])

    def _go_on_to(self, end: int) -> None:
        first = len(self._effects) // KEPT_EVERY * KEPT_EVERY
        del self._effects[first:]
        away, surprise = self._from_the_week(first, end)
        for begin in range(first, end, KEPT_EVERY):
            runs, known = range(begin, min(begin + KEPT_EVERY, end)), self._known[-1].copy()
            part = slice(begin - first, begin - first + len(runs))
            self._go_on(known, runs, away[part], surprise[part])
            if len(runs) == KEPT_EVERY:
                self._known.append(known)

    def _go_on(
        self, known: _Known, runs: range, distances: Sequence[float], surprises: Sequence[float]
    ) -> None:
        sums, counts, effects = known.sums, known.counts, self._effects
        noise, weight, first = known.noise, known.weight, self._first
        # This loop takes half of the time of the analysis, so it is optimized.
        for run, this, surprise in zip(runs, distances, surprises, strict=True):
            hour = self._hours[run]
            total, count = sums[hour], counts[hour]
            variance = noise / weight if weight else 0.0
            if run < first:
                effects.append(0.0)
            elif count >= LIKE_RUNS:
                effects.append(_shrunk(total, count, variance))
            else:
                effects.append(_of_few(hour, sums, counts, variance, run, surprise))
            if count:
                rest = abs(this - total / count) * math.sqrt(count / (count + 1))
                if weight > 5 and rest**2 > 9 * variance:
                    rest = 3 * math.sqrt(variance)
                noise = KEPT * noise + rest**2
                weight = KEPT * weight + 1
            if run == self._looks_back >= first:
                for early, place in enumerate(self._hours[:first]):
                    effects[early] = _shrunk(sums[place], counts[place], noise / max(weight, 1.0))
            if count >= MEMORY:
                keep = MEMORY / (MEMORY + 1)
                sums[hour], counts[hour] = keep * (total + this), keep * (count + 1)
            else:
                sums[hour], counts[hour] = total + this, count + 1
        known.noise, known.weight = noise, weight

    def _from_the_week(self, begin: int, end: int) -> tuple[list[float], list[float]]:
        """Return the distances from the mean of the last week, with and without the run itself."""
        low = int(self._oldest[max(0, begin - 1)])
        values = np.array(self._values[low:end])
        for index, effect in self._steps:
            if index > low:
                values[: index - low] += effect
        centered = values - values[0]  # keeps the sums of a long history small
        sums = np.concatenate([[0.0], np.cumsum(centered)])
        runs = np.arange(begin - low, end - low)
        oldest = self._oldest[begin:end] - low
        first = self._oldest[np.maximum(0, np.arange(begin, end) - 1)] - low
        until = centered[runs] - (sums[runs + 1] - sums[oldest]) / (runs + 1 - oldest)
        before = centered[runs] - (sums[runs] - sums[first]) / np.maximum(1, runs - first)
        return until.tolist(), before.tolist()


def _of_few(
    hour: int,
    sums: Sequence[float],
    counts: Sequence[float],
    variance: float,
    run: int,
    surprise: float,
) -> float:
    """Return the effect of an hour that has too few runs of its own.

    It is unknown for example in the first runs by day after a month of nights, or on the first
    weekend at an hour that has an effect on working days.
    """
    adjacent = _ADJACENT[hour]
    near = sum(counts[index] for index in adjacent)
    other = (hour + 24) % 48
    if run >= LONG and near < LIKE_RUNS:
        return surprise
    if _shrunk(sums[other], counts[other], variance):
        return surprise
    return _shrunk(sum(sums[index] for index in adjacent), near, variance)


def _shrunk(total: float, count: float, variance: float) -> float:
    """Return the mean effect of an hour, shrunk by its uncertainty."""
    if count < 2 or not total:
        return 0.0
    return total / count * max(0.0, 1 - WARY * variance * count / total**2)


_ADJACENT: Final = [[(hour + by) % 24 + hour // 24 * 24 for by in (-1, 0, 1)] for hour in range(48)]
"""For each hour: itself, the hour before and after, on the same kind of day."""


def like_hours(before: Sequence[float], after: Sequence[float]) -> Places:
    """Return the indexes of runs in `after` that have enough runs before at a similar hour.

    Similar hours are at most one hour apart on the same kind of day. A few runs by day of a case
    that mostly runs at night are not enough.
    """
    known = np.bincount(hours_of_week(before), minlength=48)[np.array(_ADJACENT)].sum(axis=1)
    least = min(max(1, len(before) // ONE_OF), MOST_LIKE)
    indexes: Places = np.flatnonzero(known[hours_of_week(after)] >= least)
    return indexes


NEWEST: Final = 300
"""Number of latest runs to examine."""
LEAST_RUNS: Final = 60
"""Minimum runs to report a pattern."""
LEAST: Final = 0.05
"""Minimum slowdown to report, as a logarithm."""
CLEAR: Final = 4.0
"""Minimum slowdown in scales of single runs."""
TIMES: Final = 3
"""Minimum number of occurrences."""
LONGEST: Final = 15
"""Maximum consecutive slow runs; more are a level."""
RARE: Final = 0.4
"""Maximum share of slow runs; above it they are not the exception."""


def slow_hours(logs: Matrix, times: Sequence[float]) -> str:
    """Describe the slow hours of the day of a case: share of its runs, hours, slowdown.

    Args:
        logs: [runs], positive is better, with known steps leveled out.
        times: when they ended, seconds since the epoch, UTC.

    Returns:
        `8% of runs, around 02:00 UTC, are 40% slower`; empty without such hours.
    """
    if len(logs) < LEAST_RUNS or not spread_out(times):
        return ""
    away, scale = _away(logs)
    hours = hours_of_week(times) % 24
    slow = [hour for hour in range(24) if _is_slow(away[hours == hour], scale)]
    hit = np.isin(hours, slow)
    if not slow or hit.mean() > RARE:
        return ""
    share, loss = 100 * float(hit.mean()), -float(np.median(away[hit]))
    return f"{share:.0f}% of runs, around {_around(slow)} UTC, are {_percentage(loss)} slower"


def slow_stretches(logs: Matrix) -> str:
    """Describe temporary slow periods of a case: number, duration, slowdown.

    Args:
        logs: [runs], positive is better, without known steps and effects of the hour.

    Returns:
        `occasionally (5 times in 300 runs) about 4 consecutive runs are 20% slower`, or empty.
    """
    if len(logs) < LEAST_RUNS:
        return ""
    away, scale = _away(logs)
    slow = away < -max(LEAST, CLEAR * scale)
    stretches: list[Matrix] = []
    place = 0
    for hit, runs in groupby(slow.tolist()):
        end = place + len(list(runs))
        # A period that has not ended may be a change.
        if hit and 2 <= end - place <= LONGEST and end < len(logs):
            stretches.append(away[place:end])
        place = end
    if len(stretches) < TIMES or sum(map(len, stretches)) > RARE * len(logs):
        return ""
    length = statistics.median(len(stretch) for stretch in stretches)
    loss = -float(np.median(np.concatenate(stretches)))
    often = f"{len(stretches)} times in {len(logs)} runs"
    return (
        f"occasionally ({often}) about {length:.0f} consecutive runs are {_percentage(loss)} slower"
    )


def two_levels(history: CaseHistory, mode: CaseStep) -> str:
    """Describe the two levels between which a case alternates, and their shares.

    Args:
        mode: the latest step, which leads to the current level.
    """
    logs = history.logs()[-NEWEST:]
    at = history.split(mode.time) - len(history.points) + len(logs)
    now = float(np.median(logs[max(0, at) :]))
    other = now - mode.effect
    share = float(np.mean(np.abs(logs - now) < np.abs(logs - other)))
    upper, lower = (share, 1 - share) if mode.effect > 0 else (1 - share, share)
    return (
        f"alternates between two levels {size_text(abs(mode.effect))} apart, "
        f"{100 * upper:.0f}% of runs at the better and {100 * lower:.0f}% at the worse one"
    )


def _away(logs: Matrix) -> tuple[Matrix, float]:
    away = logs - np.median(logs)
    return away, MAD_TO_SIGMA * float(np.median(np.abs(away)))


def _is_slow(away: Matrix, scale: float) -> bool:
    """Return whether nearly all runs of an hour are significantly slow."""
    if len(away) < TIMES:
        return False
    return bool(np.quantile(away, 0.8) < -max(LEAST, CLEAR * scale / len(away) ** 0.5))


def _around(hours: Sequence[int]) -> str:
    """Return hours of the day as text: `02:00`, or `02:00 and 14:00`."""
    texts = [f"{hour:02}:00" for hour in hours]
    if len(hours) > 2 and hours[-1] - hours[0] == len(hours) - 1:
        return f"{texts[0]} to {texts[-1]}"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _percentage(loss: float) -> str:
    return f"{-100 * math.expm1(-loss):.0f}%"
