"""Change points at unknown times: steps of a case's level, found run by run.

The latest runs are compared with the level before them, up to the last step. A highly significant
shift is a step and stays one; a possible shift is a doubt. Repeated temporary departures from a
level are typical of the case and not reported as changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, np
from pvebench.analysis.difference import two_sided
from pvebench.analysis.levels import (
    AROUND,
    MAD_TO_SIGMA,
    SCALE_RUNS,
    TINY,
    Cleaned,
    cleaned,
    median,
)
from pvebench.analysis.noise_patterns import ALIKE, first_days, without_hours
from pvebench.analysis.window_scan import (
    LAG,
    LEAST,
    WINDOW,
    Shifted,
    before_each,
    blocks_of,
    longest_strays,
)
from pvebench.model.units import DAY

# --- return to the level before the last step, even if the runs between are noisy ---

LONG: Final = 14
"""Number of latest runs at the earlier level: longer than a pause between two bursts of load."""
NEARER: Final = 0.85
"""Minimum share of them that is closer to the earlier level than to the one after the step."""
APART: Final = 2.0
"""Minimum size of the step in scales of the earlier runs, so that single runs are separable."""
BY_CHANCE: Final = 3e-8
"""p-value of so many runs, each one scale away, at the level after the step."""
SHORTEST: Final = 3
"""Minimum runs between a step and the return."""


def back_again(runs: Matrix, since: int, at: int, level: float, effect: float) -> Flags:
    """Return for every run as the latest whether the latest `LONG` runs are at the earlier level.

    The runs after a step may be noisy, for example due to another VM's load, and then have no
    stable level; the runs before the step have one, and a known scale.

    Args:
        runs: [runs] logarithms, without glitches.
        since: first run of the earlier level.
        at: first run after the step.
        level: the earlier level.
        effect: size of the step.
    """
    returned = np.zeros(len(runs), dtype=bool)
    first = at + SHORTEST
    if len(runs) < first + LONG + LAG:
        return returned
    earlier = runs[max(since, at - WINDOW) : at]
    scale = MAD_TO_SIGMA * float(np.median(np.abs(earlier - level)))
    if abs(effect) < APART * max(scale, TINY):
        return returned
    away = np.lib.stride_tricks.sliding_window_view(runs[first:], LONG) - level
    near = np.mean(np.abs(away) < abs(effect) / 2, axis=-1) >= NEARER
    middle = np.abs(np.median(away, axis=-1)) < ALIKE * abs(effect)
    returned[first + LONG - 1 + LAG :] = (near & middle)[:-LAG]
    return returned


# --- the scan ---

BLOCK: Final = 1024
"""Runs that are scanned at once."""
CONTEXT: Final = 1536
"""Runs before a block that matter, so that the cost of a run does not grow with the history."""
RECENT: Final = 300
"""Runs within which earlier levels and temporary departures from a level count."""
DOUBT: Final = 4.0
"""Minimum score of a possible shift."""
SURE: Final = 7.8
"""Minimum score of a step: histories of real benchmarks reach 6 without a change."""
SURE_BACK: Final = 6.0
"""Minimum score of a step back to an earlier level, which is more plausible."""
BEHIND: Final = RECENT + SCALE_RUNS + AROUND
"""Runs before the last step that influence the runs after it."""
LEAST_AFTER: Final = 6
"""Minimum runs after a step: five slow runs of one day are not a step."""
MOST_AFTER: Final = 9
"""Runs after a step that always suffice, however long the level was left before."""
SMALLEST: Final = 0.01
"""Minimum shift, as a logarithm."""
FIRST_DAY: Final = 12
"""Minimum runs of the first day, from which a shift is possible before the hours recur …"""
CLEARLY: Final = 3.0
"""… and the minimum gap between all runs before and after it, in scales of that day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A shift of the level; effects are logarithms, positive is better.

    Attributes:
        index: estimated first run after the change.
        seen: run at which it was detected.
        effect: size of the shift when it was detected.
        p_value: probability of such a shift by chance.
        before: level before it.
    """

    index: int
    seen: int
    effect: float
    p_value: float
    before: float


@dataclass(frozen=True, slots=True)
class Scanned:
    """Result of a scan: steps, oldest first, and a possible step at the latest run."""

    steps: tuple[ChangePoint, ...]
    doubt: ChangePoint | None


class LevelScan:
    """Detection of steps in one history.

    Args:
        values: [runs] logarithms, oldest first.
        times: when they ended, seconds; empty: ignore effects of the hour.
    """

    def __init__(self, values: Sequence[float] | Matrix, times: Sequence[float] = ()) -> None:
        self._values, self._times = np.asarray(values, dtype=float), times

    def detect(self, known: Sequence[ChangePoint] = (), since: int = 0) -> Scanned:
        """Return all steps; each run is judged only with the runs up to it.

        Args:
            known: steps that an earlier scan of the same history found.
            since: number of runs that it has seen.
        """
        # Blocks begin at the same runs whenever a history is scanned, so that the result is equal.
        first = since // BLOCK * BLOCK
        steps = [step for step in known if step.seen < first]
        if len(self._values) <= first_days(self._times):
            return Scanned((), in_first_days(self._values, self._times))
        doubts = [self._scan(block, steps) for block in range(first, len(self._values), BLOCK)]
        return Scanned(tuple(steps), doubts[-1] if doubts else None)

    def _scan(self, block: int, steps: list[ChangePoint]) -> ChangePoint | None:
        """Add the steps that the runs of a block reveal; return a possible one at the last run."""
        begin = max(block, LEAST, first_days(self._times))
        end = min(block + BLOCK, len(self._values))
        cut = max(0, block - CONTEXT)
        while begin < end:
            point, certain = self._within(steps, cut, begin, end)
            if point is None or not certain:
                return point
            steps.append(point)
            begin = point.seen + 1
        return None

    def _within(
        self, steps: Sequence[ChangePoint], context: int, begin: int, end: int
    ) -> tuple[ChangePoint | None, bool]:
        """Return the first step that one of the runs from `begin` to before `end` reveals.

        Also return whether it is certain; a possible step is one at the latest run.
        """
        runs = self._without_hours(steps, context, min(end + AROUND, len(self._values)))
        cut = max(context, steps[-1].index - BEHIND if steps else 0)
        steps = [_moved(step, -cut) for step in steps if step.index >= cut]
        clean = cleaned(runs[cut - context :])
        start = steps[-1].index if steps else 0
        before = before_each(clean, start)
        past, last = _Past(clean, start, steps), len(self._values) - 1 - cut
        blocks = blocks_of(clean, before, start, past.again)
        if not len(blocks.now):
            return None, False
        early = blocks.clearest()
        worth = (early.score >= (SURE_BACK if steps else SURE)) | past.again
        worth[last:] |= early.score[last:] >= DOUBT
        candidates = np.flatnonzero(worth[begin - cut : end - cut]) + begin - cut
        if not len(candidates):
            return None, False
        # Longer than any recent departure from the level.
        usual = np.clip(longest_strays(clean, before, RECENT) + 2, LEAST_AFTER, MOST_AFTER)
        sure = blocks.that_last(usual).clearest()
        worth = (sure.score >= SURE) | (early.score >= SURE_BACK) & (early.block >= usual)
        worth |= past.again
        worth[last:] = True
        for run in candidates[worth[candidates]].tolist():
            point, certain = past.judge(run, sure, early, int(usual[run]))
            if point is not None and certain:
                # Later runs must not matter, so that a history always has the same steps.
                then = _Past(cleaned(runs[cut - context : cut - context + run + 1]), start, steps)
                point, _ = then.judge(run, sure, early, int(usual[run]))
            if point is not None and (certain or run == last):
                return _moved(point, cut), certain
        return None, False

    def _without_hours(self, steps: Sequence[ChangePoint], begin: int, end: int) -> Matrix:
        """Return the runs from `begin` to before `end` without the effects of their hour."""
        own = [(step.index - begin, step.effect) for step in steps if step.index > begin]
        return without_hours(self._values[begin:end], self._times[begin:end], own)


class _Past:
    """Earlier levels of a case."""

    def __init__(self, clean: Cleaned, start: int, steps: Sequence[ChangePoint]) -> None:
        self._clean, self._start, self._steps = clean, start, steps
        self.again = np.zeros(len(clean.runs), dtype=bool)
        if steps:
            since = steps[-2].index if len(steps) > 1 else 0
            last = steps[-1]
            self.again = back_again(clean.runs, since, last.index, last.before, last.effect)

    def judge(
        self, run: int, sure: Shifted, early: Shifted, after: int
    ) -> tuple[ChangePoint | None, bool]:
        """Return the step that the run reveals, and whether it is confirmed."""
        if self.again[run]:
            point = self._step(run, LONG, early)
            return point and replace(point, p_value=min(point.p_value, BY_CHANCE)), True
        back = self._was_there(run, early)
        which, certain = sure, bool(sure.score[run] >= SURE)
        if not certain:
            which = early
            certain = back and early.score[run] >= SURE_BACK and early.block[run] >= after
        step = self._step(run, int(which.block[run]), which)
        return step, bool(certain) and step is not None

    def _step(self, run: int, block: int, which: Shifted) -> ChangePoint | None:
        """Return the step to the latest runs; None if it is too small."""
        index = self._place(run, block)
        before = self._level(self._start, index)
        # The block may begin before or after the border.
        effect = self._level(index, run + 1) - before
        if abs(effect) < SMALLEST:
            return None
        return ChangePoint(
            index=index,
            seen=run,
            effect=effect,
            p_value=float(two_sided(which.score[run], math.inf)),
            before=before,
        )

    def _level(self, start: int, end: int) -> float:
        return float(median(self._clean.runs[max(start, end - WINDOW) : max(end, start + 1)]))

    def _was_there(self, run: int, early: Shifted) -> bool:
        effect = float(early.effect[run])
        now = self._level(self._start, run - int(early.block[run]) + 1) + effect
        return any(
            abs(now - step.before) < ALIKE * abs(effect)
            for step in self._steps
            if run - step.index < RECENT
        )

    def _place(self, run: int, block: int) -> int:
        """Return the border near the start of the block that separates the runs best."""
        first = run - block + 1
        begin = max(self._start, first - WINDOW)
        low = max(self._start + 3, first - max(6, block // 2))
        high = min(run - 2, first + max(4, block // 2))
        places = np.arange(low, high + 1)
        if not len(places):
            return first
        running = np.concatenate([[0.0], np.cumsum(self._clean.runs[begin : run + 1])])
        left, total = places - begin, run + 1 - begin
        old = running[left] / left
        new = (running[-1] - running[left]) / (total - left)
        return int(places[np.argmax((new - old) ** 2 * left * (total - left))])


def in_first_days(values: Matrix, times: Sequence[float]) -> ChangePoint | None:
    """Return a possible shift at the latest runs, beyond all that a day or more before it shows.

    Hours of the day that have not recurred yet may explain smaller shifts.
    """
    last = len(values) - LEAST_AFTER
    if last < FIRST_DAY or not FIRST_DAY <= (day := bisect_left(times, times[0] + DAY)) <= last:
        return None
    level = float(np.median(values[:day]))
    scale = max(TINY, MAD_TO_SIGMA * float(np.median(np.abs(values[:day] - level))))
    away = (values - level) / scale
    away *= np.sign(np.median(away[last:]))
    after = np.minimum.accumulate(away[::-1])[::-1][day : last + 1]
    gaps = after - np.maximum.accumulate(away)[day - 1 : last]
    index = day + int(np.argmax(gaps))
    if gaps.max() < CLEARLY:
        return None
    effect, chance = float(np.median(values[index:])) - level, two_sided(gaps.max(), math.inf)
    return ChangePoint(
        index=index, seen=len(values) - 1, effect=effect, p_value=float(chance), before=level
    )


def _moved(step: ChangePoint, by: int) -> ChangePoint:
    return replace(step, index=step.index + by, seen=step.seen + by)
