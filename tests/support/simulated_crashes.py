"""Killing a simulated pvebench at any moment, in simulated time, and looking at what is left.

A schedule is made from a seed: which faults strike how often, and at which moments the process
dies. A moment is any step at which something becomes durable or changes outside: a journal
entry, a VM or volume that begins or ends to exist, a run that is stored, any wait. A process
that has died does nothing more: whatever its `finally` blocks try raises again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pvebench.config import load_pack
from pvebench.drivers.clocks import START, SimulatedClock
from pvebench.drivers.simulated.reality import Fault, Faults, Reality, undo_simulated
from pvebench.drivers.simulated.world import World, simulated_site
from pvebench.model.ports import Journal
from pvebench.model.run import Outcome, Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.plan import Assignment, Matrix, expand
from pvebench.results import Results
from pvebench.scheduler.worker import Worker
from pvebench.store import Store
from support.packs import STORAGES

MAX_KILLS = 4
MOMENTS = 150
"""About so many moments a cycle of the pack below has; later kills never come."""


class Killed(BaseException):
    """The process is dead. Not an Exception: nothing may catch it."""


class Fate:
    """Counts moments and ends the process at the chosen one."""

    def __init__(self, dies_at: int | None) -> None:
        self._left = dies_at
        self.dead = False

    def moment(self) -> None:
        if self._left is not None:
            self._left -= 1
            self.dead = self.dead or self._left <= 0
        if self.dead:
            raise Killed


class MortalClock(SimulatedClock):
    def __init__(self, fate: Fate, start: Any) -> None:
        super().__init__(start)
        self._fate = fate

    def sleep(self, seconds: float) -> None:
        self._fate.moment()
        super().sleep(seconds)


class MortalJournal:
    """A journal whose writer may die before or after each entry."""

    def __init__(self, inner: Journal, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        self._fate.moment()
        number = self._inner.open(kind, details)
        self._fate.moment()
        return number

    def close(self, number: int) -> None:
        self._fate.moment()
        self._inner.close(number)
        self._fate.moment()

    def pending(self) -> list[tuple[int, str, Mapping[str, str]]]:
        return self._inner.pending()


class ForgetfulJournal:
    """What would be if the journal were not written."""

    def __init__(self, inner: Journal) -> None:
        self._inner = inner

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        return 0

    def close(self, number: int) -> None:
        pass

    def pending(self) -> list[tuple[int, str, Mapping[str, str]]]:
        return self._inner.pending()


@dataclass
class Told:
    """What people were told: the runs of which the end was shown."""

    uids: list[str] = field(default_factory=list)

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        pass

    def finished(self, run: Run) -> None:
        self.uids.append(run.uid)


@dataclass
class Schedule:
    """One seed's story: its faults, its deaths, and what was wrong afterwards."""

    seed: int
    deaths: int = 0
    wrong: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


def play(
    seed: int,
    directory: Path,
    pack: Path,
    *,
    journalled: Callable[[Journal], Journal] = lambda inner: inner,
) -> Schedule:
    """Play the schedule of one seed in an empty directory.

    Args:
        journalled: what stands between the product and its journal; a test takes it out here.
    """
    rng = random.Random(f"crash/{seed}")  # a schedule
    rates = {fault: rng.choice((0.0, 0.0, 0.0, 0.002, 0.02)) for fault in Fault}
    kills: list[int | None] = [rng.randrange(1, MOMENTS) for _ in range(rng.randint(1, MAX_KILLS))]
    schedule, told = Schedule(seed), Told()
    reality = Reality()
    store = Store(directory / f"{seed}.db", simulated=True)
    loaded = load_pack(pack)
    matrix = expand(loaded, node="lab", storages=STORAGES)
    for life, dies_at in enumerate([*kills, None]):
        fate = Fate(dies_at)
        reality.moment = fate.moment
        journal = journalled(MortalJournal(store.journal, fate))
        world = _world(f"{seed}/{life}", fate, reality, journal, rates)
        worker = Worker(
            site=simulated_site(world),
            assignments=[Assignment(loaded, matrix)],
            results=Results(_mortal(store, fate)),
            observer=told,
            cycles=1,
        )
        try:
            undo_simulated(journal, reality)
            _look_at_reality(schedule, reality, "after the undo at a start")
            worker.run()
        except Killed:
            schedule.deaths += 1
    _look_at_reality(schedule, reality, "after the last cycle")
    _look_at_runs(schedule, store, told, matrix)
    store.close()
    return schedule


def _world(
    seed: str, fate: Fate, reality: Reality, journal: Journal, rates: Mapping[Fault, float]
) -> World:
    number = random.Random(seed).randrange(10_000)
    return World(
        node="lab",
        seed=number,
        clock=MortalClock(fate, START),
        reality=reality,
        journal=journal,
        faults=Faults(number, rates),
    )


def _mortal(store: Store, fate: Fate) -> Store:
    """Return a view of the store in which storing a run is a moment."""

    class Mortal:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def add_run(self, run: Run) -> int:
            fate.moment()
            number = store.add_run(run)
            fate.moment()
            return number

    return Mortal()  # type: ignore[return-value] # a stand-in


def _look_at_reality(schedule: Schedule, reality: Reality, when: str) -> None:
    schedule.wrong += [f"VM {name} is left {when}" for name in sorted(reality.vms)]
    schedule.wrong += [f"volume {name} is left {when}" for name in sorted(reality.volumes)]


def _look_at_runs(schedule: Schedule, store: Store, told: Told, matrix: Matrix) -> None:
    stored = store.runs(limit=100_000)
    uids = Counter(run.uid for run in stored)
    schedule.outcomes.update(str(run.outcome) for run in stored)
    schedule.wrong += [
        f"run {uid} was told but is not stored" for uid in told.uids if uid not in uids
    ]
    schedule.wrong += [f"run {uid} is stored {n} times" for uid, n in uids.items() if n != 1]
    cases = {case.key: case for case in matrix.cases}
    for run in stored:
        if run.outcome is Outcome.OK:
            _look_at_label(schedule, store.evidence(run.number), cases[run.case_key])
    tried = {run.case_key for run in stored}
    schedule.wrong += [f"{key} was never run" for key in cases if key not in tried]
    if store.journal.pending():
        schedule.wrong.append(f"the journal is not empty: {store.journal.pending()}")


def _look_at_label(schedule: Schedule, evidence: Mapping[str, str], case: Case) -> None:
    """Compare the disk that the numbers came from with the case they are filed under."""
    disk = case.scenario.disk
    name = f"simulated:{case.scenario.volume} {disk.bus} {disk.cache}"
    measured = json.loads(evidence["output"])["jobs"][0]["jobname"]
    if measured != name:
        schedule.wrong.append(f"{case.slug} holds the numbers of {measured}")
