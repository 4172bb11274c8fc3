"""Difference of two series of runs, with a confidence interval that is valid for real noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Final, TypeVar

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.levels import CLIP, MAD_TO_SIGMA, TINY, median

# --- Student's t distribution: p-values of scores, and scores of p-values ---
#
# Both use the continued fraction of the incomplete beta function (Abramowitz and Stegun, 26.5.8
# and 26.7.1). scipy has both, but made up two fifths of the installation.

Value = TypeVar("Value", float, "Matrix")

TERMS: Final = 32
"""Terms of the continued fraction: relative error 1e-11 for 5,000 degrees of freedom."""
STEPS: Final = 8
"""Maximum Newton steps; four are enough from one degree of freedom on."""
SMALL: Final = 1e-6
"""Newton step, as a share of the score, after which the next one would be 1e-12."""
FARTHEST: Final = 1e100
"""Limit of scores, so that their squares stay finite."""


def two_sided(score: Matrix | float, degrees: float) -> Matrix:
    """Return the two-sided p-values of `score`; `degrees` may be infinite."""
    size = np.minimum(np.abs(np.asarray(score, dtype=np.float64)), FARTHEST)
    if math.isinf(degrees):
        return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(size / math.sqrt(2)))
    # One of the two fractions converges quickly on each side of this border.
    border = math.sqrt(3 * degrees / (degrees + 2))
    far, near = np.maximum(size, border), np.minimum(size, border)
    outside = 2 * _density(far, degrees) * _fraction(_terms(degrees / 2, 0.5), _share(far, degrees))
    share = near**2 / (degrees + near**2)
    inside = 2 * _density(near, degrees) * _fraction(_terms(0.5, degrees / 2), share)
    found: Matrix = np.where(size > border, outside / degrees, 1 - inside)
    return found


@lru_cache(maxsize=4096)
def critical(p_value: float, degrees: float) -> float:
    """Return the score with the two-sided p-value `p_value`, at most 0.05; finite `degrees`."""
    score = -NormalDist().inv_cdf(p_value / 2)
    terms = _terms(degrees / 2, 0.5)
    for _ in range(STEPS):
        fraction = _fraction(terms, _share(score, degrees))
        chance = 2 * float(_density(score, degrees)) * fraction / degrees
        # Newton's step on the logarithms of both, which are almost linear.
        step = (chance / p_value) ** (fraction / degrees)
        score *= step
        if abs(step - 1) < SMALL:
            break
    return score


def _share(score: Value, degrees: float) -> Value:
    return degrees / (degrees + score**2)


def _density(score: Value, degrees: float) -> Value:
    """Return x^a (1 - x)^b / B(a, b) with a = degrees / 2, b = 1/2 and x = `_share`."""
    ratio, half = score**2 / degrees, degrees / 2
    beta = math.lgamma(half) + math.lgamma(0.5) - math.lgamma(half + 0.5)
    found: Value = np.exp(-beta - (half + 0.5) * np.log1p(ratio)) * np.sqrt(ratio)
    return found


@lru_cache(maxsize=32)
def _terms(a: float, b: float) -> tuple[tuple[float, float], ...]:
    """Return the coefficients of the continued fraction in pairs, last pair first."""
    return tuple(
        (
            (a + term) * (a + b + term) / ((a + 2 * term) * (a + 2 * term + 1)),
            (term + 1) * (b - term - 1) / ((a + 2 * term + 1) * (a + 2 * term + 2)),
        )
        for term in reversed(range(TERMS))
    )


def _fraction(terms: Iterable[tuple[float, float]], x: Value) -> Value:
    """Return the continued fraction of the incomplete beta function."""
    value = 1 + 0 * x
    for odd, even in terms:
        value = 1 - odd * x / (1 + even * x / value)
    return 1 / value


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
    likeness = sum(float(rest[1:] @ rest[:-1]) for rest in rests) / max(power, TINY**2)
    # Subtracting the mean of few runs makes them appear negatively correlated.
    likeness = min(FURTHEST, max(0.0, likeness + 1 / count) * count / (count + FEW))
    wider = (1 + likeness) / (1 - likeness)
    degrees = max(1.0, (count - 2) / wider)
    spread = max(TINY, math.sqrt(wider * power / max(1, count - 2)))
    effect = float(levels[1] - levels[0])
    error = spread * math.sqrt(1 / len(before) + 1 / len(after))
    reach = critical(chance, degrees) * error
    counts = len(before), len(after)
    low, high, level = effect - reach, effect + reach, float(levels[0])
    return Difference(effect, low, high, spread, *counts, level, likeness=wider)


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


# --- several workloads together ---


@dataclass(frozen=True, slots=True)
class JointDifference:
    """Mean change over workloads: 0.1 is 10% more; low and high: its confidence interval."""

    ratio: float
    low: float
    high: float


def joint_difference(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    levels: Sequence[tuple[float, float]],
    *,
    chance: float = CHANCE,
) -> JointDifference:
    """Return the difference of `after` to `before`, the geometric mean over workloads.

    Args:
        pairs: (before, after) per workload: positive results, at least two each.
        levels: (before, after) per workload: the current values that outputs show. The ratio is
            that of these; the interval, which is one of means, is widened to contain it.
        chance: probability that the interval misses; lower for several comparisons.
    """
    differences = [
        difference(np.log(np.asarray(before)), np.log(np.asarray(after)), chance=chance)
        for before, after in pairs
    ]
    middle = sum(one.effect for one in differences) / len(differences)
    reach = math.sqrt(sum(((one.high - one.low) / 2) ** 2 for one in differences)) / len(
        differences
    )
    effect = sum(math.log(after / before) for before, after in levels) / len(levels)
    low, high = min(effect, middle - reach), max(effect, middle + reach)
    return JointDifference(math.expm1(effect), math.expm1(low), math.expm1(high))
