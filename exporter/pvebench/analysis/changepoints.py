"""Unknown time: where a case's level moved, found run by run.

The newest runs are held against the level before them, up to the last step. What is far beyond
chance is a step, and stays one; what may be chance is a doubt. A level that was left for some runs
again and again, or that is visited again and again, is this case's nature and no news.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, np
from pvebench.analysis.difference import two_sided
from pvebench.analysis.levels import AROUND, MAD_TO_SIGMA, SCALE_RUNS, TINY, Cleaned, cleaned
from pvebench.analysis.noise_patterns import Hourly, first_days, spread_out
from pvebench.analysis.window_scan import (
    BACK,
    BACK_CLEAR,
    CLEAR,
    LEAST,
    STRAYED,
    STRAYED_CLEAR,
    WINDOW,
    Before,
    MustLast,
    Shifted,
    before_each,
    blocks_of,
    longest_strays,
)

# --- The way back to the level before the last step, however restless the runs between were.

LONG: Final = 14
"""Newest runs that must be back: more than a pause between two bursts of load."""
NEARER: Final = 0.85
"""Share of them that must be nearer to the earlier level than to the one after the step."""
WITHIN: Final = 0.35
"""Share of the step within which their middle must lie from the earlier level."""
APART: Final = 2.0
"""Scales of the earlier runs by which a step must be large, so that every run tells its side."""
BY_CHANCE: Final = 3e-8
"""p-value of as many runs, each a scale off, at the level after the step."""
SHORTEST: Final = 3
"""Runs between a step and the way back."""
RECOVERY_WINDOW: Final = 80
"""Runs before the step that tell how far one strays."""


def back_again(runs: Matrix, since: int, at: int, level: float, effect: float) -> Flags:
    """Tell for every run as the newest one whether the newest `LONG` are at the earlier level.

    What was measured after a step may be restless, as a neighbour's load is, and then says
    little of its own level; the runs before the step know theirs, and how far they stray.

    Args:
        runs: [runs] logarithms, without glitches.
        since: first run of the level that was left.
        at: first run after the step.
        level: that was left.
        effect: of the step.
    """
    found = np.zeros(len(runs), dtype=bool)
    first = at + SHORTEST
    if len(runs) < first + LONG:
        return found
    earlier = runs[max(since, at - RECOVERY_WINDOW) : at]
    scale = MAD_TO_SIGMA * float(np.median(np.abs(earlier - level)))
    if abs(effect) < APART * max(scale, TINY):
        return found
    away = np.lib.stride_tricks.sliding_window_view(runs[first:], LONG) - level
    near = np.mean(np.abs(away) < abs(effect) / 2, axis=-1) >= NEARER
    middle = np.abs(np.median(away, axis=-1)) < WITHIN * abs(effect)
    found[first + LONG - 1 :] = near & middle
    return found


NEWEST: Final = 480
"""Newest runs that are looked at, so that a run costs the same after a month and after years."""
RECENT: Final = 300
"""Runs within which an earlier level, or how long one was left, is remembered."""
DOUBT: Final = 4.0
"""Score from which a shift is worth a second look."""
SURE: Final = 7.5
"""Score from which it is a step: histories of real benchmarks make 6 by themselves."""
SURE_BACK: Final = 6.0
"""The same for a step back to an earlier level: it is no news that the case can be there."""
BEHIND: Final = RECENT + SCALE_RUNS + AROUND
"""Runs before the last step that still say anything of those after it."""
AHEAD: Final = 4096
AHEAD_AGAIN: Final = 512
AHEAD_TIMES: Final = 4
"""Runs that are looked through at once: at first, after a step, and by how many times more where
there is none."""
LEAST_AFTER: Final = 6
"""Runs after a step: a bad day of five is none."""
MOST_AFTER: Final = 14
"""Runs after a step that are enough, however long the level has been left before."""
ALIKE: Final = 0.35
"""Share of a shift within which two levels are the same."""
VISITS: Final = 4
"""Visits after which a level is a mode of the case, and being there again is no news."""
CLEAR_VISITS: Final = 9
"""The same where the levels are so far apart that every visit is seen."""
SMALLEST: Final = 0.01
"""Shift, as a logarithm, that nobody would call one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A level that moved; effects are logarithms, plus for better.

    Attributes:
        index: first run after the change, as far as can be told.
        seen: run at which it was found.
        effect: shift, as it was seen then.
        p_value: of a shift as large by chance.
        runs: after it, when it was found.
        before: level before it.
        back: whether the level after it is one that the case has had before.
        mode: whether the case is there again and again, so that it is no news.
    """

    index: int
    seen: int
    effect: float
    p_value: float
    runs: int
    before: float
    back: bool = False
    mode: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """What was found: steps, oldest first, and what the newest run shows that may become one."""

    steps: tuple[ChangePoint, ...]
    doubt: ChangePoint | None


class LevelScan:
    """Finds steps in one history.

    Args:
        values: [runs] logarithms, oldest first.
        times: when they ended, seconds; empty: hours do not count.
    """

    def __init__(self, values: Sequence[float] | Matrix, times: Sequence[float] = ()) -> None:
        self._values, self._times = np.asarray(values, dtype=float), times
        self._hourly = Hourly(self._values, times) if spread_out(times) else None

    def detect(self) -> Scanned:
        """Return all steps, each run judged with what was known when it was made."""
        steps: list[ChangePoint] = []
        doubts: list[ChangePoint] = []
        begin = max(LEAST, first_days(self._times))
        while True:
            found = self._next(steps, begin, doubts)
            if found is None:
                return Scanned(tuple(steps), doubts[0] if doubts else None)
            self._learn(steps, found)
            begin = found.seen + 1

    def newest(self, steps: Sequence[ChangePoint], since: int) -> Scanned:
        """Return the steps with those that the runs from number `since` on bring.

        Their cost does not grow with the history.
        """
        cut = max(0, since - NEWEST)
        since = max(since, first_days(self._times))
        tail = LevelScan(self._values[cut:], self._times[cut:])
        known = [_moved(step, -cut) for step in steps if step.index > cut]
        found, doubts, begin = list[ChangePoint](), list[ChangePoint](), since - cut
        for step in known:
            tail._learn(found, step)
        while (new := tail._next(found, begin, doubts)) is not None:
            tail._learn(found, new)
            begin = new.seen + 1
        more = [_moved(step, cut) for step in found[len(known) :]]
        return Scanned((*steps, *more), _moved(doubts[0], cut) if doubts else None)

    def _learn(self, steps: list[ChangePoint], step: ChangePoint) -> None:
        """Add a step to those that are known: it says nothing of hours."""
        steps.append(step)
        if self._hourly is not None:
            self._hourly.add_step(step.index, step.effect)

    def _next(
        self, steps: Sequence[ChangePoint], begin: int, doubts: list[ChangePoint]
    ) -> ChangePoint | None:
        """Return the first step after the known ones that run `begin` or a later one shows."""
        # A history of many steps would be gone through once for each of them.
        size = AHEAD_AGAIN if steps else AHEAD
        while begin < len(self._values):
            end = min(begin + size, len(self._values))
            found = self._within(steps, begin, end, doubts)
            if found is not None:
                return found
            begin, size = end, AHEAD_TIMES * size
        return None

    def _within(
        self, steps: Sequence[ChangePoint], begin: int, end: int, doubts: list[ChangePoint]
    ) -> ChangePoint | None:
        """Return the first step that one of the runs from `begin` to before `end` shows."""
        cut = max(0, steps[-1].index - BEHIND) if steps else 0
        steps = [_moved(step, -cut) for step in steps if step.index >= cut]
        clean = cleaned(self._levelled(cut, end + AROUND))
        start = steps[-1].index if steps else 0
        before = before_each(clean, start)
        past, last = _Past(clean, start, steps), len(self._values) - 1 - cut
        blocks = blocks_of(clean, before, start, past.again)
        if not len(blocks.now):
            return None
        early = blocks.clearest()
        worth = (early.score >= (SURE_BACK if steps else SURE)) | past.again
        worth[last:] |= early.score[last:] >= DOUBT
        looked_at = np.flatnonzero(worth[begin - cut : end - cut]) + begin - cut
        if not len(looked_at):
            return None
        after = _least_after(clean, before)
        sure = blocks.that_last(after).clearest()
        for run in looked_at.tolist():
            found, certain = past.judge(run, sure, early, int(after.usual[run]))
            if found is not None and certain:
                return _moved(found, cut)
            if found is not None and run == last and not found.mode:
                doubts.append(_moved(found, cut))
        return None

    def _levelled(self, begin: int, end: int) -> Matrix:
        """Return the runs from `begin` to before `end` without what their hour does."""
        found = self._values[begin:end]
        return (
            found
            if self._hourly is None
            else found - self._hourly.effects(begin, begin + len(found))
        )


class _Past:
    """The levels that a case has had."""

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
        """Return what the run shows, and whether it is sure."""
        if self.again[run]:
            found = self._step(run, LONG, early, back=True)
            return found and replace(found, p_value=min(found.p_value, BY_CHANCE)), True
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
        """Return the step that the newest runs make; None if nobody would call it one."""
        index = self._place(run, block)
        before = self._level(self._start, index)
        # The block may have begun before the border, or after it.
        effect = self._level(index, run + 1) - before
        if abs(effect) < SMALLEST:
            return None
        step = ChangePoint(
            index=index,
            seen=run,
            effect=effect,
            p_value=float(two_sided(which.score[run], math.inf)),
            runs=run - index + 1,
            before=before,
            back=back,
        )
        visits = self._visits(index, before, effect, float(which.apart[run]))
        clear = which.apart[run] >= CLEAR
        mode = visits >= (CLEAR_VISITS if clear else VISITS)
        return replace(step, mode=mode)

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
        """Return the border near the block's begin that parts the runs best."""
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

    def _visits(self, index: int, before: float, effect: float, apart: float) -> int:
        """Return how often the runs before have been where the step leads, and left again.

        Where the levels are hardly apart, more runs together tell which one it is.
        """
        width = int(np.clip(math.ceil((7 / max(apart, 0.5)) ** 2), 3, 41))
        runs = self._clean.runs[max(0, index - RECENT) : index]
        if len(runs) < width:
            return 0
        running = np.concatenate([[0.0], np.cumsum(runs)])
        share = ((running[width:] - running[:-width]) / width - before) / effect
        there = np.where((share > 0.65) & (share < 1.6), 1, np.where(share < 0.35, -1, 0))
        clear = there[there != 0]
        return int(clear[0] == 1) + sum(_rises(clear.tolist())) if len(clear) else 0


def _least_after(clean: Cleaned, before: Before) -> MustLast:
    """Return longer than the level was ever left before, by as much as may be compared."""
    usual, clear = (
        np.clip(
            longest_strays(clean, before, RECENT, strayed=strayed, back=back) + 2,
            LEAST_AFTER,
            MOST_AFTER,
        )
        for strayed, back in ((STRAYED, BACK), (STRAYED_CLEAR, BACK_CLEAR))
    )
    return MustLast(usual, np.minimum(usual, clear))


def _rises(signs: Iterable[int]) -> Iterable[bool]:
    return (before < after for before, after in itertools.pairwise(signs))


def _moved(step: ChangePoint, by: int) -> ChangePoint:
    return replace(step, index=step.index + by, seen=step.seen + by)
