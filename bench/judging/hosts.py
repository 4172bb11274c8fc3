"""Series with the noise of real hosts and their times: load by day, backups, bursts, and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from judging.series import KINDS, Vector
from pvebench.analysis.changepoints import ChangePoint, LevelScan
from pvebench.analysis.verdict import left_after

CV: Final = 0.03
AT: Final = 200
"""Run of the change."""
AFTER: Final = 60
HOUR: Final = 3600.0
Made = tuple[Vector, Vector]
"""Logarithms and times, seconds."""


def _times(rng: np.random.Generator, runs: int, a_day: int) -> Vector:
    return np.asarray(HOUR * (rng.uniform(0, 168) + np.arange(runs) * 24 / a_day), dtype=float)


def _bursts(rng: np.random.Generator, runs: int) -> Made:
    """Return 2 to 12 runs that are 8% to 35% slower, about every 50 runs."""
    values, at = rng.normal(0, CV, runs), int(rng.geometric(1 / 50))
    while at < runs:
        length = int(rng.integers(2, 13))
        values[at : at + length] += np.log(1 - rng.uniform(0.08, 0.35))
        at += length + int(rng.geometric(1 / 50))
    return values, _times(rng, runs, 8)


def _nightly(rng: np.random.Generator, runs: int) -> Made:
    """Return runs of which a backup slows one or two of 24 per day by 40%."""
    times = _times(rng, runs, 24)
    hours = times / HOUR % 24
    hit = (hours >= 2) & (hours < 2 + rng.integers(1, 3))
    return rng.normal(0, CV, runs) + np.log(0.6) * hit, times


def _day_load(depth: float, a_day: int, rng: np.random.Generator, runs: int) -> Made:
    """Return runs with load of other VMs from 8:00 to 18:00, less at weekends, varying by day."""
    times = _times(rng, runs, a_day)
    hours, days = times / HOUR % 24, (times / HOUR // 24).astype(int)
    # The epoch was a Thursday.
    weekday = np.where((days - 4) % 7 >= 5, 0.3, 1.0)
    own = rng.uniform(0.7, 1.3, days[-1] + 1)[days]
    shape = np.where((hours >= 8) & (hours < 18), np.sin(np.pi * (hours - 8) / 10), 0.0)
    return rng.normal(0, CV, runs) + np.log1p(-depth * shape * weekday * own), times


def _louder(rng: np.random.Generator, runs: int) -> Made:
    """The variance quadruples."""
    values = rng.normal(0, CV, runs)
    values[runs * 3 // 5 :] *= 2
    return values, _times(rng, runs, 8)


def _plain(kind: str, rng: np.random.Generator, runs: int) -> Made:
    return KINDS[kind](rng, runs, CV), _times(rng, runs, 8)


HOSTS: Final[Mapping[str, Callable[[np.random.Generator, int], Made]]] = {
    "bursts": _bursts,
    "AR(1)": partial(_plain, "AR(1)"),
    "day load 15%, 8 a day": partial(_day_load, 0.15, 8),
    "day load 15%, 24 a day": partial(_day_load, 0.15, 24),
    "day load 35%, 8 a day": partial(_day_load, 0.35, 8),
    "day load 35%, 24 a day": partial(_day_load, 0.35, 24),
    "variance × 4": _louder,
    "nightly backups": _nightly,
}
FOUND: Final = ("nightly backups", "bursts", *(name for name in HOSTS if "day load" in name))


@dataclass(frozen=True, slots=True)
class Steps:
    """Shares of series with a possible, a reported, and a persistent step."""

    doubted: float
    reported: float
    kept: float


def red_at_end(kind: str, rng: np.random.Generator, series: int) -> tuple[float, float]:
    """Return the share of unchanged series that end as changed; alarms per 1,000 runs."""
    runs, red, alarms = 450, 0, 0
    for _ in range(series):
        steps = LevelScan(*HOSTS[kind](rng, runs)).detect().steps
        red += bool(standing(steps))
        alarms += sum(not one.mode for one in steps)
    return red / series, 1000 * alarms / (series * runs)


def standing(steps: tuple[ChangePoint, ...] | list[ChangePoint]) -> float:
    """Return how far the last level is from the first; 0 if it is back, or a mode."""
    if not steps or steps[-1].mode:
        return 0.0
    total = sum(one.effect for one in steps)
    return total if abs(total) > left_after(steps[-1].effect, total) else 0.0


def recall(kind: str, rng: np.random.Generator, series: int, ratio: float) -> Steps:
    """Return the shares of possible and confirmed steps within 10 runs, and after 60 runs."""
    make = HOSTS.get(kind, partial(_plain, "independent"))
    counts = [0, 0, 0]
    for _ in range(series):
        values, times = make(rng, AT + AFTER)
        values[AT:] += np.log(ratio)
        steps = LevelScan(values, times).detect().steps
        late = [step for step in steps if step.seen >= AT and not step.mode]
        reported = any(step.seen < AT + 10 and step.effect * np.log(ratio) > 0 for step in late)
        counts[1] += reported
        counts[0] += reported or _doubted(values, times, steps, ratio)
        counts[2] += standing(late) * np.log(ratio) > np.log(ratio) ** 2 / 2
    return Steps(*(count / series for count in counts))


def _doubted(values: Vector, times: Vector, steps: tuple[ChangePoint, ...], ratio: float) -> bool:
    known = [one for one in steps if one.seen < AT]
    return any(doubt.effect * np.log(ratio) > 0 for doubt in _doubts(values, times, known))


def _doubts(values: Vector, times: Vector, known: list[ChangePoint]) -> Iterator[ChangePoint]:
    for runs in range(AT + 3, AT + 11):
        doubt = LevelScan(values[:runs], times[:runs]).newest(known, runs - 1).doubt
        if doubt is not None:
            yield doubt
