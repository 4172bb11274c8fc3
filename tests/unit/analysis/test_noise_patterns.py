"""Hours of the day are a pattern of noise, once days agree on them."""

from __future__ import annotations

import math
import random

import numpy as np

from pvebench.analysis import noise_patterns
from pvebench.analysis.changepoints import scan
from testing.answers import material
from testing.noise import Series


def steps_of(values: list[float], times: list[float]) -> list[int]:
    """Return the first runs of the detected levels."""
    (history,) = material([Series(np.array(times), np.array(values))], [{}]).histories
    return [history.split(step.time) for step in scan(history).steps]


def test_hours_of_the_day_are_no_levels() -> None:
    rng = random.Random(4)
    times = [3600.0 * run for run in range(24 * 30)]
    values = [
        rng.gauss(0, 0.02) + (math.log(0.7) if 9 <= time / 3600 % 24 < 17 else 0.0)
        for time in times
    ]
    at = 24 * 20 + 3
    slower = [value + (math.log(0.8) if run >= at else 0.0) for run, value in enumerate(values)]
    assert not [place for place in steps_of(values, times) if place > 72]
    (found,) = [place for place in steps_of(slower, times) if place > 72]
    assert abs(found - at) <= 3


def test_an_effect_of_an_hour_needs_days_that_agree() -> None:
    days, rng = 20, np.random.default_rng(1)
    times = [3600.0 * run for run in range(24 * days)]
    busy = np.array([run % 24 in range(9, 17) for run in range(24 * days)])
    same = -0.2 * busy - noise_patterns.without_hours(-0.2 * busy, times)
    load = np.repeat(rng.normal(0, 0.2, days), 24)
    differs = load * busy - noise_patterns.without_hours(load * busy, times)
    assert np.median(same[-72:][busy[-72:]]) - np.median(same[-72:][~busy[-72:]]) < -0.15
    assert np.abs(differs[-72:]).max() < 0.1
