"""Per-node worker that runs due cases in cycles, endlessly or a number of times."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pvebench.errors import DriverError, StoreError, StoreLost
from pvebench.log import log
from pvebench.model.ports import Guard, Hold, HoldKind, Site
from pvebench.model.run import Outcome, Run
from pvebench.model.run_metrics import DISTURBED
from pvebench.model.status import STATE_OF_PHASE, CycleStatus, Phase, State, WorkerStatus
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench.scheduler.due_cases import CycleSelector, NextCycle, Passes
from pvebench.scheduler.guards import GuardChain, QuietGuard
from pvebench.scheduler.plan import Assignment, Plan
from pvebench.store.live_results import LiveResults
from pvebench.store.records import CaseRecord

UPCOMING: Final = 5
"""Number of next cases in the status."""


def _advanced(cycle: CycleStatus, run: Run, *, left: int, again: bool) -> CycleStatus:
    done = cycle.done + 1
    # From the second run on, the runs so far are a better estimate than the plan. The first one
    # boots the guest, which under emulation takes a minute: what is left takes its planned time.
    each = (run.finished - cycle.started) / done
    if done == 1:
        each = (cycle.expected_end - cycle.started) / cycle.planned
    return replace(
        cycle,
        planned=cycle.planned + again,
        done=done,
        failed=cycle.failed + (not run.outcome.good),
        expected_end=run.finished + each * left,
    )


def expected_seconds(plan: Plan, records: Mapping[str, CaseRecord]) -> float:
    """Return the expected duration of a cycle: of the last runs here if all cases have one.

    The plan assumes KVM and an idle host.
    """
    case_records = [records[case.key] for case in plan.cases if case.key in records]
    if len(case_records) < len(plan.cases):
        return plan.seconds
    runs = [record.good or record.last for record in case_records]
    return sum((run.finished - run.started).total_seconds() for run in runs)


STORE_RETRY_SECONDS: Final = 10.0
MAX_IDLE_SECONDS: Final = 10.0
"""Longest single wait, because the clock or the settings may change during it."""


class Worker:
    """Worker that runs cycles. `step` does one thing and returns; `run` steps until a stop.

    Args:
        guards: called before and after each run.
        between: called with the worker before each step; may call `assign`.
        cycles: number of cycles per pack, over all cases whether due or not; None: endless, due
            cases only.
        notify: called with every run that has ended and is stored.

    Attributes:
        status: the current status; only the thread of the worker replaces it, any may read it.
    """

    def __init__(
        self,
        *,
        site: Site,
        assignments: Sequence[Assignment],
        results: LiveResults,
        notify: Callable[[Run], None] = lambda _: None,
        cycles: int | None = None,
        guards: Sequence[Guard] = (),
        between: Callable[[Worker], None] = lambda _: None,
    ) -> None:
        self._between = between
        self._site = site
        self._results = results
        self._notify = notify
        self._limit = cycles
        self._guards = GuardChain(guards)
        quiet = next((guard.hours for guard in guards if isinstance(guard, QuietGuard)), None)
        self._selector = CycleSelector(
            results, site.node, assignments, counted=cycles is not None, hours=quiet
        )
        begun = site.clock.now()
        self.status = WorkerStatus(node=site.node, state=State.IDLE, since=begun, progressed=begun)
        self._runner = Runner(
            site,
            self.enter,
            lambda case: results.host_rates(case, site.clock.now()),
            results.store.identities,
        )
        self._passes = Passes()
        self._queue: list[Case] = []
        self._conduct = Conduct()
        self._cycles_done = 0
        self._cut = False
        self._retried: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}

    @property
    def node(self) -> str:
        """The measured node."""
        return self._site.node

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The packs to run."""
        return self._selector.assignments

    def _set(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = replace(self.status, **changes)

    def enter(self, case: Case, phase: Phase, seconds: float) -> None:
        """Set the phase of a case that runs; see `WorkerStatus`."""
        now = self._site.clock.now()
        self._set(
            state=STATE_OF_PHASE[phase],
            case=case,
            phase=phase,
            phase_seconds=seconds,
            since=now,
            progressed=now,
        )

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Use other packs from now on; drop queued cases that are not in them.

        Call between steps only, in the worker's thread.
        """
        self._selector.assignments = tuple(assignments)
        keys = {case.key for entry in assignments for case in entry.matrix.cases}
        kept = [case for case in self._queue if case.key in keys]
        if len(kept) == len(self._queue):
            return
        self._queue = kept
        cycle = self.status.cycle
        planned = cycle and replace(cycle, planned=cycle.done + len(kept))
        self._set(cycle=planned, upcoming=tuple(kept[:UPCOMING]), hold=None)
        if not kept:
            self._cut = True  # an incomplete cycle is not recorded as ended
            self._end_cycle()

    def run(self) -> None:
        """Step until the number of cycles is done or the clock is stopped.

        Raises:
            Interrupted: the clock was stopped. The VM is ended and the volumes are removed in
                every case.
        """
        try:
            while not self.finished:
                self._between(self)
                wait = self._try_step()
                if wait > 0:
                    self._site.clock.sleep(min(wait, MAX_IDLE_SECONDS))
        finally:
            self._runner.close()

    @property
    def finished(self) -> bool:
        """Whether the requested number of cycles is done."""
        if self._limit is None or self._queue:
            return False
        return self._cycles_done >= self._limit * len(self.assignments)

    def _try_step(self) -> float:
        """Step; if the database is unavailable, set the status and wait."""
        try:
            return self.step()
        except StoreLost:
            raise
        except StoreError as error:
            log.warning("runs suspended: database unavailable", reason=error.reason)
            self._set(state=State.ERROR, fault=error.reason)
            return STORE_RETRY_SECONDS

    def step(self) -> float:
        """Do the next thing: run one case, or begin or end a cycle. Return seconds to wait."""
        if self._queue:
            wait = self._run_next()
            if not self._queue:
                self._end_cycle()
            return wait
        return self._begin_cycle()

    def _begin_cycle(self) -> float:
        if not self.assignments:
            return MAX_IDLE_SECONDS  # no pack has a case for this node
        now, uid = self._site.clock.now(), uuid.uuid4().hex
        choice = self._selector.choose(now, turn=self._cycles_done)
        if choice.plan is None:
            self._idle_until(choice)
            return (choice.at - now).total_seconds()
        self._open_cycle(uid, choice, choice.plan, now)
        self._conduct = choice.assignment.pack.conduct
        self._queue = list(choice.plan.cases)
        return 0.0

    def _idle_until(self, choice: NextCycle) -> None:
        """Set that nothing is due before a moment, and which case is due then."""
        recovered = self.status.state is State.ERROR
        self._set(
            state=State.IDLE,
            next_due=choice.at,
            upcoming=(choice.first,),
            fault="" if recovered else self.status.fault,
            due=choice.due,
        )

    def _open_cycle(self, uid: str, choice: NextCycle, plan: Plan, now: datetime) -> None:
        pack, planned = choice.assignment.pack, len(plan.cases)
        seconds = expected_seconds(plan, self._results.now.cases)
        done = self._cycles_done // len(self.assignments)
        left = None if self._limit is None else self._limit - done - 1
        self._passes.begin()
        self._results.store.begin_cycle(
            uid, node=self._site.node, pack=pack.name, tier=pack.tier, planned=planned
        )
        cycle = CycleStatus(
            uid=uid,
            number=self._cycles_done + 1,
            pack=pack.name,
            tier=pack.tier,
            planned=planned,
            done=0,
            failed=0,
            started=now,
            expected_end=now + timedelta(seconds=seconds),
            repeats=pack.conduct.repeats,
        )
        self._set(
            cycle=cycle,
            next_due=None,
            upcoming=plan.cases[:UPCOMING],
            due={**choice.due, **{case.key: now for case in plan.cases}},
            cycles_left=left,
        )
        log.info("cycle started", pack=pack.name, cases=planned, seconds=round(seconds))

    def _run_next(self) -> float:
        """Run the next case or skip it, or return the seconds to wait for it."""
        case = self._queue[0]
        cycle = self.status.cycle
        uid = cycle.uid if cycle else ""
        hold = self._guards.enter(case)
        if hold is not None and not hold.skip:
            self._wait_for(hold)
            return hold.seconds
        if hold is not None:
            self._finish(self._runner.skip(case, cycle=uid, reason=hold.reason))
            return 0.0
        self._set(upcoming=tuple(self._queue[1 : UPCOMING + 1]), hold=None)
        try:
            self._apply_updates()
            run = self._runner.run(case, cycle=uid, conduct=self._conduct)
            run.copies = self._site.storages.copies(case)
        finally:
            disturbance = self._guards.leave(case)
        disturbed = self._site.storages.seen.get(case.scenario.storage, {}).get("disturbed")
        if disturbed is not None and run.outcome.good:
            run.add([DISTURBED.sample(disturbed)])
        if disturbance:
            run.demote(Outcome.NOISY, disturbance)
        self._passes.count(run)
        self._finish(run)
        return 0.0

    def _apply_updates(self) -> None:
        """Restart the VM if software was installed that it does not run yet."""
        updates = self._site.upkeep()
        self._set(pending=tuple(sorted(updates.pending.items())))
        if not updates.restart:
            return
        log.info("restarting VM", node=self.node, installed=updates.restart)
        try:
            self._runner.renew()
        except DriverError as error:
            log.warning("VM shutdown failed", node=self.node, reason=error.reason)

    def _wait_for(self, hold: Hold) -> None:
        before = self.status.hold
        if before is None or before.kind is not hold.kind:
            # Turns change with every run; all other reasons concern the operator.
            write = log.info if hold.kind is HoldKind.TURN else log.warning
            write("waiting", node=self.node, reason=hold.reason)
        self._set(state=State.PAUSED, hold=hold)

    def _finish(self, run: Run) -> None:
        """Store the run of the first case in the queue, and remove the case."""
        new_environment = self._store(run)
        self._queue.pop(0)
        self.outcomes[run.case.key] = run.outcome
        self._advance(run, again=self._queue_again(run))
        if new_environment:
            self._yield(run)
        _log_run(run)
        self._notify(run)

    def _advance(self, run: Run, *, again: bool) -> None:
        """Set that a run has ended; `again`: its case is queued again."""
        cycle = self.status.cycle
        self._set(
            cycle=cycle and _advanced(cycle, run, left=len(self._queue), again=again),
            progressed=run.finished,
            fault=run.reason if run.outcome is Outcome.FAILED else "",
            case=None,
            phase=None,
            state=State.IDLE,
            since=run.finished,
            upcoming=tuple(self._queue[:UPCOMING]),
            hold=None,
        )

    def _store(self, run: Run) -> bool:
        """Store a finished run; while the database is unavailable, wait and retry.

        Storing a run twice changes nothing, so a retry is safe. Returns whether the node's
        environment has changed with it. Raises Interrupted.
        """
        while True:
            try:
                return self._results.keep(run)
            except StoreLost:
                raise
            except StoreError as error:
                log.warning("storing run failed, retrying", reason=error.reason)
                self._set(state=State.ERROR, fault=error.reason)
                self._site.clock.sleep(STORE_RETRY_SECONDS)

    def _queue_again(self, run: Run) -> bool:
        """Queue a case with a retryable failure once more in a counted cycle; return whether.

        An endless worker does not need this: its back-off brings the case back.
        """
        key = run.case.key
        if self._limit is None or not run.retryable or key in self._retried:
            return False
        self._retried.add(key)
        self._queue.append(run.case)
        return True

    def _yield(self, run: Run) -> None:
        """End the cycle after a change of the environment if a core pack goes first."""
        log.warning("environment changed", node=self.node, environment=run.environment.slug)
        cycle = self.status.cycle
        if cycle is not None and self._selector.yields_to_core(cycle.tier):
            self._cut = bool(self._queue)
            self._queue.clear()

    def _end_cycle(self) -> None:
        cycle, cut = self.status.cycle, self._cut
        self._cut = False
        self._cycles_done += 1
        self._retried.clear()
        if cycle is not None and not cut:
            log.info("cycle ended", pack=cycle.pack, runs=cycle.done, not_ok=cycle.failed)
            self._results.end_cycle(cycle.uid)


def _log_run(run: Run) -> None:
    log.info(
        "run ended",
        case=run.case.slug,
        outcome=str(run.outcome),
        reason=run.reason,
        seconds=round(run.duration_seconds, 1),
    )
