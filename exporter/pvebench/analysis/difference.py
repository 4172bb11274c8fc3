"""Difference of two series of runs, with a confidence interval that is valid for real noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.levels import CLIP, MAD_TO_SIGMA, TINY, median

# --- Student's t distribution by that of the normal one (Wallace, Ann. Math. Stat. 30, 1959) ---
#
# Within 1% from five degrees of freedom on, too cautious with fewer. scipy made up two fifths of
# the installation.

FARTHEST: Final = 1e100
"""Limit of scores, so that their squares stay finite."""


def two_sided(score: Matrix | float, degrees: float) -> Matrix:
    """Return the two-sided p-values of `score`; `degrees` may be infinite."""
    normal = np.minimum(np.abs(np.asarray(score, dtype=np.float64)), FARTHEST)
    if degrees < math.inf:
        normal = np.sqrt(degrees * np.log1p(normal**2 / degrees)) / _stretched(degrees)
    return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(normal / math.sqrt(2)))


@lru_cache(maxsize=4096)
def critical(p_value: float, degrees: float) -> float:
    """Return the score with the two-sided p-value `p_value`, at most 0.05; finite `degrees`."""
    normal = -NormalDist().inv_cdf(p_value / 2) * _stretched(degrees)
    return math.sqrt(degrees * math.expm1(normal**2 / degrees))


def _stretched(degrees: float) -> float:
    return (8 * degrees + 3) / (8 * degrees + 1)


CHANCE: Final = 0.05
"""Probability that a 95% confidence interval misses."""
FURTHEST: Final = 0.85
"""Limit of the autocorrelation: beyond it the level drifts, and no interval is valid."""
CUT: Final = 6.0
"""Scales to which the distance of a run from its level counts."""
FEW: Final = 3.0
"""Weight, in runs, of the prior assumption that neighboring runs are independent."""
FURTHER_RUNS: Final = 1000
"""Limit of the further runs to consider."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Level of `after` relative to that of `before`; logarithms.

    Attributes:
        effect, low, high: shift and its 95% confidence interval.
        spread: its square divided by n is the variance of the mean of n runs, including
            autocorrelation.
        before, after: number of runs on both sides.
        level: of the runs before.
        fixed: part of half of the interval that further runs do not reduce.
        likeness: number of runs that say as much as one independent run.
    """

    effect: float
    low: float
    high: float
    spread: float
    before: int
    after: int
    level: float
    fixed: float = 0.0
    likeness: float = 1.0

    @property
    def excluded(self) -> float:
        """Largest change in either direction that the runs do not rule out."""
        return max(abs(self.low), abs(self.high))

    def wider(self, by: float) -> Difference:
        """Return it with an independent error of up to `by` that more runs do not reduce."""
        reach = math.hypot((self.high - self.low) / 2, by)
        return replace(self, low=self.effect - reach, high=self.effect + reach, fixed=by)

    def and_of(self, whole: Difference) -> Difference:
        """Return the difference from a whole baseline, with an interval that holds both."""
        return replace(whole, low=min(self.low, whole.low), high=max(self.high, whole.high))

    def reach(self, before: int, after: int, chance: float = CHANCE) -> float:
        """Return half of the interval that so many runs on both sides have."""
        error = self.spread * math.sqrt(1 / before + 1 / after)
        degrees = max(1.0, (before + after - 2) / self.likeness)
        return math.hypot(error * critical(chance, degrees), self.fixed)

    def more_runs(self, size: float) -> int | None:
        """Return the number of further runs that rule out a change of `size`.

        None if no number suffices, because there are too few runs before.
        """
        further: Iterable[int] = (*range(1, 20), *range(20, FURTHER_RUNS, 10))
        enough = (more for more in further if self.reach(self.before, self.after + more) <= size)
        return next(enough, None)


def difference(before: Matrix, after: Matrix, *, chance: float = CHANCE) -> Difference:
    """Return the difference of two series: at least two runs before, and one after.

    Both levels are Huber means. Autocorrelated runs carry less information: they widen the
    interval and reduce the degrees of freedom.

    Args:
        chance: probability that the interval misses; lower than 5% for several comparisons.
    """
    levels, rests = zip(*(_level(part) for part in (before, after)), strict=True)
    count = len(before) + len(after)
    power = sum(float(rest @ rest) for rest in rests)
    wider = float(widening(power, sum(float(rest[1:] @ rest[:-1]) for rest in rests), count))
    degrees = max(1.0, (count - 2) / wider)
    spread = max(TINY, math.sqrt(wider * power / max(1, count - 2)))
    effect = float(levels[1] - levels[0])
    error = spread * math.sqrt(1 / len(before) + 1 / len(after))
    reach = critical(chance, degrees) * error
    counts = len(before), len(after)
    low, high, level = effect - reach, effect + reach, float(levels[0])
    return Difference(effect, low, high, spread, *counts, level, likeness=wider)


def widening(power: Matrix | float, products: Matrix | float, count: Matrix | float) -> Matrix:
    """Return how much autocorrelation of runs widens the variance of their mean.

    Args:
        power: sum of the squared distances from the level.
        products: sum of the products of each distance and the next.
    """
    # Subtracting the mean of few runs makes them appear negatively correlated.
    likeness = np.maximum(0.0, products / np.maximum(power, TINY**2) + 1 / count)
    likeness = np.minimum(FURTHEST, likeness * count / (count + FEW))
    return np.asarray((1 + likeness) / (1 - likeness))


def size_text(effect: float) -> str:
    """Return a logarithm as a percentage, rounded up so that the ruled-out size is correct."""
    return f"{math.ceil(100 * math.expm1(effect) - 1e-9)}%"


def _level(values: Matrix) -> tuple[float, Matrix]:
    """Return the Huber mean, and the distances of the runs from it, with outliers clipped."""
    middle = float(median(values))
    away = values - middle
    distances = np.abs(away)
    scale = MAD_TO_SIGMA * float(median(distances))
    # More than half of quantized values may be equal although they vary; the mean shows that, but
    # a run near zero must not dominate it.
    most = CUT * (scale if scale > TINY else float(np.quantile(distances, 0.75))) or math.inf
    reach = 2 * CLIP * max(scale, float(np.mean(np.minimum(distances, most))))
    cut = np.clip(away, -reach, reach)
    return middle + float(cut.mean()), cut - cut.mean()
