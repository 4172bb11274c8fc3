"""What verdicts need of stored results: `LiveResults` of a site, or the source of a hub."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from pvebench.analysis.concurrent_changes import RunValues
from pvebench.store.changes import Decision, KnownChange
from pvebench.store.live_results import Listener, View
from pvebench.store.records import CaseNumbers


class Decisions(Protocol):
    """Decisions of users about baselines."""

    def all(self) -> Sequence[Decision]:
        """Return all decisions, oldest first."""

    def count(self) -> int:
        """Return their number, which grows with every decision."""


class KnownChanges(Protocol):
    """Known changes, to recognize them at the next update."""

    def all(self) -> Sequence[KnownChange]:
        """Return all known changes, oldest first."""

    def keep(self, known: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Store changes; delete those to forget."""


class StoredRuns(Protocol):
    """Stored runs and decisions."""

    @property
    def decisions(self) -> Decisions:
        """Decisions about baselines."""

    def numbers_by_case(self, *, until: int) -> Iterable[CaseNumbers]:
        """Yield the good runs of each case up to run `until`, oldest first."""

    def oldest_good_runs(self) -> Mapping[str, float]:
        """Return case key -> end of its oldest good run, UNIX seconds."""

    def undirected(
        self, case_key: str, metrics: Collection[str], *, at: float, until: float, most: int
    ) -> tuple[Sequence[RunValues], Sequence[RunValues]]:
        """Return numbers without a direction of the newest good runs before and after `at`."""


class Source(Protocol):
    """Current state of all cases, and the runs behind it."""

    @property
    def now(self) -> View:
        """The current state."""

    @property
    def store(self) -> StoredRuns:
        """The stored runs."""

    def listen(self, listener: Listener) -> None:
        """Call a function with every run that is stored from now on."""
