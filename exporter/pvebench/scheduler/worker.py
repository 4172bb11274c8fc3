"""One worker a node: cycles through its packs' due cases, for ever or a number of times."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from pvebench.config import Pack
from pvebench.errors import DriverError, StoreError
from pvebench.model.conduct import Conduct
from pvebench.model.guard import Guard, Hold
from pvebench.model.ports import Site
from pvebench.model.run import Outcome, Run
from pvebench.model.status import STATE_OF_PHASE, CycleStatus, Phase, State, WorkerStatus
from pvebench.model.workload import Case
from pvebench.plan import Assignment, Plan, make_plan
from pvebench.runner import Observer, Observers, Runner
from pvebench.scheduler.burst import CORE, Burst
from pvebench.scheduler.due import BURST_SECONDS, NEVER_RUN_SECONDS, Due, next_due
from pvebench.scheduler.gate import Gate
from pvebench.store import CaseRecord, Store

STORE_RETRY_SECONDS: Final = 10.0
MAX_IDLE_SECONDS: Final = 10.0
"""Longest single wait: the host's clock may be set, the settings may change meanwhile."""
UPCOMING: Final = 5
"""How many of the next cases the status names."""

log = structlog.get_logger()


class Worker:
    """Runs cycles. `step` does one thing and returns; `run` steps until told to stop.

    Args:
        guards: asked before each run, and told after it.
        between: called with the worker before each step; may call `assign`.
        cycles: how many cycles of each pack to run, over all cases whether due or not; None: for
            ever, only what is due.
        observer: told of every phase and every finished, already stored run.
    """

    def __init__(
        self, *, site: Site, assignments: Sequence[Assignment], store: Store,
        observer: Observer, cycles: int | None = None, guards: Sequence[Guard] = (),
        between: Callable[[Worker], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._between = between
        self._site = site
        self._assignments = tuple(assignments)
        self._store = store
        self._observer = observer
        self._limit = cycles
        self._gate = Gate(guards)
        self._burst = Burst(store, site.node)
        self._records: dict[str, CaseRecord | None] = {}
        self._queue: list[Case] = []
        self._conduct = Conduct()
        self._plan: Plan | None = None
        self._cycles_done = 0
        self._cut = False
        self._lock = threading.Lock()
        now = site.clock.now()
        self._status = WorkerStatus(node=site.node, state=State.IDLE, since=now, progressed=now)
        observers = Observers([_StatusObserver(self), observer])
        self._runner = Runner(site, observers, store.history.host_rates)
        self._retried: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}

    @property
    def node(self) -> str:
        """The node that it measures."""
        return self._site.node

    @property
    def status(self) -> WorkerStatus:
        """What it does now; may be read from any thread."""
        with self._lock:
            return self._status

    def set_status(self, change: Callable[[WorkerStatus], WorkerStatus]) -> None:
        """Replace the status by what `change` makes of it."""
        with self._lock:
            self._status = change(self._status)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Use other packs from now on; what is queued and not in them is dropped.

        To be called between steps only, in the worker's thread.
        """
        self._assignments = tuple(assignments)
        wanted = {case.key for entry in assignments for case in entry.matrix.cases}
        kept = [case for case in self._queue if case.key in wanted]
        if len(kept) == len(self._queue):
            return
        self._queue = kept
        self.set_status(_replanned(len(kept)))
        if not kept:
            self._end_cycle()

    def run(self) -> None:
        """Step until the number of cycles is done or the clock is stopped.

        Raises:
            Interrupted: the clock was stopped. The VM is ended and the volumes are removed in
                any case.
        """
        try:
            while not self.finished:
                self._between(self)
                wait = self.step()
                if wait > 0:
                    self._site.clock.sleep(min(wait, MAX_IDLE_SECONDS))
        finally:
            self._runner.close()

    @property
    def finished(self) -> bool:
        """Whether the asked-for number of cycles is done."""
        if self._limit is None or self._queue:
            return False
        return self._cycles_done >= self._limit * len(self._assignments)

    def step(self) -> float:
        """Do the next thing: run one case, or begin or end a cycle. Return seconds to wait."""
        if self._queue:
            wait = self._run_next()
            if not self._queue:
                self._end_cycle()
            return wait
        return self._begin_cycle()

    def _begin_cycle(self) -> float:
        if not self._assignments:
            return MAX_IDLE_SECONDS  # none of the packs has anything for this node
        now = self._site.clock.now()
        assignment, late = self._most_overdue(now)
        due = late if self._limit is not None else self._due(assignment, late)
        if not due:
            wait = -max(late.values())
            next_at = now + timedelta(seconds=wait)
            self.set_status(lambda status: replace(status, state=State.IDLE, next_due=next_at))
            return wait
        cases = tuple(case for case in assignment.matrix.cases if case.key in due)
        uid = uuid.uuid4().hex
        self._conduct = assignment.pack.conduct
        self._plan = make_plan(
            replace(assignment.matrix, cases=cases),
            seed=f"{assignment.pack.seed}/{uid}" if self._cycles_done else assignment.pack.seed,
            conduct=self._conduct,
            overdue={key: seconds for key, seconds in due.items() if seconds < NEVER_RUN_SECONDS},
        )
        self._queue = list(self._plan.cases)
        self._open_cycle(uid, assignment.pack, self._plan, now)
        return 0.0

    def _due(self, assignment: Assignment, late: dict[str, float]) -> dict[str, float]:
        """Return the cases to run now: those that are due, and with them those that soon will be.

        A cycle takes a while, so its cases fall due one after another. Were each run alone, the
        disk would be switched for every single one; within the time that the pack itself takes
        (and half its interval at most) they go together. A failed case is never pulled forward.
        """
        if max(late.values()) < 0:
            return {}
        pack = assignment.pack
        whole = make_plan(assignment.matrix, seed=0, conduct=pack.conduct).seconds
        early = min(whole, pack.every_seconds / 2)
        return {
            case.key: late[case.key]
            for case in assignment.matrix.cases
            if late[case.key] >= (0 if self._has_failed(case) else -early)
        }

    def _has_failed(self, case: Case) -> bool:
        record = self._record(case)
        return record is not None and record.failures_in_row > 0

    def _most_overdue(self, now: datetime) -> tuple[Assignment, dict[str, float]]:
        """Return the pack whose most overdue case is the latest, with every case's lateness."""
        ranked = [(assignment, self._lateness(assignment, now)) for assignment in self._assignments]
        if self._limit is not None:
            return ranked[self._cycles_done % len(ranked)]
        return max(ranked, key=lambda entry: max(entry[1].values()))

    def _lateness(self, assignment: Assignment, now: datetime) -> dict[str, float]:
        late = {}
        for case in assignment.matrix.cases:
            due: Due = next_due(self._record(case), every_seconds=assignment.pack.every_seconds)
            late[case.key] = due.late_seconds(now)
            wanted = self._burst.wants(assignment.pack.tier, case.key)
            if wanted and not self._has_failed(case):
                late[case.key] = BURST_SECONDS
        return late

    def _record(self, case: Case) -> CaseRecord | None:
        if case.key not in self._records:
            self._records[case.key] = self._store.case(case.key)
        return self._records[case.key]

    def _open_cycle(self, uid: str, pack: Pack, plan: Plan, now: datetime) -> None:
        planned = len(plan.cases)
        self._store.begin_cycle(
            uid, node=self._site.node, pack=pack.name, tier=pack.tier, planned=planned
        )
        cycle = CycleStatus(
            uid=uid, number=self._cycles_done + 1, pack=pack.name, tier=pack.tier,
            planned=planned, done=0, failed=0, started=now,
            expected_end=now + timedelta(seconds=plan.seconds),
        )  # fmt: skip
        upcoming = tuple(self._queue[:UPCOMING])
        self.set_status(
            lambda status: replace(status, cycle=cycle, next_due=None, upcoming=upcoming)
        )
        log.info("cycle starts", pack=pack.name, cases=planned, seconds=round(plan.seconds))

    def _run_next(self) -> float:
        """Run the next case, or record why not, or return how long it has to wait."""
        case = self._queue[0]
        cycle = self.status.cycle
        uid = cycle.uid if cycle else ""
        hold = self._gate.enter(case)
        if hold is not None and not hold.skip:
            self._wait_for(hold)
            return hold.seconds
        if hold is not None:
            self._finish(self._runner.skip(case, cycle=uid, reason=hold.reason))
            return 0.0
        upcoming = tuple(self._queue[1 : 1 + UPCOMING])
        self.set_status(lambda status: replace(status, upcoming=upcoming, hold=None))
        try:
            self._look_after()
            run = self._runner.run(case, cycle=uid, conduct=self._conduct)
        finally:
            disturbed = self._gate.leave(case)
        if disturbed and run.outcome is Outcome.OK:
            run = replace(run, outcome=Outcome.NOISY, reason=disturbed)
        self._finish(run)
        return 0.0

    def _look_after(self) -> None:
        """Have the VM started anew if software was installed that it does not run yet."""
        upkeep = self._site.hypervisor.upkeep()
        pending = tuple(sorted(upkeep.pending.items()))
        self.set_status(lambda status: replace(status, pending=pending))
        if not upkeep.restart:
            return
        log.info("the VM is started anew", node=self.node, installed=upkeep.restart)
        try:
            self._runner.renew()
        except DriverError as error:
            log.warning("the VM does not end", node=self.node, reason=error.reason)

    def _wait_for(self, hold: Hold) -> None:
        known = self.status.hold
        if known is None or known.kind is not hold.kind:
            log.info("waiting", node=self.node, reason=hold.reason)
        self.set_status(lambda status: replace(status, state=State.PAUSED, hold=hold))

    def _finish(self, run: Run) -> None:
        """Store the run of the first case in the queue, and go on behind it."""
        case = run.case
        self._keep(run)
        self._queue.pop(0)
        self._records[case.key] = self._store.case(case.key)
        self.outcomes[case.key] = run.outcome
        self._advance(run, again=self._queue_again(run))
        if self._burst.note(run):
            self._give_way(run)
        _log_run(run)
        self._observer.finished(run)

    def _give_way(self, run: Run) -> None:
        """The environment has changed: end the cycle here if another pack is to go first."""
        log.warning("another environment", node=self.node, environment=run.environment.slug)
        cycle = self.status.cycle
        tiers = {assignment.pack.tier for assignment in self._assignments}
        if self._limit is None and CORE in tiers and cycle is not None and cycle.tier != CORE:
            self._cut = bool(self._queue)
            self._queue.clear()

    def _keep(self, run: Run) -> None:
        """Store a finished run; while the database cannot take it, wait and try again.

        Adding a run twice changes nothing, so trying again is safe. Raises Interrupted.
        """
        while True:
            try:
                self._store.add_run(run)
            except StoreError as error:
                log.warning("a finished run cannot be stored yet", reason=error.reason)
                self._show_fault(error.reason)
                self._site.clock.sleep(STORE_RETRY_SECONDS)
            else:
                return

    def _show_fault(self, fault: str) -> None:
        self.set_status(lambda status: replace(status, state=State.ERROR, fault=fault))

    def _queue_again(self, run: Run) -> bool:
        """Put a case whose failure may pass at the end of a counted cycle, once; say whether.

        An endless worker needs no such thing: there the case comes back by its back-off.
        """
        key = run.case.key
        if self._limit is None or not run.retryable or key in self._retried:
            return False
        self._retried.add(key)
        self._queue.append(run.case)
        return True

    def _advance(self, run: Run, *, again: bool) -> None:
        left = len(self._queue)
        upcoming = tuple(self._queue[:UPCOMING])

        def change(status: WorkerStatus) -> WorkerStatus:
            cycle = status.cycle
            if cycle is not None:
                done = cycle.done + 1
                # From the second run on, the runs so far tell better than the plan.
                each = (run.finished - cycle.started) / done
                end = run.finished + each * left if done > 1 else cycle.expected_end
                failed = cycle.failed + (not run.outcome.good)
                planned = cycle.planned + again
                cycle = replace(cycle, planned=planned, done=done, failed=failed, expected_end=end)
            fault = run.reason if run.outcome is Outcome.FAILED else ""
            return replace(
                status, cycle=cycle, progressed=run.finished, fault=fault,
                case=None, phase=None, state=State.IDLE, since=run.finished, upcoming=upcoming,
                hold=None,
            )  # fmt: skip

        self.set_status(change)

    def _end_cycle(self) -> None:
        cycle = self.status.cycle
        if cycle is not None and not self._cut:
            self._store.end_cycle(cycle.uid)
            log.info("cycle ends", pack=cycle.pack, runs=cycle.done, not_ok=cycle.failed)
        self._cut = False
        self._cycles_done += 1
        self._retried.clear()


def _replanned(left: int) -> Callable[[WorkerStatus], WorkerStatus]:
    """Return a change of the status to a cycle with so many cases left."""

    def change(status: WorkerStatus) -> WorkerStatus:
        cycle = status.cycle
        if cycle is None:
            return status
        return replace(status, cycle=replace(cycle, planned=cycle.done + left))

    return change


class _StatusObserver:
    """Writes the runner's phases into the worker's status."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        now = self._worker._site.clock.now()  # noqa: SLF001 # two halves of one thing

        def change(status: WorkerStatus) -> WorkerStatus:
            return replace(
                status, state=STATE_OF_PHASE[phase], case=case, phase=phase,
                phase_seconds=seconds, since=now, progressed=now,
            )  # fmt: skip

        self._worker.set_status(change)

    def finished(self, run: Run) -> None:
        """Nothing: the worker itself stores finished runs."""


def _log_run(run: Run) -> None:
    write = log.info if run.outcome is Outcome.OK else log.warning
    write(
        "run ends", case=run.case.slug, outcome=str(run.outcome), reason=run.reason,
        seconds=round(run.duration_seconds, 1),
    )  # fmt: skip
