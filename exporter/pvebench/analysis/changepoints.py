"""Change points at unknown times: steps of a case's level, found run by run.

The latest runs are compared with the level before them, up to the last step. A highly significant
shift is a step and stays one; a possible shift is a doubt. Repeated temporary departures from a
level are typical of the case and not reported as changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, Places, np
from pvebench.analysis.difference import two_sided
from pvebench.analysis.levels import AROUND, MAD_TO_SIGMA, SCALE_RUNS, TINY, Cleaned, cleaned
from pvebench.analysis.noise_patterns import first_days, without_hours
from pvebench.analysis.window_scan import (
    LAG,
    LEAST,
    WINDOW,
    Before,
    Shifted,
    before_each,
    blocks_of,
    longest_strays,
)

# --- return to the level before the last step, even if the runs between are noisy ---

LONG: Final = 14
"""Number of latest runs at the earlier level: longer than a pause between two bursts of load."""
NEARER: Final = 0.85
"""Minimum share of them that is closer to the earlier level than to the one after the step."""
WITHIN: Final = 0.35
"""Maximum distance of their median from the earlier level, as a share of the step."""
APART: Final = 2.0
"""Minimum size of the step in scales of the earlier runs, so that single runs are separable."""
BY_CHANCE: Final = 3e-8
"""p-value of so many runs, each one scale away, at the level after the step."""
SHORTEST: Final = 3
"""Minimum runs between a step and the return."""
RECOVERY_WINDOW: Final = 80
"""Runs before the step that estimate the scale."""


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
    earlier = runs[max(since, at - RECOVERY_WINDOW) : at]
    scale = MAD_TO_SIGMA * float(np.median(np.abs(earlier - level)))
    if abs(effect) < APART * max(scale, TINY):
        return returned
    away = np.lib.stride_tricks.sliding_window_view(runs[first:], LONG) - level
    near = np.mean(np.abs(away) < abs(effect) / 2, axis=-1) >= NEARER
    middle = np.abs(np.median(away, axis=-1)) < WITHIN * abs(effect)
    returned[first + LONG - 1 + LAG :] = (near & middle)[:-LAG]
    return returned


# --- the scan ---

BLOCK: Final = 512
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
ALIKE: Final = 0.35
"""Share of a shift within which two levels are equal."""
SMALLEST: Final = 0.01
"""Minimum shift, as a logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A shift of the level; effects are logarithms, positive is better.

    Attributes:
        index: estimated first run after the change.
        seen: run at which it was detected.
        effect: size of the shift when it was detected.
        p_value: probability of such a shift by chance.
        before: level before it.
        back: whether the case had the level after it before.
    """

    index: int
    seen: int
    effect: float
    p_value: float
    before: float
    back: bool = False


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
        doubts: list[ChangePoint] = []
        for block in range(first, len(self._values), BLOCK):
            self._scan(block, steps, doubts)
        return Scanned(tuple(steps), doubts[0] if doubts else None)

    def _scan(self, block: int, steps: list[ChangePoint], doubts: list[ChangePoint]) -> None:
        """Add the steps that the runs of a block reveal."""
        begin = max(block, LEAST, first_days(self._times))
        end = min(block + BLOCK, len(self._values))
        cut = max(0, block - CONTEXT)
        while begin < end:
            point = self._within(steps, cut, begin, end, doubts)
            if point is None:
                return
            steps.append(point)
            begin = point.seen + 1

    def _within(
        self,
        steps: Sequence[ChangePoint],
        context: int,
        begin: int,
        end: int,
        doubts: list[ChangePoint],
    ) -> ChangePoint | None:
        """Return the first step that one of the runs from `begin` to before `end` reveals."""
        runs = self._without_hours(steps, context, min(end + AROUND, len(self._values)))
        cut = max(context, steps[-1].index - BEHIND if steps else 0)
        steps = [_moved(step, -cut) for step in steps if step.index >= cut]
        clean = cleaned(runs[cut - context :])
        start = steps[-1].index if steps else 0
        before = before_each(clean, start)
        past, last = _Past(clean, start, steps), len(self._values) - 1 - cut
        blocks = blocks_of(clean, before, start, past.again)
        if not len(blocks.now):
            return None
        early = blocks.clearest()
        worth = (early.score >= (SURE_BACK if steps else SURE)) | past.again
        worth[last:] |= early.score[last:] >= DOUBT
        candidates = np.flatnonzero(worth[begin - cut : end - cut]) + begin - cut
        if not len(candidates):
            return None
        usual = _least_after(clean, before)
        sure = blocks.that_last(usual).clearest()
        for run in candidates.tolist():
            point, certain = past.judge(run, sure, early, int(usual[run]))
            if point is not None and certain:
                # Later runs must not matter, so that a history always has the same steps.
                then = _Past(cleaned(runs[cut - context : cut - context + run + 1]), start, steps)
                point, _ = then.judge(run, sure, early, int(usual[run]))
            if point is not None and certain:
                return _moved(point, cut)
            if point is not None and run == last:
                doubts.append(_moved(point, cut))
        return None

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
            point = self._step(run, LONG, early, back=True)
            return point and replace(point, p_value=min(point.p_value, BY_CHANCE)), True
        back = self._was_there(run, early)
        which = sure
        certain = sure.score[run] >= SURE
        if back and early.score[run] >= SURE_BACK and early.block[run] >= min(after, LEAST_AFTER):
            which, certain = (sure, True) if certain else (early, early.block[run] >= after)
        if not certain:
            which = early
        step = self._step(run, int(which.block[run]), which, back=back)
        return step, certain and step is not None

    def _step(self, run: int, block: int, which: Shifted, *, back: bool) -> ChangePoint | None:
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
            back=back,
        )

    def _level(self, start: int, end: int) -> float:
        return float(np.median(self._clean.runs[max(start, end - WINDOW) : max(end, start + 1)]))

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


def _least_after(clean: Cleaned, before: Before) -> Places:
    """Return the minimum duration of a step: longer than any recent departure from the level."""
    usual: Places = np.clip(longest_strays(clean, before, RECENT) + 2, LEAST_AFTER, MOST_AFTER)
    return usual


def _moved(step: ChangePoint, by: int) -> ChangePoint:
    return replace(step, index=step.index + by, seen=step.seen + by)
