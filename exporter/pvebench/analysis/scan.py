"""Unknown time: where a case's level moved, found run by run.

A scan over blocks of the newest runs. The newest block must have left both the level of its own
segment and that of the history as if no change had been noticed: a case that jumps to and fro,
or drifts, pays for it for ever, and one that has jumped once forgets it in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.blocks import BLOCKS, Trace, scales_of, trace_of, usual_size
from pvebench.analysis.detector import Step
from pvebench.analysis.levels import MAD_TO_SIGMA, agreed
from pvebench.analysis.placebo import LEAST, critical, two_sided

if TYPE_CHECKING:
    from pvebench.analysis.blocks import Shifts
    from pvebench.analysis.levels import Matrix

MOST: Final = 300
"""Newest runs that are looked at, so that a run costs the same after a month and after years."""
HOPELESS: Final = 2.5
"""Score below which a block is never a change: what usual sizes ask for is always more."""
STICKY: Final = 0.8
"""How much more a shift must be, per autocorrelation beyond `FREE`: such runs say less."""
FREE: Final = 0.2
"""Autocorrelation that independent runs show by chance."""
REVISIT: Final = 0.35
"""Share of a shift within which the new level is one that an earlier segment had already."""
OWN: Final = 0.8
"""A shift is new only if it is so many times the largest that the history has made by itself:
nearly as large, since that one was the largest of many."""
TO_SCORE: Final = 1.75
"""What that quantile is worth in standard deviations, for the p-value."""
LOOKS: Final = 20.0
"""What a score's p-value is multiplied by: measured on series that never change."""


@dataclass(frozen=True, slots=True)
class PlaceboScan:
    """Our own scan.

    Attributes:
        threshold: how many times its usual size the scan's maximum must have. The default is
            the smallest that keeps `make bench-detection`'s aims for false alarms.
    """

    threshold: float = 2.2

    def newest(self, values: Sequence[float], starts: Sequence[int] = (0,)) -> Step | None:
        """Return the change that the newest run completes, or None.

        Args:
            values: [runs], oldest first.
            starts: where segments begin that are known already; the level before is taken
                from the last one only, the placebos from all.
        """
        if len(values) < LEAST + BLOCKS[0]:
            return None
        cut = max(0, len(values) - MOST)
        inner = sorted({0, *(start - cut for start in starts if start > cut)})
        past = trace_of(values[cut:], [0])
        now = past if len(inner) == 1 else trace_of(values[cut:], inner)
        step = _judge(past, now, len(values) - cut, self.threshold)
        return None if step is None else _moved(step, cut)

    def detect(self, values: Sequence[float]) -> tuple[Step, ...]:
        """Return all changes, each run judged with what was known when it was made."""
        starts, found, here = [0], list[Step](), set[int]()
        past = now = trace_of(values, starts)
        for runs in past.worth_judging():
            if runs < LEAST + BLOCKS[0] or (now is not past and runs not in here):
                continue
            step = _judge(past, now, runs, self.threshold)
            if step is not None:
                found.append(step)
                starts.append(step.index)
                now = trace_of(values, starts)
                here = set(now.worth_judging())
        return tuple(found)


def _moved(step: Step, by: int) -> Step:
    return Step(
        index=step.index + by, seen=step.seen + by, effect=step.effect, low=step.low,
        high=step.high, p_value=step.p_value, runs=step.runs,
    )  # fmt: skip


def _judge(past: Trace, now: Trace, runs: int, threshold: float) -> Step | None:
    """Return the change that run number `runs` completes; later runs are not looked at.

    The newest block must have left both the level of its own segment (`now`) and that of the
    history as if no change had been noticed (`past`), in the scale of the latter: one that
    jumps to and fro, or drifts, pays for it for ever, and one that has jumped once forgets it
    in time. A level that an earlier segment had is no second change either; it shows as being
    back at the baseline.
    """
    import numpy as np

    first = max(0, runs - MOST)
    scales = scales_of(past, runs, first)
    scores = {}
    for block, scale in scales.items():
        if runs - block < now.start:
            continue  # it reaches back to before the last change, and would find that again
        old, new = (_size(trace.parts[block], runs - block) for trace in (past, now))
        if old * new > 0:
            scores[block] = min(abs(old), abs(new)) / scale
    best = max(scores, key=scores.__getitem__, default=0)
    if scores.get(best, 0.0) < HOPELESS:
        return None
    sizes = usual_size(past, scales, np.arange(first, runs - best + 1))
    if sizes is None:
        return None
    threshold *= _wariness(past.values[first : runs - best])
    if scores[best] <= max(threshold * sizes[0], OWN * sizes[1]):
        return None
    usual = sizes[0]
    effect = float(now.parts[best][0][runs - best])
    if _revisits(now, float(np.median(now.values[runs - best : runs])), abs(effect)):
        return None
    index = _place(now.values[:runs], runs - best, best)
    if runs - index < BLOCKS[0]:
        return None  # one or two runs far off outvote a longer block: wait for the third
    score = TO_SCORE * scores[best] / usual
    reach = critical(0.05, 2 * BLOCKS[-1]) * usual / TO_SCORE * scales[best]
    return Step(
        index=index, seen=runs - 1, effect=effect, low=effect - reach, high=effect + reach,
        p_value=min(1.0, LOOKS * float(two_sided(score, 2 * BLOCKS[-1]))), runs=best,
    )  # fmt: skip


def _wariness(values: Matrix) -> float:
    """Return how much more a shift must be where runs resemble the run before them."""
    import numpy as np

    away = values - np.median(values)
    limit = 3 * MAD_TO_SIGMA * float(np.median(np.abs(away)))
    away = np.clip(away, -limit, limit)
    power = float(away @ away)
    likeness = float(away[1:] @ away[:-1]) / power if power > 0 else 0.0
    return 1 + STICKY * max(0.0, likeness - FREE)


def _size(part: Shifts, place: int) -> float:
    """Return the guarded shift at `place`; 0 where there is no level or the runs disagree."""
    import numpy as np

    mean, guard = part[0][place], part[1][place]
    return 0.0 if np.isnan(mean) else float(agreed(mean, guard))


def _revisits(now: Trace, level: float, size: float) -> bool:
    """Tell whether `level` is that of an earlier segment: a mode of this case, or a recovery."""
    return any(abs(level - earlier) < REVISIT * size for earlier in now.segments[:-1])


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
