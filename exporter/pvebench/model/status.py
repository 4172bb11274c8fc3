"""What a worker is doing right now, as a value that any thread may read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
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
    """What the scheduler does, in the words of `pvebench_scheduler_state`."""

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
    """One pass through a pack.

    Attributes:
        number: counts from 1 since this process started.
        planned, done, failed: cases.
        expected_end: estimated from the plan, later from the runs so far.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker's present.

    Attributes:
        since: when this phase began.
        phase_seconds: how long it is expected to take; 0 where that is unknown.
        next_due: when idle, when the next case is due.
        progressed: when the last step ended.
        fault: what went wrong last, if it stands.
        upcoming: the next few cases of this cycle, the present one not among them.
        hold: what the next case waits for.
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


Statuses = Callable[[], list[WorkerStatus]]
"""Tells what each worker does now."""
