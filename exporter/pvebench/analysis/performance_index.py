"""Overall performance of a storage: the geometric mean of its cases, per environment."""

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
        index: geometric mean over the cases of their level relative to the first shared
            environment; 1 is the level of the first environment.
        cases: number of cases.
        runs: number of their successful runs.
        start: time of the first run.
    """

    storage: str
    environment: str
    index: float
    cases: int
    runs: int
    start: float


def levels_by_environment(history: CaseHistory) -> Levels:
    """Return the level of a case in each environment, in chronological order."""
    values: dict[str, list[float]] = {}
    starts: dict[str, float] = {}
    logs, place = history.logs().tolist(), 0
    for name, stretch in groupby(history.points.environments):
        end = place + len([*stretch])
        values.setdefault(name, []).extend(logs[place:end])
        starts.setdefault(name, history.points.times[place])
        place = end
    return {
        name: (statistics.median(stretch_logs), len(stretch_logs), starts[name])
        for name, stretch_logs in values.items()
    }


def performance_index(
    histories: Sequence[CaseHistory],
    levels_of: Callable[[CaseHistory], Levels] = levels_by_environment,
) -> tuple[EnvironmentLevel, ...]:
    """Return the levels of every storage in every environment, oldest first.

    A case counts relative to its first environment, starting from the index there: a case that was
    added in the third environment has no level in the first.
    """
    storages: dict[str, list[Levels]] = {}
    for history in histories:
        storage = history.labels.get("storage", "")
        storages.setdefault(storage, []).append(levels_of(history))
    levels = [level for name, cases in storages.items() for level in _of_storage(name, cases)]
    return tuple(sorted(levels, key=lambda level: (level.start, level.storage)))


def _of_storage(storage: str, cases: Sequence[Levels]) -> list[EnvironmentLevel]:
    starts: dict[str, float] = {}
    for case in cases:
        for name, (_, _, start) in case.items():
            starts[name] = min(start, starts.get(name, start))
    logs: dict[str, float] = {}
    levels = []
    for name in sorted(starts, key=starts.__getitem__):
        here = [case for case in cases if name in case]
        logs[name] = _chained(here, name, logs)
        levels.append(
            EnvironmentLevel(
                storage=storage,
                environment=name,
                index=math.exp(logs[name]),
                cases=len(here),
                runs=sum(case[name][1] for case in here),
                start=starts[name],
            )
        )
    return levels


def _chained(cases: Sequence[Levels], name: str, logs: Mapping[str, float]) -> float:
    """Return the mean log index of the cases in one environment, from those before it."""
    shifts = []
    for case in cases:
        first = next(iter(case))
        if first in logs:
            shifts.append(logs[first] + case[name][0] - case[first][0])
    return statistics.fmean(shifts) if shifts else 0.0
