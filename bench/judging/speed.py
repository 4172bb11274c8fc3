"""Duration of the analysis: the best of several times, because of other load on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from judging.fleets import fleet, labels_1350
from judging.series import KINDS
from pvebench.analysis.case_history import FIGURES, CaseHistory, GoodRun, GoodRuns
from pvebench.analysis.changepoints import LevelScan
from pvebench.analysis.event_effects import judge_event


def best_seconds(work: Callable[[], object], times: int) -> float:
    """Return the shortest of several wall times."""
    durations = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begun)
    return min(durations)


def one_run(rng: np.random.Generator, runs: int = 1000) -> float:
    """Return the seconds of analyzing the latest of `runs` runs."""
    values = KINDS["independent"](rng, runs, 0.03).tolist()
    return best_seconds(lambda: LevelScan(values).newest((), runs - 1), 30)


def an_upgrade(rng: np.random.Generator, runs: int = 120, after: int = 3) -> float:
    """Return the seconds of analyzing 1,350 cases at an upgrade."""
    labels = labels_1350()
    values = np.exp(fleet(rng, len(labels), runs))
    histories = [
        CaseHistory(
            case=str(row),
            of=str(row),
            name=str(row),
            figure=FIGURES["throughput"],
            labels=own,
            points=GoodRuns(
                GoodRun(1e3 * run, "old" if run < runs - after else "new", float(value))
                for run, value in enumerate(values[row])
            ),
        )
        for row, own in enumerate(labels)
    ]
    at = 1e3 * (runs - after)
    return best_seconds(lambda: judge_event(histories, at, until=float("inf")), 3)
