"""The workers of an instance, one per node; several workers run in separate threads."""

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

# --- Guards of a node's cases, from the settings.


@dataclass(frozen=True, slots=True)
class GuardFactory:
    """Factory of all guards of an instance; `guards` creates those of one worker."""

    settings: Settings
    state: StateDirectory
    store: Store
    clock: Clock
    turns: Turns
    free: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """node -> storage -> free bytes at the last check."""

    def guards(self, site: Site) -> Sequence[Guard]:
        """Return the guards of `site`, the cheapest first; turns last, because they are held."""
        guards: list[Guard] = [PauseGuard(self.state.pause_reason)]
        hours = self.settings.quiet()
        if hours is not None:
            guards.append(QuietGuard(hours, self.clock))
        storages = self._storages(site.node)
        limits = {
            name: storage.budget_bytes for name, storage in storages.items() if storage.budget_bytes
        }
        if limits:
            written = partial(self._counted, site.node)
            guards.append(BudgetGuard(limits, written, expected_bytes))
        self.free[site.node] = site.free
        guards += site.guards
        shared = frozenset(name for name, storage in storages.items() if storage.shared)
        return [*guards, TurnGuard(self.turns, shared)] if shared else guards

    def _storages(self, node: str) -> Mapping[str, MeasuredStorage]:
        return driver_of(self.settings.driver).storages(self.settings, node)

    def _counted(self, node: str, storage: str) -> int:
        """Return the bytes that count against the budget; for a shared storage, of all nodes."""
        local = not self._storages(node)[storage].shared
        return self.store.written_bytes(storage, self.clock.now(), node=node if local else None)

    def storages(self) -> list[StorageState]:
        """Return the state of each storage on each node."""
        now = self.clock.now()
        return [
            StorageState(
                node=node,
                storage=name,
                type=storage.holds.name,
                shared=storage.shared,
                budget_bytes=storage.budget_bytes,
                counted_bytes=self._counted(node, name) if storage.budget_bytes else 0,
                floor_bytes=storage.floor_bytes,
                free_bytes=self.free.get(node, {}).get(name),
                written_bytes=self.store.written_bytes(name, now, node=node),
            )
            for node in self.settings.nodes_in_force()
            for name, storage in self._storages(node).items()
        ]


def expected_bytes(case: Case) -> int:
    """Return the maximum bytes that a run of `case` writes, including a fill of its volume."""
    scenario = case.scenario
    fill = scenario.layout.file_bytes or scenario.volume_bytes
    estimate = TOOLS[case.workload.tool].estimate(case.workload, scenario.volume_bytes)
    return fill + estimate.bytes_written


# --- Workers and their threads.

log = structlog.get_logger()


@dataclass(slots=True)
class PendingAssignments:
    """New assignments for a worker in another thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: list[Assignment] | None = None

    def put(self, assignments: list[Assignment]) -> None:
        """Store assignments; they replace those that were not taken yet."""
        with self._lock:
            self._pending = assignments

    def take(self) -> list[Assignment] | None:
        """Return the stored assignments, once."""
        with self._lock:
            assignments, self._pending = self._pending, None
        return assignments


@dataclass(frozen=True, slots=True)
class Member:
    """One worker and its pending assignments."""

    worker: Worker
    pending: PendingAssignments


Make = Callable[[Site, list[Assignment], Callable[[Worker], None]], Worker]
"""Factory of a site's worker, from its assignments and a function to call before each step."""


def make_worker_pool(
    sites: Sequence[Site],
    assignments: Sequence[Assignment],
    *,
    make: Make,
    between: Callable[[], None],
    stop: Callable[[], None],
) -> WorkerPool:
    """Return a pool with a worker for each site.

    Args:
        between: called before each step of a worker, never in parallel.
        stop: ends every wait of every worker.
    """
    between_lock = threading.Lock()

    def before_step(pending: PendingAssignments, worker: Worker) -> None:
        with between_lock:
            between()
        new = pending.take()
        if new is not None:
            worker.assign(new)

    members = []
    for site in sites:
        pending = PendingAssignments()
        own = [assignment for assignment in assignments if assignment.node == site.node]
        members.append(Member(make(site, own, partial(before_step, pending)), pending))
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
        """Return the status of each worker."""
        return [member.worker.status for member in self._members]

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each case's last run."""
        return [outcome for member in self._members for outcome in member.worker.outcomes.values()]

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Give each worker its part of `assignments`, used from its next step on."""
        for member in self._members:
            node = member.worker.status.node
            member.pending.put([entry for entry in assignments if entry.node == node])

    def run(self) -> None:
        """Run all workers to their end.

        Raises:
            Interrupted: a stop was requested. PvebenchError: a worker failed, and the others
                were stopped.
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
            # The first failure: the others were only interrupted because of it.
            raise min(self._faults, key=lambda fault: isinstance(fault, Interrupted))

    def _work(self, worker: Worker) -> None:
        try:
            worker.run()
        except PvebenchError as fault:
            self._faults.append(fault)
            self._stop()
        except BaseException as fault:
            log.exception("worker crashed", node=worker.node)
            self._faults.append(fault)
            self._stop()
