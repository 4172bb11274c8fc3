"""Change points at unknown times: a history is divided into levels, and each border is tested.

The division is the cheapest one with a penalty per border, in units of the noise of blocks of runs
(Jackson et al., IEEE Signal Processing Letters 12, 2005), at places where neighboring windows
differ. Short departures from a level are typical of a case and replaced by it first. The border
with the least evidence is then removed until all remaining ones are certain.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from pvebench.analysis.arrays import Matrix, Places, np
from pvebench.analysis.case_history import CaseHistory, CaseStep, step_at
from pvebench.analysis.difference import two_sided
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY, cleaned, median
from pvebench.analysis.noise_patterns import ALIKE, first_days, like_hours, without_hours
from pvebench.model.units import DAY

# --- division into levels ---

LEAST_AFTER: Final = 6
"""Minimum runs of a level: five slow runs of one day are none."""
DEPARTURE: Final = 4
"""Minimum runs of a departure from a level that is replaced by it."""
RETURNED: Final = 0.5
"""Maximum difference of the levels around a departure, as a share of it."""
PENALTY: Final = 2.7
"""Cost of a border, in variances × the logarithm of the number of runs."""
WIDTHS: Final = (3, 6, 10, 16, 28, 48)
"""Runs of the windows that are compared."""
WORTH: Final = 4.0
"""Minimum difference of two windows in standard errors."""
APART: Final = 3
"""Maximum runs within which only the largest difference counts."""
BLOCK: Final = 10
"""Runs per block that shows how much more than independent runs a history varies."""
LEAST_BLOCKS: Final = 6
MOST_VARIED: Final = 5.0
"""Limit of this variation, as a multiple of that of independent runs."""


def divided(away: Matrix, *, least: int) -> list[int]:
    """Return the first run of each level but the first.

    Args:
        away: [runs] values in scales of a single run.
        least: minimum runs of a level.
    """
    away = away - np.median(away)  # keeps the sums small
    borders = np.array([0, *_worth_it(away, least), len(away)])
    sums = _running(away)[borders]
    penalty = PENALTY * _varied(away) ** 2 * math.log(len(away))
    cost, last = np.zeros(len(borders)), np.zeros(len(borders), dtype=int)
    for end in range(1, len(borders)):
        runs = borders[end] - borders[:end]
        total = cost[:end] - (sums[end] - sums[:end]) ** 2 / runs + penalty
        total[(runs < least) & (borders[:end] > 0)] = math.inf
        last[end] = np.argmin(total)
        cost[end] = total[last[end]]
    places, border = list[int](), int(last[-1])
    while border:
        places.append(int(borders[border]))
        border = int(last[border])
    return places[::-1]


def _worth_it(away: Matrix, least: int) -> list[int]:
    """Return the places where the windows on both sides differ most."""
    runs, sums = len(away), _running(away)
    places = np.arange(least, runs - least + 1)
    chosen = np.zeros(len(places), dtype=bool)
    for width in WIDTHS:
        begin, end = np.maximum(0, places - width), np.minimum(runs, places + width)
        before, after = places - begin, end - places
        apart = (sums[end] - sums[places]) / after - (sums[places] - sums[begin]) / before
        score = np.abs(apart) / np.sqrt(1 / before + 1 / after)
        reach = min(APART, width // 2)
        around = np.lib.stride_tricks.sliding_window_view(np.pad(score, reach), 2 * reach + 1)
        chosen |= (score >= WORTH) & (score >= around.max(axis=-1))
    return [int(place) for place in places[chosen]]


def _varied(away: Matrix) -> float:
    """Return the variation from block to block as a multiple of that of independent runs."""
    count = len(away) // BLOCK
    if count < LEAST_BLOCKS:
        return 1.0
    blocks = median(away[len(away) - BLOCK * count :].reshape(count, BLOCK))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(blocks)))) / math.sqrt(2)
    return min(MOST_VARIED, max(1.0, sigma * math.sqrt(BLOCK * 2 / math.pi)))


def _without_departures(runs: Matrix, places: Sequence[int]) -> Matrix:
    """Return the runs with each departure that is too short for a level replaced by the level."""
    borders = [0, *places, len(runs)]
    levels = [float(np.median(runs[begin:end])) for begin, end in pairwise(borders)]
    steady = runs.copy()
    for place, (begin, end) in enumerate(pairwise(borders)):
        if end - begin >= LEAST_AFTER or not 0 < place < len(levels) - 1:
            continue
        early, own, late = levels[place - 1 : place + 2]
        if abs(early - late) < RETURNED * abs(own - early):
            steady[begin:end] = min(early, late, key=lambda level: abs(level - own))
    return steady


def _running(values: Matrix) -> Matrix:
    return np.concatenate([[0.0], np.cumsum(values)])


# --- test of each border ---

SIDE: Final = 80
"""Maximum runs on each side of a border that are compared."""
SURE: Final = 7.5
"""Minimum score of a step: histories of real benchmarks reach 6 without a change."""
SURE_BACK: Final = 4.5
"""Minimum score of a step to an earlier level, which is more plausible."""
UNUSUAL: Final = 1.8
"""The same for the latest step if its score is so many times that of any window before it …"""
NOTABLE: Final = 0.09
"""… and it is so large, as a logarithm: with 1.6 and 0.05, quiet histories report 45, not 40."""
LEAST_SIDE: Final = 40
"""Minimum runs before such a window: with fewer, scores are lower."""
LARGE: Final = 0.5
"""Minimum shift, as a logarithm, that the load of an hour without earlier runs hardly explains."""
RECENT: Final = 300
"""Runs within which an earlier level counts."""
DOUBT: Final = 4.0
"""Minimum score of a possible shift …"""
LATEST: Final = (3, 4, 5, 6, 8, 10, 14, 20, 28, 40, 56, 72)
"""… and the latest runs that may have shifted."""
FREE: Final = 0.3
"""Autocorrelation that is ignored, as it occurs by chance in short series."""
MOST: Final = 0.75
"""Limit of the autocorrelation."""
LIKE: Final = 4.0
"""Weight, in runs, of the prior that both sides have the same variance."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """Levels of a history.

    Attributes:
        rough: (first run, effect) of the steps without which the effects of hours are estimated.
        steps: between its levels, oldest first, not sized yet.
        doubt: a possible step at the latest runs.
    """

    rough: tuple[tuple[int, float], ...] = ()
    steps: tuple[CaseStep, ...] = ()
    doubt: CaseStep | None = None

    def even(self, history: CaseHistory) -> CaseHistory:
        """Return the same history without the effects of its hours."""
        logs = history.logs()
        return history.even(logs - without_hours(logs, history.times(), self.rough))


class _Border(NamedTuple):
    """Evidence of a border: score in standard deviations, and the levels next to it."""

    score: float
    before: float
    after: float

    @property
    def effect(self) -> float:
        return self.after - self.before

    def step(self, history: CaseHistory, place: int) -> CaseStep:
        chance = float(two_sided(self.score, math.inf))
        return step_at(history, history.times()[place], self.effect, p_value=chance)


def scan(history: CaseHistory) -> Scanned:
    """Return the levels of a history with known steps leveled out."""
    logs, times = history.logs(), history.times()
    if len(logs) < 2 * LEAST_AFTER:
        return Scanned()
    if len(logs) <= first_days(times):
        return in_first_days(history)
    rough: list[tuple[int, float]] = []
    levels, places = _levels_of(without_hours(logs, times), times)
    if places:
        rough = [
            (place, levels.border(*around).effect) for place, around in _around(levels, places)
        ]
        levels, places = _levels_of(without_hours(logs, times, rough), times)
    places = levels.certain(places)
    found = [
        levels.border(*around).step(history, place) for place, around in _around(levels, places)
    ]
    doubt = levels.doubt(places)
    step = doubt[0].step(history, doubt[1]) if doubt else None
    return Scanned(tuple(rough), tuple(found), step)


def _levels_of(logs: Matrix, times: Sequence[float]) -> tuple[_Levels, list[int]]:
    """Return the runs without departures, and the borders that may divide them."""
    runs, scale = cleaned(logs)
    away = _without_departures(runs / scale, divided(runs / scale, least=DEPARTURE))
    return _Levels(away * scale, times), divided(away, least=LEAST_AFTER)


def _around(levels: _Levels, places: Sequence[int]) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield each place, and with it the first run of the level before and the end of the next."""
    borders = [0, *places, len(levels.runs)]
    for begin, place, end in zip(borders, borders[1:], borders[2:], strict=False):
        yield place, (begin, place, end)


class _Levels:
    """Levels of a history and the evidence of the borders between them."""

    def __init__(self, runs: Matrix, times: Sequence[float]) -> None:
        self.runs, self._times = runs, times
        self._sums = _Sums(runs)
        self.border = cache(self._border)

    def certain(self, places: Sequence[int]) -> list[int]:
        """Return the places without those that are uncertain, the least certain removed first."""
        kept = list(places)
        while kept:
            evidence = self._evidence(kept)
            worst = int(np.argmin(evidence))
            if evidence[worst] >= 1:
                break
            del kept[worst]
        return kept

    def _evidence(self, places: Sequence[int]) -> list[float]:
        """Return the evidence of each border; 1 suffices."""
        borders = [self.border(*around) for _, around in _around(self, places)]
        evidence = []
        for number, (place, border) in enumerate(zip(places, borders, strict=True)):
            earlier = zip(places[:number], borders[:number], strict=True)
            back = any(
                place - other < RECENT
                and abs(border.after - old.before) < ALIKE * abs(border.effect)
                for other, old in earlier
            )
            sure = SURE_BACK if back else SURE
            if number == len(places) - 1 and SURE_BACK <= border.score < sure:
                sure = min(sure, self.sure_of_latest(border, places))
            evidence.append(border.score / sure)
        return evidence

    def doubt(self, places: Sequence[int]) -> tuple[_Border, int] | None:
        """Return the most significant shift of the latest runs, if there is a possible one."""
        begin, end = places[-1] if places else 0, len(self.runs)
        shifts = [
            (self.border(begin, end - runs, end), end - runs)
            for runs in LATEST
            if begin + LEAST_AFTER <= end - runs
        ]
        best = max(shifts, key=lambda shift: shift[0].score, default=None)
        return best if best is not None and best[0].score >= DOUBT else None

    def _border(self, begin: int, place: int, end: int) -> _Border:
        """Return the evidence of a border."""
        begin, end = max(begin, place - SIDE), min(end, place + SIDE)
        levels = (float(median(runs)) for runs in (self.runs[begin:place], self.runs[place:end]))
        return _Border(float(self._sums.score(begin, place, end)), *levels)

    def sure_of_latest(self, border: _Border, places: Sequence[int]) -> float:
        """Return the minimum score of the latest border, by those before it; infinite: unknown."""
        place, first = places[-1], max(0, places[-1] - RECENT)
        after, earlier = self.runs[place : place + SIDE], self.runs[first:place].copy()
        # Of the runs, those at the new level and at hours with earlier runs count.
        near = (after - border.after) * border.effect > -(border.effect**2) / 2
        if abs(border.effect) < LARGE:
            near = near[like_hours(self._times[first:place], self._times[place : place + SIDE])]
        # Few runs before it have no long windows: further runs must not take a report back.
        runs = min(len(after), max(LEAST_AFTER, (len(earlier) - LEAST_SIDE) // 2))
        at = np.arange(LEAST_SIDE, len(earlier) - runs + 1)
        if abs(border.effect) < NOTABLE or near.sum() < LEAST_AFTER or not len(at):
            return math.inf
        for begin, end in pairwise([0, *(other - first for other in places if other > first)]):
            earlier[begin:end] -= median(earlier[begin:end])
        scores = _Sums(earlier).score(np.maximum(0, at - SIDE), at, at + runs)
        return max(SURE_BACK, UNUSUAL * float(scores.max()))


class _Sums:
    """Sums of runs, their squares and the products of neighbors, which give all scores at once."""

    def __init__(self, runs: Matrix) -> None:
        self._away = runs - median(runs)  # keeps the sums small
        self._sums = _running(self._away)
        self._squares = _running(self._away**2)
        self._products = _running(self._away[1:] * self._away[:-1])

    def score(self, begin: Places | int, place: Places | int, end: Places | int) -> Matrix:
        """Return scores of borders: Student's t, with autocorrelation."""
        early, late = self._side(begin, place), self._side(place, end)
        count, power = end - begin, early[1] + late[1]
        # Subtracting the mean of few runs makes them appear negatively correlated.
        likeness = (early[2] + late[2]) / np.maximum(power, TINY**2) + 1 / count
        likeness = np.clip(likeness, 0.0, MOST) * count / (count + 5)
        likeness = np.maximum(0.0, likeness - FREE) / (1 - FREE)
        wider = (1 + likeness) / (1 - likeness)
        common = LIKE * power / np.maximum(1, count - 2)
        error = sum(
            (own + common) / (runs - 1 + LIKE) / runs
            for own, runs in ((early[1], place - begin), (late[1], end - place))
        )
        apart = (late[0] - early[0]) / (np.sqrt(wider * error) + TINY)
        degrees = np.maximum(2.0, (count - 2) / wider)
        return np.asarray(np.sqrt(degrees * np.log1p(apart**2 / degrees)))

    def _side(self, begin: Places | int, end: Places | int) -> tuple[Matrix, Matrix, Matrix]:
        """Return mean, sum of squares and of products of neighbors, both about the mean."""
        runs, total = end - begin, self._sums[end] - self._sums[begin]
        mean = total / runs
        power = np.maximum(0.0, self._squares[end] - self._squares[begin] - runs * mean**2)
        inner = 2 * total - self._away[begin] - self._away[end - 1]
        products = self._products[end - 1] - self._products[begin]
        return mean, power, products - mean * inner + (runs - 1) * mean**2


# --- the first days, in which hours of the day have not recurred yet ---

BEYOND: Final = 0.1
"""Maximum share of the runs before a shift that are beyond its level; more show a part of a day."""


def in_first_days(history: CaseHistory) -> Scanned:
    """Return a shift of the latest runs, beyond nearly all that a day or more before it shows.

    Hours of the day that have not recurred yet may explain it: otherwise, it is possible only.
    """
    logs, times = history.logs(), history.times()
    levels, places = _levels_of(logs, times)
    place = places[-1] if places else 0
    if place < bisect_left(times, times[0] + DAY):
        return Scanned()
    border = levels.border(0, place, len(logs))
    beyond = (logs[:place] - border.after) * border.effect >= 0
    if border.score < DOUBT or beyond.mean() > BEYOND:
        return Scanned()
    step = border.step(history, place)
    if abs(step.effect) >= LARGE or border.score >= levels.sure_of_latest(border, [place]):
        return Scanned(steps=(step,))
    return Scanned(doubt=step)
