"""How far two stretches of runs lie apart, with an interval that holds on real noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final, TypeVar

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.levels import CLIP, MAD_TO_SIGMA, TINY, median

# --- Student's t distribution: p-values of scores, and scores of p-values.
#
# Both are the incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8
# and 26.7.1). scipy has both, and was two fifths of all that was installed.

Value = TypeVar("Value", float, "Matrix")

TERMS: Final = 32
"""Of the continued fraction: 1e-11 of the result for 5,000 degrees of freedom."""
STEPS: Final = 8
"""Newton's, at most; four are enough from one degree of freedom on."""
SMALL: Final = 1e-6
"""Newton's step, as a share of the score, after which the next one would be 1e-12."""
FARTHEST: Final = 1e100
"""Score beyond which the square of one is no number."""


def two_sided(score: Matrix | float, degrees: float) -> Matrix:
    """Return the two-sided p-values of `score`; `degrees` may be infinite."""
    size = np.minimum(np.abs(np.asarray(score, dtype=np.float64)), FARTHEST)
    if math.isinf(degrees):
        return np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(size / math.sqrt(2)))
    # On either side of this border one of the two fractions converges quickly.
    border = math.sqrt(3 * degrees / (degrees + 2))
    far, near = np.maximum(size, border), np.minimum(size, border)
    outside = 2 * _density(far, degrees) * _fraction(_terms(degrees / 2, 0.5), _share(far, degrees))
    share = near**2 / (degrees + near**2)
    inside = 2 * _density(near, degrees) * _fraction(_terms(0.5, degrees / 2), share)
    found: Matrix = np.where(size > border, outside / degrees, 1 - inside)
    return found


@lru_cache(maxsize=4096)
def critical(p_value: float, degrees: float) -> float:
    """Return the score whose two-sided p-value is `p_value`, at most 0.05; `degrees` are finite."""
    score = -NormalDist().inv_cdf(p_value / 2)
    terms = _terms(degrees / 2, 0.5)
    for _ in range(STEPS):
        fraction = _fraction(terms, _share(score, degrees))
        chance = 2 * float(_density(score, degrees)) * fraction / degrees
        # Newton's step between the logarithms of both: almost a straight line.
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
    """Return the coefficients of the continued fraction in pairs, the last ones first."""
    return tuple(
        (
            (a + term) * (a + b + term) / ((a + 2 * term) * (a + 2 * term + 1)),
            (term + 1) * (b - term - 1) / ((a + 2 * term + 1) * (a + 2 * term + 2)),
        )
        for term in reversed(range(TERMS))
    )


def _fraction(terms: Iterable[tuple[float, float]], x: Value) -> Value:
    """Return the continued fraction of the incomplete beta function."""
    found = 1 + 0 * x
    for odd, even in terms:
        found = 1 - odd * x / (1 + even * x / found)
    return 1 / found


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
    middle = float(median(values))
    away = values - middle
    reach = 2 * CLIP * MAD_TO_SIGMA * float(median(np.abs(away)))
    # Of quantised values more than half may be alike, and still they vary.
    reach = max(reach, 2 * CLIP * float(np.mean(np.abs(away))))
    cut = np.clip(away, -reach, reach)
    return middle + float(cut.mean()), cut - cut.mean()
