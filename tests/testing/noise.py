"""Benchmark series with the noise of real hosts, and the changes in them, by seed.

Values are logarithms of a throughput, around 0; positive is faster. Every function is pure: what it
returns depends on its generator of random numbers only. Tests and `bench/detection.py` share them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Random = np.random.Generator
Noise = Callable[[Random, Vector], Vector]
"""(generator, times) -> logarithms."""

CV: Final = 0.03
HOUR: Final = 3600.0
DAY: Final = 86400.0
EPOCH: Final = 1_704_067_200.0
"""2024-01-01, a Monday."""
RATES: Final = (1, 2, 4, 8, 24, 48)
"""Runs per day."""
RUNS: Final = 450


@dataclass(frozen=True, slots=True)
class Series:
    """A history.

    Attributes:
        times: Unix seconds, ascending.
        logs: logarithms of the values.
        environments: of each run; empty: one environment.
    """

    times: Vector
    logs: Vector
    environments: tuple[str, ...] = ()

    def until(self, runs: int) -> Series:
        """Return the first runs."""
        return Series(self.times[:runs], self.logs[:runs], self.environments[:runs])

    def changed(self, at: int, ratio: float) -> Series:
        """Return it with every run from `at` on multiplied by `ratio`."""
        return replace(self, logs=self.logs + np.log(ratio) * (np.arange(len(self.logs)) >= at))

    def upgraded(self, *at: int) -> Series:
        """Return it with a new environment from each of the runs `at` on."""
        numbers = np.searchsorted(np.array(at), np.arange(len(self.logs)), side="right")
        return replace(self, environments=tuple(str(number) for number in numbers))


def stream(*names: object) -> Random:
    """Return a generator that depends on the names, such as a seed, a number and a kind."""
    return np.random.default_rng([zlib.crc32(str(name).encode()) for name in names])


def clock(rng: Random, runs: int, a_day: float) -> Vector:
    """Return times at a constant rate, exactly or roughly, from any minute of a year on."""
    begin = EPOCH + DAY * rng.uniform(0, 364)
    jitter = rng.integers(2) * rng.uniform(0, 0.05, runs)
    return np.asarray(begin + DAY / a_day * (np.arange(runs) + jitter), dtype=float)


def hour_of(times: Vector) -> Vector:
    """Return hours of the day, UTC."""
    return np.asarray(times / HOUR % 24, dtype=float)


def weekday_of(times: Vector) -> Vector:
    """Return days of the week; 0 is a Monday."""
    return np.asarray((times - EPOCH) // DAY % 7, dtype=float)


# --- noise without a memory of time ---


def independent(rng: Random, times: Vector) -> Vector:
    return rng.normal(0.0, CV, len(times))


def autocorrelated(rng: Random, times: Vector, *, share: float = 0.6, cv: float = CV) -> Vector:
    """Return AR(1) noise."""
    steps = rng.normal(0.0, cv * np.sqrt(1 - share**2), len(times))
    values, last = np.empty(len(times)), rng.normal(0.0, cv)
    for index, step in enumerate(steps):
        last = share * last + step
        values[index] = last
    return values


def _drift(rng: Random, times: Vector) -> Vector:
    """Return noise on a slow random walk, as of a disk that fills up and is trimmed."""
    return independent(rng, times) + np.cumsum(rng.normal(0.0, CV / 20, len(times)))


def _tails(degrees: float, rng: Random, times: Vector) -> Vector:
    return np.asarray(rng.standard_t(degrees, len(times)) * CV / np.sqrt(3.0), dtype=float)


def _skew(rng: Random, times: Vector) -> Vector:
    """Return runs that are rarely much slower, never much faster."""
    return np.asarray(CV - rng.gamma(0.7, CV * 1.5, len(times)), dtype=float)


def _spikes(rng: Random, times: Vector) -> Vector:
    """Return noise with one run in thirty 10% to 40% slower."""
    hit = rng.random(len(times)) < 1 / 30
    return independent(rng, times) + hit * np.log(1 - rng.uniform(0.1, 0.4, len(times)))


def _quantized(rng: Random, times: Vector) -> Vector:
    """Return values in steps of 2%."""
    return np.asarray(np.round(rng.normal(0.0, 0.01, len(times)) / 0.02) * 0.02, dtype=float)


def _louder(rng: Random, times: Vector) -> Vector:
    """Return noise whose variance quadruples."""
    late = np.arange(len(times)) >= len(times) * 3 // 5
    return independent(rng, times) * np.where(late, 2.0, 1.0)


# --- levels that come and go ---


def stays(rng: Random, runs: int, lengths: Callable[[], int]) -> NDArray[np.int64]:
    """Return the number of the stay of each run; each stay takes the next length."""
    numbers = list[int]()
    while len(numbers) < runs:
        numbers += [numbers[-1] + 1 if numbers else int(rng.integers(2))] * max(1, lengths())
    return np.array(numbers[:runs])


def _two_modes(rng: Random, times: Vector) -> Vector:
    """Return runs at random on one of two levels, 10% apart."""
    return independent(rng, times) - 0.1 * (rng.random(len(times)) < 0.3)


def modes(rng: Random, times: Vector, *, least: int = 3, most: int = 15) -> Vector:
    """Return two levels, 10% apart, that alternate after `least` to `most` runs."""
    numbers = stays(rng, len(times), lambda: int(rng.integers(least, most + 1)))
    return independent(rng, times) - 0.1 * (numbers % 2)


def _by_boot(every: int, rng: Random, times: Vector) -> Vector:
    """Return one of two levels, 10% apart, drawn at each boot, about every `every` runs."""
    numbers = stays(rng, len(times), lambda: int(rng.geometric(1 / every)))
    levels = rng.integers(0, 2, int(numbers.max()) + 1)
    return np.asarray(independent(rng, times) - 0.1 * levels[numbers], dtype=float)


def _sticky(rng: Random, times: Vector) -> Vector:
    numbers = stays(rng, len(times), lambda: int(rng.geometric(1 / 25)))
    return independent(rng, times) - 0.1 * (numbers % 2)


def bursts(
    rng: Random,
    times: Vector,
    *,
    every: float = 50,
    length: Callable[[Random], int] = lambda rng: int(rng.integers(2, 13)),
) -> Vector:
    """Return noise with runs that are 8% to 35% slower for a while, about every `every` runs."""
    values, at = independent(rng, times), int(rng.geometric(1 / every))
    while at < len(times):
        end = at + length(rng)
        values[at:end] += np.log(1 - rng.uniform(0.08, 0.35))
        at = end + int(rng.geometric(1 / every))
    return values


def _pareto_length(rng: Random) -> int:
    return int(min(60, 1 + rng.pareto(1.3)))


def _bad_day(rng: Random, times: Vector) -> Vector:
    """Return noise with five runs in a row that are 30% slower."""
    at = int(rng.integers(len(times) // 2, len(times) - 30))
    values = independent(rng, times)
    values[at : at + 5] += np.log(0.7)
    return values


# --- slow waves ---


def _wave(rng: Random, times: Vector) -> Vector:
    """Return thermal cycles: 3% to 8% up and down in 3 to 20 days."""
    depth, period = rng.uniform(0.03, 0.08), DAY * rng.uniform(3, 20)
    phase = 2 * np.pi * (times / period + rng.random())
    return independent(rng, times) + depth / 2 * np.sin(phase)


def _sawtooth(least: int, most: int, depth: float, rng: Random, times: Vector) -> Vector:
    """Return a level that sinks by `depth` over `least` to `most` runs, and then recovers."""
    numbers = stays(rng, len(times), lambda: int(rng.integers(least, most + 1)))
    place = np.arange(len(times)) - np.searchsorted(numbers, numbers)
    lengths = np.bincount(numbers)[numbers]
    return np.asarray(independent(rng, times) - depth * place / lengths, dtype=float)


def _wander(rng: Random, times: Vector) -> Vector:
    """Return noise on a level that wanders by 4% and is pulled back over about 60 runs."""
    return independent(rng, times) + autocorrelated(rng, times, share=1 - 1 / 60, cv=0.04)


# --- what a calendar does ---


def day_load(
    rng: Random, times: Vector, *, depth: float, spread: float = 0.3, cv: float = CV
) -> Vector:
    """Return noise below the load of neighbors: `depth` at noon, less at weekends.

    Args:
        depth: share of the throughput that a usual working day takes at noon.
        spread: standard deviation of this share between days, relative.
        cv: of the noise of each run.
    """
    days = ((times - times.min()) // DAY).astype(int)
    own = np.clip(rng.normal(1.0, spread, int(days.max()) + 1), 0.0, 1.5)[days]
    weekday = np.where(weekday_of(times) >= 5, 0.3, 1.0)
    hours = hour_of(times)
    noon = np.where((hours >= 8) & (hours < 18), np.sin(np.pi * (hours - 8) / 10), 0.0)
    load = np.minimum(depth * noon * weekday * own, 0.95)
    return np.asarray(rng.normal(0.0, cv, len(times)) + np.log1p(-load), dtype=float)


def _between(times: Vector, begin: float, hours: float) -> NDArray[np.bool_]:
    return np.asarray((hour_of(times) - begin) % 24 < hours)


def _nightly(rng: Random, times: Vector) -> Vector:
    """Return noise below a backup that takes 40% for one or two hours of each night."""
    hit = _between(times, 2, float(rng.integers(1, 3)))
    return np.asarray(independent(rng, times) + np.log(0.6) * hit, dtype=float)


def _scrub(rng: Random, times: Vector) -> Vector:
    """Return noise below a scrub that takes 20% to 40% of each Sunday's first hours."""
    hit = (weekday_of(times) == 6) & _between(times, 0, rng.uniform(6, 14))
    return np.asarray(
        independent(rng, times) + np.log(1 - rng.uniform(0.2, 0.4)) * hit, dtype=float
    )


def _month_end(rng: Random, times: Vector) -> Vector:
    """Return noise below a batch that takes 25% of the last two days of a month."""
    hit = (times - EPOCH) / DAY % 30.44 >= 28.44
    return np.asarray(independent(rng, times) + np.log(0.75) * hit, dtype=float)


def _alternate_nights(rng: Random, times: Vector) -> Vector:
    """Return noise below a backup that takes 30% of every second night."""
    hit = _between(times, 22, 8) & ((times + 2 * HOUR - EPOCH) // DAY % 2 == 0)
    return np.asarray(independent(rng, times) + np.log(0.7) * hit, dtype=float)


def _daylight_saving(rng: Random, times: Vector) -> Vector:
    """Return noise below a backup that moves by an hour in the middle of the history."""
    shift = HOUR * (np.arange(len(times)) >= len(times) * int(rng.integers(4, 8)) // 10)
    hit = _between(times + shift, 2, 2)
    return np.asarray(independent(rng, times) + np.log(0.6) * hit, dtype=float)


# --- every kind ---


KINDS: Final[Mapping[str, Noise]] = {
    "independent": independent,
    "AR(1)": autocorrelated,
    "drift": _drift,
    "t3 tails": partial(_tails, 3.0),
    "t2 tails": partial(_tails, 2.0),
    "skew": _skew,
    "spikes": _spikes,
    "quantized": _quantized,
    "variance × 4": _louder,
    "noise grows at an upgrade": _louder,
    "two modes": _two_modes,
    "modes of 3 to 15 runs": modes,
    "modes of about 25 runs": _sticky,
    "modes by boot": partial(_by_boot, 40),
    "modes by rare boots": partial(_by_boot, 150),
    "bursts": bursts,
    "Pareto bursts": partial(bursts, length=_pareto_length),
    "bad day": _bad_day,
    "thermal cycles": _wave,
    "garbage collection": partial(_sawtooth, 20, 60, 0.15),
    "slow sawtooth": partial(_sawtooth, 60, 120, 0.08),
    "slow wander": _wander,
    "day load 15%": partial(day_load, depth=0.15),
    "day load 35%": partial(day_load, depth=0.35),
    "day load 60%": partial(day_load, depth=0.60),
    "nightly backup": _nightly,
    "weekly scrub": _scrub,
    "month-end batch": _month_end,
    "alternate nights": _alternate_nights,
    "daylight saving": _daylight_saving,
    "missing weeks": partial(day_load, depth=0.15),
    "random hours": partial(day_load, depth=0.25),
}
"""Kinds of noise without a change."""
MODES: Final = (
    "modes of 3 to 15 runs",
    "modes of about 25 runs",
    "modes by boot",
    "modes by rare boots",
)
"""Kinds that stay at another level for a while, unexplained."""
LEAST_RATES: Final = {
    "nightly backup": 8,
    "weekly scrub": 2,
    "alternate nights": 4,
    "daylight saving": 24,
}
"""Fewest runs per day in which a kind is visible."""
BUSY: Final = (
    "AR(1)",
    "t3 tails",
    "spikes",
    "quantized",
    "bursts",
    "day load 15%",
    "nightly backup",
)
"""Usual kinds, in which a change has to be found."""


def times_of(kind: str, rng: Random, runs: int, a_day: float) -> Vector:
    """Return the times of a kind of noise."""
    times = clock(rng, runs, a_day)
    if kind == "random hours":
        return np.sort(times[0] + rng.uniform(0, runs / a_day * DAY, runs))
    if kind == "missing weeks":
        gaps = rng.random(runs) < 3 / runs
        return times + np.cumsum(gaps * rng.integers(1, 4, runs)) * 7 * DAY
    return times


def unchanged(kind: str, rng: Random, runs: int = RUNS, a_day: float | None = None) -> Series:
    """Return a series without a change of its level, at any of RATES."""
    rates = [rate for rate in RATES if rate >= LEAST_RATES.get(kind, 0)]
    rate = float(rng.choice(rates)) if a_day is None else a_day
    times = times_of(kind, rng, runs, rate)
    series = Series(times, KINDS[kind](rng, times))
    return series.upgraded(runs * 3 // 5) if kind == "noise grows at an upgrade" else series
