"""Guards that need nothing of the outside: pause, quiet hours, turns, write budgets."""

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

# --- Asking every guard before a case and after it.


class GuardChain:
    """Several guards as one: a case passes all of them or none. Owned by one worker thread."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = tuple(guards)

    def enter(self, case: Case) -> Hold | None:
        """Return the first guard's objection, the later ones not being asked; None: go on."""
        passed: list[Guard] = []
        for guard in self._guards:
            hold = guard.enter(case)
            if hold is not None:
                for one in reversed(passed):
                    one.leave(case)
                return hold
            passed.append(guard)
        return None

    def leave(self, case: Case) -> str:
        """Tell all guards that the run has ended; return what disturbed it, or nothing.

        A stop that comes meanwhile is noticed at the next wait: the finished run comes first.
        """
        said = []
        for guard in reversed(self._guards):
            with contextlib.suppress(Interrupted):
                said.append(guard.leave(case))
        return "; ".join(text for text in said if text)


_PAUSE_SECONDS: Final = 2.0
_LONGEST_QUIET_SECONDS: Final = 60.0
_TURN_SECONDS: Final = 0.5
_FORGOTTEN_SECONDS: Final = 10.0
"""Who has not asked for a turn for so long does not wait for it any more."""


@dataclass(frozen=True, slots=True)
class PauseGuard:
    """Holds everything while somebody wants a pause.

    Attributes:
        reason: returns why, empty while there is none.
    """

    reason: Callable[[], str]

    def enter(self, case: Case) -> Hold | None:
        reason = self.reason()
        if not reason:
            return None
        return Hold(kind=HoldKind.PAUSED, reason=reason, seconds=_PAUSE_SECONDS)

    def leave(self, case: Case) -> str:
        """Nothing."""
        return ""


@dataclass(frozen=True, slots=True)
class QuietGuard:
    """Holds everything in quiet hours; a run that has begun is ended."""

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

    def leave(self, case: Case) -> str:
        """Nothing."""
        return ""


@dataclass(slots=True)
class Turns:
    """Who may use which shared storage, first come, first served. For all workers' threads."""

    now: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _holders: dict[str, str] = field(default_factory=dict)
    _queues: dict[str, dict[str, float]] = field(default_factory=dict)
    """storage -> who waits, in order, and when they asked last."""

    def take(self, storage: str, who: str) -> str:
        """Take the storage; return who else has it or is before, empty if it was taken."""
        with self._lock:
            queue, now = self._queues.setdefault(storage, {}), self.now()
            queue[who] = now
            for other in [o for o, at in queue.items() if now - at > _FORGOTTEN_SECONDS]:
                del queue[other]
            first = self._holders.get(storage) or next(iter(queue))
            if first != who:
                return first
            del queue[who]
            self._holders[storage] = who
            return ""

    def give_back(self, storage: str, who: str) -> None:
        """Let the next one have it."""
        with self._lock:
            if self._holders.get(storage) == who:
                del self._holders[storage]


@dataclass(frozen=True, slots=True)
class TurnGuard:
    """Lets one node at a time measure on a shared storage.

    Attributes:
        shared: names of the storages that nodes share.
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
        reason = f"{other} measures on the shared storage {storage}"
        return Hold(kind=HoldKind.TURN, reason=reason, seconds=_TURN_SECONDS)

    def leave(self, case: Case) -> str:
        """Give the turn to the next one."""
        self.turns.give_back(case.scenario.storage, case.scenario.node)
        return ""


@dataclass(frozen=True, slots=True)
class BudgetGuard:
    """Holds a storage's cases when the month's write budget is used up.

    Attributes:
        limits: storage -> bytes a calendar month (UTC).
        written: storage -> bytes written this month.
        expected: the most that a case may write.
    """

    limits: Mapping[str, int]
    written: Callable[[str], int]
    expected: Callable[[Case], int]

    def enter(self, case: Case) -> Hold | None:
        storage = case.scenario.storage
        limit = self.limits.get(storage)
        if limit is None or self.written(storage) + self.expected(case) <= limit:
            return None
        reason = (
            f"the write budget of {storage} does not allow it this month: "
            f"{show_bytes(self.written(storage))} of {show_bytes(limit)} are written"
        )
        return Hold(kind=HoldKind.BUDGET, reason=reason, skip=True)

    def leave(self, case: Case) -> str:
        """Nothing."""
        return ""
