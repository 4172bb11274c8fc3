"""Hours of the day are a pattern of noise, once days agree on them."""

from __future__ import annotations

import math
import random

import numpy as np

from pvebench.analysis import noise_patterns
from testing.answers import ask
from testing.noise import Series


def test_hours_of_the_day_are_no_levels() -> None:
    rng = random.Random(4)
    times = [3600.0 * run for run in range(24 * 30)]
    values = [
        rng.gauss(0, 0.02) + (math.log(0.7) if 9 <= time / 3600 % 24 < 17 else 0.0)
        for time in times
    ]
    at = 24 * 20 + 3
    series = Series(np.array(times), np.array(values))
    assert not [change for change in ask(series).changes if change.index(times) > 72]
    (found,) = ask(series.changed(at, 0.8)).changes
    assert abs(found.index(times) - at) <= 3


def test_an_effect_of_an_hour_needs_days_that_agree() -> None:
    days, rng = 20, np.random.default_rng(1)
    times = [3600.0 * run for run in range(24 * days)]
    busy = np.array([run % 24 in range(9, 17) for run in range(24 * days)])
    same = -0.2 * busy - noise_patterns.without_hours(-0.2 * busy, times)
    load = np.repeat(rng.normal(0, 0.2, days), 24)
    differs = load * busy - noise_patterns.without_hours(load * busy, times)
    assert np.median(same[-72:][busy[-72:]]) - np.median(same[-72:][~busy[-72:]]) < -0.15
    assert np.abs(differs[-72:]).max() < 0.1
