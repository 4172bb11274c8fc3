"""Unknown time: where a case's level moved, found run by run, and what may have moved it.

A scan over blocks of the newest runs. Each block's shift is measured in the scale that blocks of
its length have had in this history, and the largest of them in the scale that the largest has
had: the history pays for the looking, too.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from pvebench.analysis.levels import agreed, quantile, references, shifts, spread
from pvebench.analysis.placebo import LEAST, critical, two_sided

if TYPE_CHECKING:
    from pvebench.analysis.levels import Matrix, Places

    Shifts = tuple[Matrix, Matrix]

BLOCKS: Final = (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20)
"""Runs after a change that are looked at. Three at least: one point is never a change."""
PENALTY: Final = {3: 1.3, 4: 1.15}
"""Short blocks agree by accident more often than their scale tells."""
WINDOW: Final = 80
PRIOR: Final = 50.0
MOST: Final = 300
"""Newest runs that are looked at, so that a run costs the same after a month and after years."""
ENOUGH: Final = 40
"""Earlier maxima that make a scale; before there are so many, nothing is said."""
REVISIT: Final = 0.35
"""Share of a shift within which the new level is one that an earlier segment had already."""
USUAL: Final = 0.8
"""Quantile of the scan's earlier maxima that is its scale."""
TO_SCORE: Final = 1.75
"""What that quantile is worth in standard deviations, for the p-value."""
LOOKS: Final = 5.0
"""Independent looks among the blocks of different lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A level that moved; effects are logarithms, plus for better.

    Attributes:
        index: first run after the change, as far as can be told.
        seen: run at which it was found.
        effect, low, high: shift and its 95 % interval.
        p_value: of a shift as large at any place by chance.
        runs: it rests on.
    """

    index: int
    seen: int
    effect: float
    low: float
    high: float
    p_value: float
    runs: int


class Detector(Protocol):
    """Finds changes in a series of logarithms, oldest first."""

    def detect(self, values: Sequence[float]) -> tuple[Step, ...]:
        """Return all changes in the order of their index."""


@dataclass(frozen=True, slots=True)
class PlaceboScan:
    """Our own scan.

    Attributes:
        threshold: how many times its usual size the scan's maximum must have. The default is
            the smallest that keeps `make bench-detection`'s aims for false alarms.
    """

    threshold: float = 2.15

    def newest(self, values: Sequence[float], starts: Sequence[int] = (0,)) -> Step | None:
        """Return the change that the newest run completes, or None.

        Args:
            values: [runs], oldest first.
            starts: where segments begin that are known already; the level before is taken
                from the last one only, the placebos from all.
        """
        if len(values) - starts[-1] < LEAST + BLOCKS[0]:
            return None
        cut = max(0, len(values) - MOST)
        inner = sorted({0, *(start - cut for start in starts if start > cut)})
        past = _trace(values[cut:], [0])
        now = past if len(inner) == 1 else _trace(values[cut:], inner)
        step = _judge(past, now, len(values) - cut, self.threshold)
        return None if step is None else _moved(step, cut)

    def detect(self, values: Sequence[float]) -> tuple[Step, ...]:
        """Return all changes, each run judged with what was known when it was made."""
        starts, found = [0], list[Step]()
        past = now = _trace(values, starts)
        for runs in range(LEAST + BLOCKS[0], len(values) + 1):
            step = _judge(past, now, runs, self.threshold)
            if step is not None:
                found.append(step)
                starts.append(step.index)
                now = _trace(values, starts)
        return tuple(found)


def _moved(step: Step, by: int) -> Step:
    return Step(
        index=step.index + by, seen=step.seen + by, effect=step.effect, low=step.low,
        high=step.high, p_value=step.p_value, runs=step.runs,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Trace:
    """Shifts of every block at every place: {block: (shift, guarded shift)}, each [places]."""

    values: Matrix
    parts: dict[int, Shifts]
    segments: tuple[float, ...]


def _trace(values: Sequence[float], starts: Sequence[int]) -> _Trace:
    """Return the shifts at all places; a place uses only runs before the end of its block."""
    import numpy as np

    row = np.asarray(values, dtype=float)[None, :]
    runs = row.shape[1]
    level, scale = (np.full((1, runs + 1), np.nan) for _ in range(2))
    length = np.ones(runs + 1)
    for start, end in zip(starts, [*starts[1:], runs], strict=True):
        part = references(row[:, start:end], window=WINDOW, least=LEAST)
        level[:, start : end + 1], scale[:, start : end + 1] = part
        length[start : end + 1] = np.clip(np.arange(end - start + 1), 1, WINDOW)
    parts = {}
    for block in BLOCKS:
        if block > runs:
            break
        mean, guard = (part[0] for part in shifts(row, level, scale, block=block))
        # A level of twelve runs is less sure of itself than one of eighty.
        sure = np.sqrt((1 / block + 1 / WINDOW) / (1 / block + 1 / length[: len(guard)]))
        parts[block] = (mean, guard * sure)
    medians = (np.median(row[0, a:b]) for a, b in itertools.pairwise([*starts, runs]) if b > a)
    return _Trace(row[0], parts, tuple(float(median) for median in medians))


def _judge(past: _Trace, now: _Trace, runs: int, threshold: float) -> Step | None:
    """Return the change that run number `runs` completes; later runs are not looked at.

    The newest block must have left both the level of its own segment (`now`) and that of the
    history as if no change had been noticed (`past`), in the scale of the latter: one that
    jumps to and fro, or drifts, pays for it for ever, and one that has jumped once forgets it
    in time. A level that an earlier segment had is no second change either; it shows as being
    back at the baseline.
    """
    import numpy as np

    first = max(0, runs - MOST)
    scales = _scales(past, runs, first)
    scores = {}
    for block, scale in scales.items():
        old, new = (_size(trace.parts[block], runs - block) for trace in (past, now))
        if old * new > 0:
            scores[block] = min(abs(old), abs(new)) / scale
    if not scores:
        return None
    best = max(scores, key=scores.__getitem__)
    usual = _usual(past, scales, np.arange(first, runs - best + 1))
    if usual is None or scores[best] <= threshold * usual:
        return None
    effect = float(now.parts[best][0][runs - best])
    if _revisits(now, float(np.median(now.values[runs - best : runs])), abs(effect)):
        return None
    index = _place(now.values[:runs], runs - best, best)
    score = TO_SCORE * scores[best] / usual
    reach = critical(0.05, 2 * BLOCKS[-1]) * usual / TO_SCORE * scales[best]
    return Step(
        index=index, seen=runs - 1, effect=effect, low=effect - reach, high=effect + reach,
        p_value=min(1.0, LOOKS * float(two_sided(score, 2 * BLOCKS[-1]))), runs=best,
    )  # fmt: skip


def _size(part: Shifts, place: int) -> float:
    """Return the guarded shift at `place`; 0 where there is no level or the runs disagree."""
    import numpy as np

    mean, guard = part[0][place], part[1][place]
    return 0.0 if np.isnan(mean) else float(agreed(mean, guard))


def _revisits(now: _Trace, level: float, size: float) -> bool:
    """Tell whether `level` is that of an earlier segment: a mode of this case, or a recovery."""
    return any(abs(level - earlier) < REVISIT * size for earlier in now.segments[:-1])


def _scales(trace: _Trace, runs: int, first: int) -> dict[int, float]:
    """Return each block's scale from its earlier places, leaning on that of shorter blocks."""
    import numpy as np

    learnt, scales = 0.0, {}
    for block, (_, guard) in trace.parts.items():
        place = runs - block
        if place < 0 or np.isnan(guard[place]):
            continue
        past = guard[first : place - block + 1]
        past = past[~np.isnan(past)]
        if len(past) < max(15, block):
            continue
        root = np.sqrt(1 / block + 1 / WINDOW)
        seen = float(spread(past[None, :])[0] / root) ** 2
        weight = len(past) / block
        learnt = (PRIOR * (learnt or seen) + weight * seen) / (PRIOR + weight)
        scales[block] = float(root * np.sqrt(learnt)) * PENALTY.get(block, 1.0)
    return scales


def _usual(trace: _Trace, scales: dict[int, float], ends: Places) -> float | None:
    """Return the usual size of the scan's maximum over the earlier `ends`, None if too few."""
    import numpy as np

    largest = np.zeros(len(ends))
    for block, scale in scales.items():
        places = ends - block
        inside = places >= 0
        sizes = np.nan_to_num(np.abs(trace.parts[block][1][places[inside]])) / scale
        largest[inside] = np.maximum(largest[inside], sizes)
    largest = largest[largest > 0]
    return float(quantile(largest, USUAL)) if len(largest) >= ENOUGH else None


def _place(values: Matrix, guess: int, block: int) -> int:
    """Return the border near `guess` that parts the runs best by their medians."""
    import numpy as np

    before = values[max(0, guess - 2 * block) : guess]
    low, high = float(np.median(before)), float(np.median(values[guess:]))
    middle, sign = (low + high) / 2, 1.0 if high > low else -1.0
    start = max(1, guess - block)
    side = np.sign(sign * (values[start:] - middle))
    # The border after which most runs are beyond the middle, and before which most are not.
    gain = np.cumsum(side[::-1])[::-1]
    return start + int(np.argmax(gain))


@dataclass(frozen=True, slots=True)
class Trend:
    """A slow change of level over a whole segment; logarithms, plus for better.

    Attributes:
        effect: level of the last eighth against that of the first.
        per_run: slope.
        runs: of the segment.
    """

    effect: float
    per_run: float
    runs: int


def slow_trend(values: Sequence[float]) -> Trend | None:
    """Return the creeping change of a segment, or None.

    Eight levels in a row that rise (or fall) without exception, by more than their own noise:
    too slow for the scan, whose level before creeps along. A daily or seasonal swing looks
    the same for a while, so that a trend is a reason to look, never a confirmed change.
    """
    size = len(values) // 8
    if size < 5:
        return None
    used = values[len(values) - 8 * size :]
    levels = [statistics.median(used[size * i : size * (i + 1)]) for i in range(8)]
    steps = [after - before for before, after in itertools.pairwise(levels)]
    if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
        return None
    effect = levels[-1] - levels[0]
    if abs(effect) < 4 * statistics.stdev(steps):
        return None
    return Trend(effect, effect / (7 * size), len(used))


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that may have moved a level: at `time` (seconds since the epoch, UTC)."""

    time: float
    kind: Literal["environment", "configuration", "gap"]
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A happening near a change. `runs` counts from the change to it; 0: exactly there."""

    happening: Happening
    runs: int


def gaps(times: Sequence[float], *, factor: float = 5.0) -> tuple[Happening, ...]:
    """Return pauses `factor` times as long as usual: something may have happened meanwhile."""
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) < LEAST:
        return ()
    usual = statistics.median(pauses)
    return tuple(
        Happening(times[index + 1], "gap", f"no run for {pause / 3600:.0f} h")
        for index, pause in enumerate(pauses)
        if pause > factor * usual and usual > 0
    )


def candidates(
    times: Sequence[float], index: int, happenings: Sequence[Happening], *, within: int = 5
) -> tuple[Candidate, ...]:
    """Return the happenings at most `within` runs from the change at `index`, nearest first.

    An environment change comes before a configuration change and a gap at the same distance.
    """
    order = ("environment", "configuration", "gap")
    near = []
    for happening in happenings:
        place = sum(time < happening.time for time in times)
        if abs(place - index) <= within:
            near.append(Candidate(happening, place - index))
    near.sort(key=lambda one: (abs(one.runs), order.index(one.happening.kind)))
    return tuple(near)
