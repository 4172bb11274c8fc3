"""Who wants to know what the runner does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case


class Observer(Protocol):
    """Told about every step, in the worker's thread; must be quick and must not raise."""

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """`case` enters `phase`, which is expected to take `seconds` (0: unknown)."""

    def finished(self, run: Run) -> None:
        """A run has ended and is stored."""


class Observers:
    """Several observers as one."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self._members = tuple(members)

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """Tell all."""
        for member in self._members:
            member.phase(case, phase, seconds)

    def finished(self, run: Run) -> None:
        """Tell all."""
        for member in self._members:
            member.finished(run)
