"""The workers of an instance, one a node, each in a thread of its own where there are several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from pvebench.config import Settings
from pvebench.drivers import driver_of
from pvebench.drivers.driver import MeasuredStorage
from pvebench.errors import Interrupted, PvebenchError
from pvebench.metrics.live import StorageState
from pvebench.model.ports import Clock, Guard, Site
from pvebench.model.run import Outcome
from pvebench.model.status import WorkerStatus
from pvebench.model.workload import Case
from pvebench.scheduler import Worker
from pvebench.scheduler.case_matrix import Assignment
from pvebench.scheduler.guards import BudgetGuard, PauseGuard, QuietGuard, TurnGuard, Turns
from pvebench.store import StateDirectory, Store
from pvebench.workloads import TOOLS

# --- Which guards look after a node's cases, put together from the settings.


@dataclass(frozen=True, slots=True)
class GuardFactory:
    """All guards of an instance; `guards` makes those of one node's worker."""

    settings: Settings
    state: StateDirectory
    store: Store
    clock: Clock
    turns: Turns
    free: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """node -> storage -> bytes that were free when last looked at."""

    def guards(self, site: Site) -> Sequence[Guard]:
        """Return the guards of `site`, the cheapest first; turns last, for they are kept."""
        found: list[Guard] = [PauseGuard(self.state.pause_reason)]
        hours = self.settings.quiet()
        if hours is not None:
            found.append(QuietGuard(hours, self.clock))
        storages = self._storages(site.node)
        limits = {name: one.budget_bytes for name, one in storages.items() if one.budget_bytes}
        if limits:
            written = partial(self._counted, site.node)
            found.append(BudgetGuard(limits, written, expected_bytes))
        self.free[site.node] = site.free
        found += site.guards
        shared = frozenset(name for name, one in storages.items() if one.shared)
        return [*found, TurnGuard(self.turns, shared)] if shared else found

    def _storages(self, node: str) -> Mapping[str, MeasuredStorage]:
        return driver_of(self.settings.driver).storages(self.settings, node)

    def _counted(self, node: str, storage: str) -> int:
        """Return what counts against the budget: of a shared storage, what any node wrote."""
        alone = not self._storages(node)[storage].shared
        return self.store.written_bytes(storage, self.clock.now(), node=node if alone else None)

    def storages(self) -> list[StorageState]:
        """Return what is to be said of each storage on each node."""
        now = self.clock.now()
        return [
            StorageState(
                node=node,
                storage=name,
                type=one.holds.name,
                shared=one.shared,
                budget_bytes=one.budget_bytes,
                counted_bytes=self._counted(node, name) if one.budget_bytes else 0,
                floor_bytes=one.floor_bytes,
                free_bytes=self.free.get(node, {}).get(name),
                written_bytes=self.store.written_bytes(name, now, node=node),
            )
            for node in self.settings.nodes_in_force()
            for name, one in self._storages(node).items()
        ]


def expected_bytes(case: Case) -> int:
    """Return the most that a run of `case` writes, a fill of its volume included."""
    scenario = case.scenario
    fill = scenario.layout.file_bytes or scenario.volume_bytes
    estimate = TOOLS[case.workload.tool].estimate(case.workload, scenario.volume_bytes)
    return fill + estimate.bytes_written


log = structlog.get_logger()


@dataclass(slots=True)
class Mailbox:
    """New assignments on their way into a worker's thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: list[Assignment] | None = None

    def put(self, given: list[Assignment]) -> None:
        """Leave assignments; those that were not taken yet are replaced."""
        with self._lock:
            self._waiting = given

    def take(self) -> list[Assignment] | None:
        """Return what was left, once."""
        with self._lock:
            given, self._waiting = self._waiting, None
        return given


@dataclass(frozen=True, slots=True)
class Member:
    """One worker and what is on its way to it."""

    worker: Worker
    mailbox: Mailbox


Make = Callable[[Site, list[Assignment], Callable[[Worker], None]], Worker]
"""Makes the worker of a site from its assignments and what is to be called before each step."""


def make_crew(
    sites: Sequence[Site],
    given: Sequence[Assignment],
    *,
    make: Make,
    between: Callable[[], None],
    stop: Callable[[], None],
) -> WorkerPool:
    """Return a worker for each site.

    Args:
        between: called before each step of a worker, one at a time.
        stop: ends every wait of every worker.
    """
    one_at_a_time = threading.Lock()

    def look_around(mailbox: Mailbox, worker: Worker) -> None:
        with one_at_a_time:
            between()
        arrived = mailbox.take()
        if arrived is not None:
            worker.assign(arrived)

    members = []
    for site in sites:
        mailbox = Mailbox()
        mine = [entry for entry in given if entry.node == site.node]
        members.append(Member(make(site, mine, partial(look_around, mailbox)), mailbox))
    return WorkerPool(members, stop)


class WorkerPool:
    """All workers of an instance.

    Args:
        stop: ends every wait of every worker.
    """

    def __init__(self, members: Sequence[Member], stop: Callable[[], None]) -> None:
        self._members = tuple(members)
        self._stop = stop
        self._faults: list[BaseException] = []

    def statuses(self) -> list[WorkerStatus]:
        """Return what each worker does."""
        return [member.worker.status for member in self._members]

    def outcomes(self) -> list[Outcome]:
        """Return how the last run of each case ended."""
        return [outcome for member in self._members for outcome in member.worker.outcomes.values()]

    def assign(self, given: Sequence[Assignment]) -> None:
        """Have each worker use its part of `given` from its next step on."""
        for member in self._members:
            mine = [entry for entry in given if entry.node == member.worker.status.node]
            member.mailbox.put(mine)

    def run(self) -> None:
        """Run all workers to their end.

        Raises:
            Interrupted: a stop was requested. PvebenchError: what ended a worker; the others
                were stopped then.
        """
        if len(self._members) == 1:
            self._members[0].worker.run()
            return
        threads = [
            threading.Thread(target=self._work, args=(member.worker,), name=member.worker.node)
            for member in self._members
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._faults:
            # The cause, if there is one: the others were only stopped because of it.
            raise min(self._faults, key=lambda fault: isinstance(fault, Interrupted))

    def _work(self, worker: Worker) -> None:
        try:
            worker.run()
        except PvebenchError as fault:
            self._faults.append(fault)
            self._stop()
        except BaseException as fault:
            log.exception("a worker ended by a mistake of pvebench", node=worker.node)
            self._faults.append(fault)
            self._stop()
