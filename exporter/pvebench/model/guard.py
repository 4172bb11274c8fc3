"""When a case must not run now, and why: manners as values and a Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pvebench.model.workload import Case


class HoldKind(StrEnum):
    """What holds a case, in few words for labels."""

    PAUSED = "paused"
    QUIET = "quiet_hours"
    BUSY = "busy"
    LOAD = "load"
    TURN = "turn"
    BUDGET = "budget"
    SPACE = "space"
    AWAY = "away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why a case must not run now.

    Attributes:
        seconds: when to ask again.
        skip: to wait is of no use: the case is recorded as skipped and comes back later.
    """

    kind: HoldKind
    reason: str
    seconds: float = 5.0
    skip: bool = False


class Guard(Protocol):
    """Looks after one thing that measuring must not disturb, or must not be disturbed by.

    Owned by one worker thread. Must not raise DriverError: what cannot be known holds nothing.
    """

    def enter(self, case: Case) -> Hold | None:
        """Return why `case` must wait; None: it may run, and `leave` is called after it."""

    def leave(self, case: Case) -> str:
        """Return what disturbed the run that has ended; empty: nothing that is known."""
