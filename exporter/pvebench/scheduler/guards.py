"""Guards without external input: pause, quiet hours, turns, write budgets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pvebench.errors import Interrupted
from pvebench.model.ports import Clock, Guard, Hold, HoldKind
from pvebench.model.units import show_bytes
from pvebench.model.week import QuietHours
from pvebench.model.workload import Case

# --- all guards of a worker


class GuardChain:
    """List of guards that a case passes all or none of. Owned by one worker thread."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = tuple(guards)

    def enter(self, case: Case) -> Hold | None:
        """Return the first guard's hold, without asking the later guards; None: no hold."""
        passed: list[Guard] = []
        for guard in self._guards:
            hold = guard.enter(case)
            if hold is not None:
                for earlier in reversed(passed):
                    earlier.leave(case)
                return hold
            passed.append(guard)
        return None

    def leave(self, case: Case) -> str:
        """Notify all guards that the run has ended; return its disturbances, or an empty string.

        A stop during this is handled at the next wait: the finished run comes first.
        """
        disturbances = []
        for guard in reversed(self._guards):
            with contextlib.suppress(Interrupted):
                disturbances.append(guard.leave(case))
        return "; ".join(text for text in disturbances if text)


_PAUSE_SECONDS: Final = 2.0
_LONGEST_QUIET_SECONDS: Final = 60.0
_TURN_SECONDS: Final = 0.5
_FORGOTTEN_SECONDS: Final = 10.0
"""Time after which a node that no longer asks for its turn is removed from the queue."""


@dataclass(frozen=True, slots=True)
class PauseGuard(Guard):
    """Guard that holds every case during a pause.

    Attributes:
        reason: returns the reason of the pause; empty: no pause.
    """

    reason: Callable[[], str]

    def enter(self, case: Case) -> Hold | None:
        reason = self.reason()
        if not reason:
            return None
        return Hold(kind=HoldKind.PAUSED, reason=reason, seconds=_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class QuietGuard(Guard):
    """Guard that holds every case in quiet hours; a run that has started is completed."""

    hours: QuietHours
    clock: Clock

    def enter(self, case: Case) -> Hold | None:
        now = self.clock.now()
        end = self.hours.end_after(now)
        if end is None:
            return None
        wait = min(_LONGEST_QUIET_SECONDS, (end - now).total_seconds())
        reason = f"quiet hours until {end:%H:%M %Z}"
        return Hold(kind=HoldKind.QUIET, reason=reason, seconds=wait)


@dataclass(slots=True)
class Turns:
    """First-come queue of each shared storage's users. For all workers' threads."""

    now: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _holders: dict[str, str] = field(default_factory=dict)
    _queues: dict[str, dict[str, float]] = field(default_factory=dict)
    """Storage -> waiting nodes in order, with the time of their last request."""

    def take(self, storage: str, node: str) -> str:
        """Take the storage; return the node that has it or is first; empty: it was taken."""
        with self._lock:
            queue, now = self._queues.setdefault(storage, {}), self.now()
            queue[node] = now
            for other in [o for o, at in queue.items() if now - at > _FORGOTTEN_SECONDS]:
                del queue[other]
            first = self._holders.get(storage) or next(iter(queue))
            if first != node:
                return first
            del queue[node]
            self._holders[storage] = node
            return ""

    def give_back(self, storage: str, node: str) -> None:
        """Release the storage for the next node."""
        with self._lock:
            if self._holders.get(storage) == node:
                del self._holders[storage]


@dataclass(frozen=True, slots=True)
class TurnGuard(Guard):
    """Guard that lets one node at a time measure on a shared storage.

    Attributes:
        shared: names of the shared storages.
    """

    turns: Turns
    shared: frozenset[str]

    def enter(self, case: Case) -> Hold | None:
        storage, node = case.scenario.storage, case.scenario.node
        if storage not in self.shared:
            return None
        other = self.turns.take(storage, node)
        if not other:
            return None
        reason = f"node {other} is using shared storage {storage}"
        return Hold(kind=HoldKind.TURN, reason=reason, seconds=_TURN_SECONDS)

    def leave(self, case: Case) -> str:
        """Release the storage for the next node."""
        self.turns.give_back(case.scenario.storage, case.scenario.node)
        return ""


@dataclass(frozen=True, slots=True)
class BudgetGuard(Guard):
    """Guard that skips the cases that write to a storage whose write budget is used up.

    The last run may exceed the budget. Reserving its maximum instead would never let a case run
    whose maximum is above the budget, although it may write far less.

    Attributes:
        limits: storage -> bytes per 24 hours.
        written: storage -> bytes written in the last 24 hours.
        copies: `StorageFunctions.copies`.
    """

    limits: Mapping[str, int]
    written: Callable[[str], int]
    copies: Callable[[Case], Mapping[str, int]] = lambda _: {}

    def enter(self, case: Case) -> Hold | None:
        used = (self._used_up(name) for name in (case.scenario.storage, *self.copies(case)))
        return next(filter(None, used), None)

    def _used_up(self, storage: str) -> Hold | None:
        limit = self.limits.get(storage)
        if limit is None or (written := self.written(storage)) < limit:
            return None
        reason = (
            f"write budget of {storage} used up: {show_bytes(written)} of {show_bytes(limit)} "
            "written in 24 hours"
        )
        return Hold(kind=HoldKind.BUDGET, reason=reason, skip=True)
