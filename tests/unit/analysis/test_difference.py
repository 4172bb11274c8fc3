"""Student's t distribution, with scipy as the witness."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtr, stdtrit

from pvebench.analysis.difference import critical, two_sided

DEGREES = (1.0, 1.3, 2.0, 3.0, 4.7, 8.0, 14.0, 29.5, 58.0, 118.0, 199.0, 210.0, 640.0, 1200.0, 5e3)
"""From the least that a difference has to more than the most runs of two sides."""
SCORES = np.concatenate([np.linspace(0, 12, 4801), np.logspace(1, 1.5, 40)])


@pytest.mark.parametrize("degrees", [*DEGREES, math.inf])
def test_p_values_are_those_of_scipy_or_more_cautious(degrees: float) -> None:
    for scores in (SCORES, -SCORES):
        found, exact = two_sided(scores, degrees), 2 * stdtr(degrees, -SCORES)
        known = exact > 1e-290  # beyond it a float has no digits left
        ratio = found[known] / exact[known]
        assert (ratio.min() > 0.99, ratio.max() < 1.65) == (True, True)


@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("p_value", [0.05, 0.05 / 3, 0.01, 1e-3, 1e-6])
def test_scores_are_those_of_scipy_or_larger(degrees: float, p_value: float) -> None:
    ratio = critical(p_value, degrees) / -stdtrit(degrees, p_value / 2)
    assert 1 - 1e-9 < ratio < (1.01 if degrees > 4 and p_value >= 0.01 else math.inf)


@pytest.mark.parametrize("degrees", [2.5, math.inf])
def test_a_score_is_a_number_or_a_table_and_its_p_value_too(degrees: float) -> None:
    assert float(two_sided(2.0, degrees)) == two_sided(np.array([[2.0]]), degrees)[0, 0]
    ends = two_sided(np.array([math.inf, 1e200, 0.0]), degrees).tolist()
    assert ends == pytest.approx([0.0, 0.0, 1.0])
    assert two_sided(np.array([]), degrees).shape == (0,)
    assert math.isnan(two_sided(math.nan, degrees))
