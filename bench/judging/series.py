"""Synthetic benchmark series with every kind of noise and change.

All values are logarithms of a throughput, around 0; positive is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int, float], Vector]


def _independent(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    return rng.normal(0.0, cv, runs)


def _autocorrelated(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    """Return AR(1) noise with a coefficient of 0.6."""
    steps = rng.normal(0.0, cv * math.sqrt(1 - 0.6**2), runs)
    values = np.empty(runs)
    last = rng.normal(0.0, cv)
    for index, step in enumerate(steps):
        last = 0.6 * last + step
        values[index] = last
    return values


def _drifting(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    """Return noise on a slow random walk, as of a disk that fills up and is trimmed."""
    walk = np.cumsum(rng.normal(0.0, cv / 20, runs))
    return rng.normal(0.0, cv, runs) + walk


def _heavy_tails(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    return np.asarray(rng.standard_t(3, runs) * cv / math.sqrt(3.0), dtype=float)


def _spikes(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    """Return noise with one run in thirty 10% to 40% slower, as by another VM's backup."""
    values = rng.normal(0.0, cv, runs)
    hit = rng.random(runs) < 1 / 30
    return np.asarray(values + hit * np.log(1 - rng.uniform(0.1, 0.4, runs)), dtype=float)


def _two_modes(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    """Return runs at random on one of two levels, 10% apart, as with NUMA placement."""
    low = rng.random(runs) < 0.3
    return np.asarray(rng.normal(0.0, cv, runs) - 0.1 * low, dtype=float)


def _sticky_modes(rng: np.random.Generator, runs: int, cv: float) -> Vector:
    """Return runs on two levels, 10% apart, that change about every 25 runs, as by restarts."""
    flips = np.cumsum(rng.random(runs) < 1 / 25) + rng.integers(0, 2)
    return np.asarray(rng.normal(0.0, cv, runs) - 0.1 * (flips % 2), dtype=float)


KINDS: Final[Mapping[str, Noise]] = {
    "independent": _independent,
    "AR(1)": _autocorrelated,
    "drift": _drifting,
    "t3 tails": _heavy_tails,
    "spikes": _spikes,
    "two modes": _two_modes,
    "sticky modes": _sticky_modes,
}


def with_step(values: Vector, at: int, ratio: float) -> Vector:
    """Return the series with everything from run `at` on multiplied by `ratio`."""
    changed = values.copy()
    changed[at:] += math.log(ratio)
    return changed


def with_ramp(values: Vector, at: int, ratio: float, *, runs: int = 40) -> Vector:
    """Return the series with every run from `at` on `ratio` times the one before, for `runs`."""
    steps = np.clip(np.arange(len(values)) - at + 1, 0, runs)
    return np.asarray(values + steps * math.log(ratio), dtype=float)


def with_glitch(values: Vector, at: int, ratio: float) -> Vector:
    """Return the series with one run multiplied by `ratio`."""
    changed = values.copy()
    changed[at] += math.log(ratio)
    return changed
