"""A worker on a simulated node."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pvebench.config import load_pack
from pvebench.drivers.clocks import START, SimulatedClock
from pvebench.model.ports import Guard
from pvebench.model.run import Outcome
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.scheduler.plan import Assignment, expand
from pvebench.scheduler.worker import Worker
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench_lab.simulated.simulated_hypervisor import simulated_site
from testing.faulty_node import Fault, Faults, FaultyHypervisor
from testing.packs import QUICK, STORAGES, Recorder
from testing.stores import TemporaryStore


class RecordedWorker(Worker):
    """A worker whose phases and runs are remembered."""

    def __init__(self, recorder: Recorder, **arguments: Any) -> None:
        self._recorder = recorder
        super().__init__(notify=recorder.runs.append, **arguments)

    def enter(self, case: Case, phase: Phase, seconds: float) -> None:
        super().enter(case, phase, seconds)
        self._recorder(case, phase, seconds)


@dataclass
class Simulation:
    """A worker on a simulated node, with everything around it."""

    results: LiveResults
    world: FaultyHypervisor
    worker: Worker
    recorder: Recorder

    @property
    def store(self) -> Store:
        return self.results.store

    def level(self, key: str) -> float:
        """Return the median IOPS of the case's `ok` runs, which the ranking uses."""
        return statistics.median(
            sample.value
            for run in self.recorder.runs
            if run.case.key == key and run.outcome is Outcome.OK
            for sample in run.samples
            if sample.metric == "iops"
        )


def simulate(
    directory: Path,
    *,
    seed: int = 1,
    cycles: int | None = 1,
    pack: Path = QUICK,
    faults: Mapping[Fault, float] | None = None,
    start: datetime = START,
    guards: Callable[[SimulatedClock, Store], Sequence[Guard]] = lambda *_: (),
) -> Simulation:
    store = TemporaryStore(directory / "pvebench.db", simulated=True)
    results = LiveResults(store)
    clock = SimulatedClock(start)
    world = FaultyHypervisor(
        node="lab", seed=seed, clock=clock, journal=store.journal, faults=Faults(seed, faults)
    )
    loaded = load_pack(pack)
    matrix = expand(loaded, node="lab", storages=STORAGES)
    recorder = Recorder()
    worker = RecordedWorker(
        recorder,
        site=simulated_site(world),
        assignments=[Assignment(loaded, matrix)],
        results=results,
        cycles=cycles,
        guards=guards(clock, store),
    )
    return Simulation(results, world, worker, recorder)
