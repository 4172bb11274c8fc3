"""Student's t distribution: p-values of scores, and scores of p-values.

Both are the incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8
and 26.7.1). scipy has both, and was two fifths of all that was installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Matrix

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
    import numpy as np

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
    import numpy as np

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
