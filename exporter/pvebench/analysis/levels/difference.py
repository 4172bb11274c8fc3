"""How far two stretches of runs lie apart, with an interval that holds on real noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.levels.robust import CLIP, MAD_TO_SIGMA, TINY, median
from pvebench.analysis.levels.student import critical

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Matrix

CHANCE: Final = 0.05
"""That a 95 % interval misses."""
FURTHEST: Final = 0.85
"""Autocorrelation that is believed at most: beyond it a level wanders, and no interval holds."""
FEW: Final = 3.0
"""Runs' worth of belief that neighbours are not alike, before a history shows that they are."""
FURTHER_RUNS: Final = 1000
"""Runs beyond which nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The level of `after` against that of `before`; logarithms.

    Attributes:
        effect, low, high: shift and its 95 % interval.
        spread: variance of the mean of n runs is its square by n, autocorrelation included.
        before, after: runs on both sides.
    """

    effect: float
    low: float
    high: float
    spread: float
    before: int
    after: int

    @property
    def excluded(self) -> float:
        """The largest change, either way, that the runs do not exclude."""
        return max(abs(self.low), abs(self.high))

    def more_runs(self, size: float) -> int | None:
        """Return how many more runs after it takes to exclude a change of `size`.

        None if no number does, because there are too few before.
        """
        more: int
        for more in (*range(1, 20), *range(20, FURTHER_RUNS, 10)):
            runs = self.after + more
            error = self.spread * math.sqrt(1 / self.before + 1 / runs)
            if float(error) * critical(0.05, self.before + runs - 2) <= size:
                return more
        return None


def difference(before: Matrix, after: Matrix, *, chance: float = CHANCE) -> Difference:
    """Return how far two stretches lie apart: at least two runs before, and one after.

    Both are Huber means. Runs that resemble their neighbours say less: the interval is wider by
    their autocorrelation, with as many degrees of freedom less.

    Args:
        chance: that the interval misses; less than its usual share where several are compared.
    """
    levels, rests = zip(*(_level(part) for part in (before, after)), strict=True)
    count = len(before) + len(after)
    power = sum(float(rest @ rest) for rest in rests)
    likeness = sum(float(rest[1:] @ rest[:-1]) for rest in rests) / max(power, TINY**2)
    # A mean that is taken from few runs makes them look unlike each other.
    likeness = min(FURTHEST, max(0.0, likeness + 1 / count) * count / (count + FEW))
    wider = (1 + likeness) / (1 - likeness)
    degrees = max(1.0, (count - 2) / wider)
    spread = max(TINY, math.sqrt(wider * power / max(1, count - 2)))
    effect = float(levels[1] - levels[0])
    error = spread * math.sqrt(1 / len(before) + 1 / len(after))
    reach = critical(chance, degrees) * error
    return Difference(effect, effect - reach, effect + reach, spread, len(before), len(after))


def size_text(effect: float) -> str:
    """Return the size of a logarithm in per cent, rounded up: what is excluded is no less."""
    return f"{math.ceil(100 * math.expm1(effect) - 1e-9)} %"


def _level(values: Matrix) -> tuple[float, Matrix]:
    """Return the Huber mean, and the runs' distances from it, those of glitches cut."""
    import numpy as np

    middle = float(median(values))
    away = values - middle
    reach = 2 * CLIP * MAD_TO_SIGMA * float(median(np.abs(away)))
    # Of quantised values more than half may be alike, and still they vary.
    reach = max(reach, 2 * CLIP * float(np.mean(np.abs(away))))
    cut = np.clip(away, -reach, reach)
    return middle + float(cut.mean()), cut - cut.mean()
