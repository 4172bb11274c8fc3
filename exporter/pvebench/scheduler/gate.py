"""Asking every guard before a case and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pvebench.errors import Interrupted
from pvebench.model.guard import Guard, Hold
from pvebench.model.workload import Case


class Gate:
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
