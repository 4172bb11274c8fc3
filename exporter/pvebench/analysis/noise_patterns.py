"""Noise with a name: hours that are always slow, stretches that are slow now and then, two levels.

None of them is a level or an event: it says what the case's neighbours do to it.
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

# --- Like with like: what an hour of the day does to a case, learnt from its own earlier runs.
#
# Working days and the weekend have hours of their own. An effect counts as far as the runs of that
# hour agree; where they do not, or are too few, nothing is taken off.

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
KEPT_EVERY: Final = 512
"""Runs after which what is known of hours is kept, to go on from there."""
LIKE_RUNS: Final = 2
"""Runs at an hour, or beside it, that tell what it does."""
LONG: Final = 20
"""Runs from which a run at an hour that nobody knows says nothing."""
ONE_OF: Final = 10
MOST_LIKE: Final = 5
"""An hour is known if one of so many runs was made at it, or so many at all."""
MONDAY: Final = 4
"""Days from the epoch, a Thursday, to the first Monday."""


def hours_of_week(times: Sequence[float] | Matrix) -> Places:
    """Return of each time the hour of day, 0 to 23, or 24 to 47 at the weekend.

    Args:
        times: seconds since the epoch.
    """
    days, rest = np.divmod(np.asarray(times, dtype=float), DAY)
    weekend = (days - MONDAY) % 7 >= 5
    found: Places = (rest // HOUR).astype(int) + 24 * weekend
    return found


def spread_out(times: Sequence[float]) -> bool:
    """Tell whether runs were made at hours so different that they may matter."""
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
    if not spread_out(times):
        return values
    hourly = Hourly(values, times)
    for index, effect in steps:
        hourly.add_step(index, effect)
    found: Matrix = values - hourly.effects(0, len(values))
    return found


@dataclass(slots=True)
class _Known:
    """What is known before a run: of each hour, and of the noise."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 48)
    counts: list[float] = field(default_factory=lambda: [0.0] * 48)
    noise: float = 0.0
    weight: float = 0.0

    def copy(self) -> _Known:
        return _Known([*self.sums], [*self.counts], self.noise, self.weight)


class Hourly:
    """What its hour does to each run, by what was known before it.

    Goes on from where it was: a step that is learnt later costs only the runs after it.

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
        self._found: list[float] = []
        self._known = [_Known()]  # before the first run, and before each multiple of KEPT_EVERY

    def add_step(self, index: int, effect: float) -> None:
        """Take a step into account: the runs before `index` count as if made after it."""
        self._steps.append((index, effect))
        kept = min(index, len(self._found)) // KEPT_EVERY
        del self._found[kept * KEPT_EVERY :], self._known[kept + 1 :]

    def effects(self, begin: int, end: int) -> Matrix:
        """Return the effects on the runs from `begin` to before `end`."""
        # The first days are looked at again when there is more.
        until = min(max(end, self._looks_back + 1), len(self._values))
        if len(self._found) < until:
            self._go_on_to(until)
        return np.array(self._found[begin:end])

    def _go_on_to(self, end: int) -> None:
        first = len(self._found) // KEPT_EVERY * KEPT_EVERY
        del self._found[first:]
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
        sums, counts, found = known.sums, known.counts, self._found
        noise, weight, first = known.noise, known.weight, self._first
        # Half of what judging costs is this loop: each run takes the shortest way through it.
        for run, this, surprise in zip(runs, distances, surprises, strict=True):
            hour = self._hours[run]
            total, count = sums[hour], counts[hour]
            variance = noise / weight if weight else 0.0
            if run < first:
                found.append(0.0)
            elif count >= LIKE_RUNS:
                found.append(_sure(total, count, variance))
            else:
                found.append(_of_few(hour, sums, counts, variance, run, surprise))
            if count:
                rest = abs(this - total / count) * math.sqrt(count / (count + 1))
                if weight > 5 and rest**2 > 9 * variance:
                    rest = 3 * math.sqrt(variance)
                noise = KEPT * noise + rest**2
                weight = KEPT * weight + 1
            if run == self._looks_back >= first:
                for early, place in enumerate(self._hours[:first]):
                    found[early] = _sure(sums[place], counts[place], noise / max(weight, 1.0))
            if count >= MEMORY:
                keep = MEMORY / (MEMORY + 1)
                sums[hour], counts[hour] = keep * (total + this), keep * (count + 1)
            else:
                sums[hour], counts[hour] = total + this, count + 1
        known.noise, known.weight = noise, weight

    def _from_the_week(self, begin: int, end: int) -> tuple[list[float], list[float]]:
        """Return how far runs are from the mean of the week up to them, and to the run before."""
        low = int(self._oldest[max(0, begin - 1)])
        values = np.array(self._values[low:end])
        for index, effect in self._steps:
            if index > low:
                values[: index - low] += effect
        centred = values - values[0]  # the sums of a long history stay small
        sums = np.concatenate([[0.0], np.cumsum(centred)])
        runs = np.arange(begin - low, end - low)
        oldest = self._oldest[begin:end] - low
        first = self._oldest[np.maximum(0, np.arange(begin, end) - 1)] - low
        until = centred[runs] - (sums[runs + 1] - sums[oldest]) / (runs + 1 - oldest)
        before = centred[runs] - (sums[runs] - sums[first]) / np.maximum(1, runs - first)
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


def _sure(total: float, count: float, variance: float) -> float:
    """Return the mean effect of an hour, as far as it is sure."""
    if count < 2 or not total:
        return 0.0
    return total / count * max(0.0, 1 - WARY * variance * count / total**2)


_BESIDE: Final = [[(hour + by) % 24 + hour // 24 * 24 for by in (-1, 0, 1)] for hour in range(48)]
"""Of each hour of the week, itself with those before and after it, of the same kind of day."""


def like_hours(before: Sequence[float], after: Sequence[float]) -> Places:
    """Return which of the runs `after` have runs before them at such an hour, by their number.

    An hour is like another of the same kind of day that is no more than an hour away. A few runs
    by day of a case that is measured at night tell too little of the day.
    """
    known = np.bincount(hours_of_week(before), minlength=48)[np.array(_BESIDE)].sum(axis=1)
    least = min(max(1, len(before) // ONE_OF), MOST_LIKE)
    found: Places = np.flatnonzero(known[hours_of_week(after)] >= least)
    return found


NEWEST: Final = 300
"""Runs that are looked at."""
LEAST_RUNS: Final = 60
"""Runs that it takes to speak of a habit."""
LEAST: Final = 0.05
"""Loss, as logarithm, that is worth a word."""
CLEAR: Final = 4.0
"""Scales by which runs must be slow."""
TIMES: Final = 3
"""Times that it must have happened."""
LONGEST: Final = 15
"""Runs in a row beyond which it is a level."""
RARE: Final = 0.4
"""Share of the runs beyond which it is the other part that is told apart."""


def slow_hours(logs: Matrix, times: Sequence[float]) -> str:
    """Return at which hours of the day a case is slow, in how many of its runs, by how much.

    Args:
        logs: [runs], plus for better, with known steps levelled out.
        times: when they ended, seconds since the epoch, UTC.

    Returns:
        `8 % of its runs, around 02:00 UTC, are 40 % slower`; empty where there are no such hours.
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
    return f"{share:.0f} % of its runs, around {_around(slow)} UTC, are {_per_cent(loss)} slower"


def slow_stretches(logs: Matrix) -> str:
    """Return how often, for how long and by how much a case is slow and comes back by itself.

    Args:
        logs: [runs], plus for better, with known steps and what the hours do taken out.

    Returns:
        `now and then (5 times in 300 runs) some 4 runs in a row are 20 % slower`, or nothing.
    """
    if len(logs) < LEAST_RUNS:
        return ""
    away, scale = _away(logs)
    slow = away < -max(LEAST, CLEAR * scale)
    stretches: list[Matrix] = []
    place = 0
    for hit, runs in groupby(slow.tolist()):
        end = place + len(list(runs))
        # What has not ended yet may be a change.
        if hit and 2 <= end - place <= LONGEST and end < len(logs):
            stretches.append(away[place:end])
        place = end
    if len(stretches) < TIMES or sum(map(len, stretches)) > RARE * len(logs):
        return ""
    length = statistics.median(len(one) for one in stretches)
    loss = -float(np.median(np.concatenate(stretches)))
    often = f"{len(stretches)} times in {len(logs)} runs"
    return f"now and then ({often}) some {length:.0f} runs in a row are {_per_cent(loss)} slower"


def two_levels(history: CaseHistory, mode: CaseStep) -> str:
    """Return the two levels that a case goes to and fro between, and their shares.

    Args:
        mode: the newest step, which leads to the one it is at now.
    """
    logs = history.logs()[-NEWEST:]
    at = history.split(mode.time) - len(history.points) + len(logs)
    now = float(np.median(logs[max(0, at) :]))
    other = now - mode.effect
    share = float(np.mean(np.abs(logs - now) < np.abs(logs - other)))
    upper, lower = (share, 1 - share) if mode.effect > 0 else (1 - share, share)
    return (
        f"goes to and fro between two levels {size_text(abs(mode.effect))} apart, "
        f"{100 * upper:.0f} % of its runs at the better and {100 * lower:.0f} % at the worse one"
    )


def _away(logs: Matrix) -> tuple[Matrix, float]:
    away = logs - np.median(logs)
    return away, MAD_TO_SIGMA * float(np.median(np.abs(away)))


def _is_slow(away: Matrix, scale: float) -> bool:
    """Tell whether nearly all runs of an hour are slow, and not by chance."""
    if len(away) < TIMES:
        return False
    return bool(np.quantile(away, 0.8) < -max(LEAST, CLEAR * scale / len(away) ** 0.5))


def _around(hours: Sequence[int]) -> str:
    """Return hours of the day in words: `02:00`, or `02:00 and 14:00`."""
    texts = [f"{hour:02}:00" for hour in hours]
    if len(hours) > 2 and hours[-1] - hours[0] == len(hours) - 1:
        return f"{texts[0]} to {texts[-1]}"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _per_cent(loss: float) -> str:
    return f"{-100 * math.expm1(-loss):.0f} %"
