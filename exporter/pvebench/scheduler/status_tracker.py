"""Status of a worker: written by its own thread, read by any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from pvebench.model.ports import Hold
from pvebench.model.run import Outcome, Run
from pvebench.model.status import STATE_OF_PHASE, CycleStatus, Phase, State, WorkerStatus
from pvebench.model.workload import Case

UPCOMING: Final = 5
"""Number of next cases in the status."""


class StatusTracker:
    """Holder of a worker's current `WorkerStatus`. Also a `runner.RunObserver`.

    Args:
        now: returns the time of the worker's clock.
    """

    def __init__(self, node: str, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        begun = now()
        self._status = WorkerStatus(node=node, state=State.IDLE, since=begun, progressed=begun)

    @property
    def status(self) -> WorkerStatus:
        """The current status."""
        with self._lock:
            return self._status

    def change(self, change: Callable[[WorkerStatus], WorkerStatus]) -> None:
        """Replace the status by the result of `change`."""
        with self._lock:
            self._status = change(self._status)

    def idle_until(self, moment: datetime) -> None:
        """Set that nothing is due before `moment`."""

        def change(status: WorkerStatus) -> WorkerStatus:
            recovered = status.state is State.ERROR
            fault = "" if recovered else status.fault
            return replace(status, state=State.IDLE, next_due=moment, fault=fault)

        self.change(change)

    def begin(self, cycle: CycleStatus, queue: Sequence[Case]) -> None:
        """Set a new cycle."""
        upcoming = tuple(queue[:UPCOMING])
        self.change(lambda status: replace(status, cycle=cycle, next_due=None, upcoming=upcoming))

    def replan(self, queue: Sequence[Case]) -> None:
        """Set the remaining cases of the cycle."""

        def change(status: WorkerStatus) -> WorkerStatus:
            cycle = status.cycle
            if cycle is not None:
                cycle = replace(cycle, planned=cycle.done + len(queue))
            return replace(status, cycle=cycle, upcoming=tuple(queue[:UPCOMING]), hold=None)

        self.change(change)

    def start(self, behind: Sequence[Case]) -> None:
        """Set that a case starts, with these behind it."""
        upcoming = tuple(behind[:UPCOMING])
        self.change(lambda status: replace(status, upcoming=upcoming, hold=None))

    def hold(self, hold: Hold) -> None:
        """Set that the next case has to wait."""
        self.change(lambda status: replace(status, state=State.PAUSED, hold=hold))

    def fault(self, fault: str) -> None:
        """Set a fault that must be fixed before the next run."""
        self.change(lambda status: replace(status, state=State.ERROR, fault=fault))

    def pending(self, pending: tuple[tuple[str, str], ...]) -> None:
        """Set the software that is installed but does not run yet: (fact, version)."""
        self.change(lambda status: replace(status, pending=pending))

    def advance(self, run: Run, queue: Sequence[Case], *, again: bool) -> None:
        """Set that a run has ended, with these cases left; `again`: its case is queued again."""
        upcoming = tuple(queue[:UPCOMING])

        def change(status: WorkerStatus) -> WorkerStatus:
            cycle = status.cycle
            if cycle is not None:
                cycle = _advanced(cycle, run, left=len(queue), again=again)
            fault = run.reason if run.outcome is Outcome.FAILED else ""
            return replace(
                status,
                cycle=cycle,
                progressed=run.finished,
                fault=fault,
                case=None,
                phase=None,
                state=State.IDLE,
                since=run.finished,
                upcoming=upcoming,
                hold=None,
            )

        self.change(change)

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """See `runner.RunObserver`."""
        now = self._now()

        def change(status: WorkerStatus) -> WorkerStatus:
            return replace(
                status,
                state=STATE_OF_PHASE[phase],
                case=case,
                phase=phase,
                phase_seconds=seconds,
                since=now,
                progressed=now,
            )

        self.change(change)

    def finished(self, run: Run) -> None:
        """Do nothing: the worker calls `advance` itself when the run is stored."""


def _advanced(cycle: CycleStatus, run: Run, *, left: int, again: bool) -> CycleStatus:
    done = cycle.done + 1
    # From the second run on, the runs so far are a better estimate than the plan.
    each = (run.finished - cycle.started) / done
    return replace(
        cycle,
        planned=cycle.planned + again,
        done=done,
        failed=cycle.failed + (not run.outcome.good),
        expected_end=run.finished + each * left if done > 1 else cycle.expected_end,
    )
