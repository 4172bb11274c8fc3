"""How long judging takes: the best of several times, since the machine does other things too."""

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
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def one_run(rng: np.random.Generator, runs: int = 1000) -> float:
    """Return the seconds that judging the newest of `runs` runs takes."""
    values = KINDS["independent"](rng, runs, 0.03).tolist()
    return best_seconds(lambda: LevelScan(values).newest((), runs - 1), 30)


def an_upgrade(rng: np.random.Generator, runs: int = 120, after: int = 3) -> float:
    """Return the seconds that judging 1,350 cases at an upgrade takes."""
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
