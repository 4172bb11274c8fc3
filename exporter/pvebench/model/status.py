"""Status of a worker, as a value that any thread may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from pvebench.model.ports import Hold
from pvebench.model.workload import Case


class Phase(StrEnum):
    """Step of a run."""

    BOOT = "boot"
    ATTACH = "attach"
    FILL = "fill"
    SETTLE = "settle"
    RAMP = "ramp"
    MEASURE = "measure"
    COLLECT = "collect"


class State(StrEnum):
    """State of the scheduler, with the names of `pvebench_scheduler_state`."""

    IDLE = "idle"
    RECONFIGURING = "reconfiguring"
    WARMUP = "warmup"
    RUNNING = "running"
    COLLECTING = "collecting"
    PAUSED = "paused"
    ERROR = "error"


STATE_OF_PHASE = {
    Phase.BOOT: State.RECONFIGURING,
    Phase.ATTACH: State.RECONFIGURING,
    Phase.FILL: State.RECONFIGURING,
    Phase.SETTLE: State.WARMUP,
    Phase.RAMP: State.WARMUP,
    Phase.MEASURE: State.RUNNING,
    Phase.COLLECT: State.COLLECTING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleStatus:
    """Cycle of a pack.

    Attributes:
        number: counts from 1 since this process started.
        planned, done, failed: cases.
        expected_end: estimated from the plan, later from the runs so far.
        repeats: runs of each case.
    """

    uid: str
    number: int
    pack: str
    tier: str
    planned: int
    done: int
    failed: int
    started: datetime
    expected_end: datetime
    repeats: int = 1

    @property
    def running(self) -> bool:
        """Whether it has cases left."""
        return self.done < self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """Current status of a worker.

    Attributes:
        since: begin of this phase.
        phase_seconds: expected duration of the phase; 0: unknown.
        next_due: due time of the next case, when idle.
        progressed: end of the last step.
        fault: the last error, until it is resolved.
        upcoming: the next cases of this cycle, without the current one; idle: the next one due.
        hold: reason for which the next case waits.
        due: case key -> due time, as of the last choice of a cycle; past: as soon as possible.
        cycles_left: further cycles of each pack; None: endless.
        pending: fact -> version that is installed on the node, but does not run yet.
    """

    node: str
    state: State
    since: datetime
    progressed: datetime
    case: Case | None = None
    phase: Phase | None = None
    phase_seconds: float = 0.0
    cycle: CycleStatus | None = None
    next_due: datetime | None = None
    fault: str = ""
    upcoming: tuple[Case, ...] = ()
    hold: Hold | None = None
    pending: tuple[tuple[str, str], ...] = ()
    due: Mapping[str, datetime] = field(default_factory=dict)
    cycles_left: int | None = None

    def cycle_end(self, now: datetime) -> datetime | None:
        """Return the expected end of the running cycle; None: none runs, or it is late."""
        cycle = self.cycle
        known = cycle is not None and cycle.running and cycle.expected_end > now
        return cycle.expected_end if cycle is not None and known else None

    def expected(
        self, key: str, more: int, *, every: timedelta, last: datetime | None, now: datetime
    ) -> datetime | None:
        """Return when a case will have so many further runs: the one estimate for all outputs.

        None: unknown, or not before this process ends. Never a time in the past. `every` is its
        interval, `last` the end of its latest run.
        """
        cycle, end = self.cycle, self.cycle_end(now)
        if self.hold is not None or self.state is State.ERROR or key not in self.due:
            return None
        if cycle is None:
            return max(now, self.due[key]) + (more - 1) * every
        if cycle.running and end is None:
            return None
        pace, rounds = cycle.expected_end - cycle.started, -(-more // cycle.repeats)
        # The due times are as old as the cycle, unless the worker waits for the next one.
        ran = self.next_due is None and last is not None and last >= cycle.started
        if self.cycles_left is not None:
            return self._within_cycles(end, rounds if ran else rounds - 1, pace)
        due = last + every if ran and last is not None else self.due[key]
        return max(now, end or now, due) + (rounds - 1) * max(every, pace)

    def _within_cycles(self, end: datetime | None, later: int, pace: timedelta) -> datetime | None:
        """Return the end of a later cycle, if the process has so many left."""
        if end is None or self.cycles_left is None or later > self.cycles_left:
            return None
        return end + later * pace

    def expected_starts(self, now: datetime) -> list[datetime]:
        """Return the expected start of each upcoming case, counted back from the cycle's end.

        Cases of a cycle take about the same time, so each gets an equal share of it.
        """
        if self.next_due is not None or self.cycle is None:
            return [self.next_due or now] * len(self.upcoming)
        cycle = self.cycle
        each = (cycle.expected_end - cycle.started) / max(1, cycle.planned)
        left = cycle.planned - cycle.done - (self.case is not None)
        counted = (cycle.expected_end - each * (left - i) for i in range(len(self.upcoming)))
        return [max(now, start) for start in counted]


Statuses = Callable[[], list[WorkerStatus]]
"""Returns the status of each worker."""
