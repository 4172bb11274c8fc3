"""How fast a storage is as a whole: the geometric mean of its cases, per environment."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pvebench.analysis.case_history import CaseHistory

Levels = Mapping[str, tuple[float, int, float]]
"""Environment -> (median logarithm, runs, time of the first) of one case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentLevel:
    """The level of a storage in one environment.

    Attributes:
        environment: its digest.
        index: geometric mean over the cases of their level here by that in the first
            environment that they share; 1 is the first environment's.
        cases: that it is the mean of.
        runs: good runs of them.
        start: time of the first one.
    """

    storage: str
    environment: str
    index: float
    cases: int
    runs: int
    start: float


def levels_by_environment(history: CaseHistory) -> Levels:
    """Return what a case reached in each environment, in the order of time."""
    values: dict[str, list[float]] = {}
    starts: dict[str, float] = {}
    logs, place = history.logs().tolist(), 0
    for name, stretch in groupby(history.points.environments):
        end = place + len([*stretch])
        values.setdefault(name, []).extend(logs[place:end])
        starts.setdefault(name, history.points.times[place])
        place = end
    return {
        name: (statistics.median(found), len(found), starts[name]) for name, found in values.items()
    }


def performance_index(
    histories: Sequence[CaseHistory],
    levels_of: Callable[[CaseHistory], Levels] = levels_by_environment,
) -> tuple[EnvironmentLevel, ...]:
    """Return the levels of every storage in every environment, oldest first.

    A case counts against its own first environment, as far as the index stood there: one that
    is measured only since the third environment does not pretend to know the first.
    """
    storages: dict[str, list[Levels]] = {}
    for history in histories:
        storage = history.labels.get("storage", "")
        storages.setdefault(storage, []).append(levels_of(history))
    found = [level for name, cases in storages.items() for level in _of_storage(name, cases)]
    return tuple(sorted(found, key=lambda level: (level.start, level.storage)))


def _of_storage(storage: str, cases: Sequence[Levels]) -> list[EnvironmentLevel]:
    starts: dict[str, float] = {}
    for case in cases:
        for name, (_, _, start) in case.items():
            starts[name] = min(start, starts.get(name, start))
    logs: dict[str, float] = {}
    found = []
    for name in sorted(starts, key=starts.__getitem__):
        here = [case for case in cases if name in case]
        logs[name] = _chained(here, name, logs)
        found.append(
            EnvironmentLevel(
                storage=storage,
                environment=name,
                index=math.exp(logs[name]),
                cases=len(here),
                runs=sum(case[name][1] for case in here),
                start=starts[name],
            )
        )
    return found


def _chained(cases: Sequence[Levels], name: str, logs: Mapping[str, float]) -> float:
    """Return the mean log index of the cases in one environment, given those before it."""
    shifts = []
    for case in cases:
        first = next(iter(case))
        if first in logs:
            shifts.append(logs[first] + case[name][0] - case[first][0])
    return statistics.fmean(shifts) if shifts else 0.0
