"""One worker a node: cycles through its packs' due cases, for ever or a number of times."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from pvebench.config import Pack
from pvebench.errors import DriverError, StoreError, StoreLost
from pvebench.model.ports import Guard, Hold, HoldKind, Site
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.status import CycleStatus, WorkerStatus
from pvebench.model.workload import Case, Conduct
from pvebench.runner import Observers, Runner, RunObserver
from pvebench.scheduler.case_matrix import Assignment
from pvebench.scheduler.due_cases import CycleSelector, Passes
from pvebench.scheduler.guards import GuardChain, QuietGuard
from pvebench.scheduler.order import Plan
from pvebench.scheduler.status_tracker import StatusTracker
from pvebench.store.current import Results

STORE_RETRY_SECONDS: Final = 10.0
MAX_IDLE_SECONDS: Final = 10.0
"""Longest single wait: the host's clock may be set, the settings may change meanwhile."""

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
        self,
        *,
        site: Site,
        assignments: Sequence[Assignment],
        results: Results,
        observer: RunObserver,
        cycles: int | None = None,
        guards: Sequence[Guard] = (),
        between: Callable[[Worker], None] = lambda _: None,
    ) -> None:
        self._between = between
        self._site = site
        self._results = results
        self._observer = observer
        self._limit = cycles
        self._gate = GuardChain(guards)
        quiet = next((guard.hours for guard in guards if isinstance(guard, QuietGuard)), None)
        self._agenda = CycleSelector(
            results, site.node, assignments, counted=cycles is not None, hours=quiet
        )
        self._present = StatusTracker(site.node, site.clock.now)
        observers = Observers([self._present, observer])
        self._runner = Runner(
            site,
            observers,
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
        """The node that it measures."""
        return self._site.node

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The packs that it runs."""
        return self._agenda.assignments

    @property
    def status(self) -> WorkerStatus:
        """What it does now; may be read from any thread."""
        return self._present.status

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Use other packs from now on; what is queued and not in them is dropped.

        To be called between steps only, in the worker's thread.
        """
        self._agenda.assignments = tuple(assignments)
        wanted = {case.key for entry in assignments for case in entry.matrix.cases}
        kept = [case for case in self._queue if case.key in wanted]
        if len(kept) == len(self._queue):
            return
        self._queue = kept
        self._present.replan(kept)
        if not kept:
            self._cut = True  # it did not go through to its end
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
                wait = self._try_step()
                if wait > 0:
                    self._site.clock.sleep(min(wait, MAX_IDLE_SECONDS))
        finally:
            self._runner.close()

    @property
    def finished(self) -> bool:
        """Whether the asked-for number of cycles is done."""
        if self._limit is None or self._queue:
            return False
        return self._cycles_done >= self._limit * len(self.assignments)

    def _try_step(self) -> float:
        """Step; while the database cannot be used, say so and wait."""
        try:
            return self.step()
        except StoreLost:
            raise
        except StoreError as error:
            log.warning("nothing is measured until the database can be used", reason=error.reason)
            self._present.fault(error.reason)
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
            return MAX_IDLE_SECONDS  # none of the packs has anything for this node
        now, uid = self._site.clock.now(), uuid.uuid4().hex
        choice = self._agenda.choose(now, turn=self._cycles_done, uid=uid)
        if choice.plan is None:
            self._present.idle_until(choice.at)
            return (choice.at - now).total_seconds()
        self._open_cycle(uid, choice.assignment.pack, choice.plan, now)
        self._conduct = choice.assignment.pack.conduct
        self._queue = list(choice.plan.cases)
        return 0.0

    def _open_cycle(self, uid: str, pack: Pack, plan: Plan, now: datetime) -> None:
        planned = len(plan.cases)
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
            expected_end=now + timedelta(seconds=plan.seconds),
        )
        self._present.begin(cycle, plan.cases)
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
        self._present.start(self._queue[1:])
        try:
            self._look_after()
            run = self._runner.run(case, cycle=uid, conduct=self._conduct)
        finally:
            disturbed = self._gate.leave(case)
        self._finish(self._passes.counted(self._disturbed(run, disturbed)))
        return 0.0

    def _disturbed(self, run: Run, by: str) -> Run:
        """Return the run with what is known of its disturbance; noisy, where there was one."""
        known = self._site.seen.get(run.case.scenario.storage, {}).get("disturbed")
        if known is not None and run.outcome.good:
            told = Sample("disturbed", None, known, Unit.RATIO)
            run = replace(run, samples=(*run.samples, told))
        if by and run.outcome is Outcome.OK:
            run = replace(run, outcome=Outcome.NOISY, reason=by)
        return run

    def _look_after(self) -> None:
        """Have the VM started anew if software was installed that it does not run yet."""
        upkeep = self._site.upkeep()
        self._present.pending(tuple(sorted(upkeep.pending.items())))
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
            # Turns change with every run; everything else somebody may want to know of.
            tell = log.info if hold.kind is HoldKind.TURN else log.warning
            tell("waiting", node=self.node, reason=hold.reason)
        self._present.hold(hold)

    def _finish(self, run: Run) -> None:
        """Store the run of the first case in the queue, and go on behind it."""
        begins = self._keep(run)
        self._queue.pop(0)
        self.outcomes[run.case.key] = run.outcome
        again = self._queue_again(run)
        self._present.advance(run, self._queue, again=again)
        if begins:
            self._give_way(run)
        _log_run(run)
        self._observer.finished(run)

    def _keep(self, run: Run) -> bool:
        """Store a finished run; while the database cannot take it, wait and try again.

        Keeping a run twice changes nothing, so trying again is safe. Returns whether the node's
        environment has changed with it. Raises Interrupted.
        """
        while True:
            try:
                return self._results.keep(run)
            except StoreLost:
                raise
            except StoreError as error:
                log.warning("a finished run cannot be stored yet", reason=error.reason)
                self._present.fault(error.reason)
                self._site.clock.sleep(STORE_RETRY_SECONDS)

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

    def _give_way(self, run: Run) -> None:
        """The environment has changed: end the cycle here if another pack is to go first."""
        log.warning("another environment", node=self.node, environment=run.environment.slug)
        cycle = self.status.cycle
        if cycle is not None and self._agenda.gives_way(cycle.tier):
            self._cut = bool(self._queue)
            self._queue.clear()

    def _end_cycle(self) -> None:
        cycle, cut = self.status.cycle, self._cut
        self._cut = False
        self._cycles_done += 1
        self._retried.clear()
        if cycle is not None and not cut:
            log.info("cycle ends", pack=cycle.pack, runs=cycle.done, not_ok=cycle.failed)
            self._results.end_cycle(cycle.uid)


def _log_run(run: Run) -> None:
    write = log.info if run.outcome is Outcome.OK else log.warning
    write(
        "run ends",
        case=run.case.slug,
        outcome=str(run.outcome),
        reason=run.reason,
        seconds=round(run.duration_seconds, 1),
    )
