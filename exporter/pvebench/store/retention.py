"""Letting go of what is too old, so that a database that is never closed stays a size that fits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Engine, Select, delete, func, select

from pvebench.store.engine import reading, writing
from pvebench.store.tables import cases, evidence, journal, runs, samples

JOURNAL_SECONDS: Final = 30 * 86400.0
"""How long a change that was undone stays in the journal, for those who look for a cause."""
WITNESSES: Final = 20
"""So many runs must be newer than the moment that ages are counted from: one clock that is wrong
for an hour must not make a history old."""
SHARE: Final = 0.2
"""A larger part of the history is not removed at once: that is no ageing, but a mistake."""
AGEING_SECONDS: Final = 2 * 86400.0
"""What became too old within this time is ageing, however large a part it is: with a history of
three days, each day is a third of it."""
FEW: Final = 100
"""So many are removed without asking what share they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What is, or would be, removed.

    Attributes:
        before: moment that ages are counted from, UNIX seconds; None: there are too few runs.
        runs, of_runs: runs that are too old, and how many there are.
        stripped, of_evidence: runs whose evidence is too old, and how many have any.
        overdue, overdue_evidence: those of `runs` and `stripped` that were too old days ago.
    """

    before: float | None
    runs: int
    of_runs: int
    stripped: int
    of_evidence: int
    overdue: int
    overdue_evidence: int

    @property
    def suspect(self) -> bool:
        """Whether it is more at once than ageing can explain."""
        return _much(self.overdue, self.of_runs) or _much(self.overdue_evidence, self.of_evidence)


def _much(part: int, whole: int) -> bool:
    return part > FEW and part > SHARE * whole


def removable(
    engine: Engine, *, now: datetime, evidence_seconds: float, runs_seconds: float
) -> Removal:
    """Return what `prune` would remove now."""
    with reading(engine) as connection:
        return _Old(connection, now, evidence_seconds, runs_seconds).removal()


def prune(
    engine: Engine,
    *,
    now: datetime,
    evidence_seconds: float,
    runs_seconds: float,
    certain: bool = False,
) -> tuple[Removal, bool]:
    """Remove raw evidence and runs that are too old; return what they are, and whether it did.

    Each case keeps its newest run and its newest good one, with their evidence, however old:
    they are what is known of it. What is suspect stays, unless somebody is `certain`.
    """
    with writing(engine) as connection:
        old = _Old(connection, now, evidence_seconds, runs_seconds)
        removal = old.removal()
        if removal.suspect and not certain:
            return removal, False
        old.remove(now)
    return removal, True


class _Old:
    """What is too old, as queries.

    Ages are counted from `now`, but from no later than the newest runs: a clock that is ahead
    makes nothing old, and after a pause of a year the old results are still there.
    """

    def __init__(
        self, connection: Connection, now: datetime, evidence_seconds: float, runs_seconds: float
    ) -> None:
        self._connection = connection
        newest = select(runs.c.finished).order_by(runs.c.finished.desc())
        witness = connection.scalar(newest.offset(WITNESSES - 1).limit(1))
        self.before = None if witness is None else min(now.timestamp(), float(witness))
        at = self.before or 0.0
        kept = select(cases.c.last_run).union(
            select(cases.c.good_run).where(cases.c.good_run.is_not(None)),
            # The highest number too: it must not be given to another run.
            select(func.max(runs.c.id)),
        )
        mine = select(runs.c.id).where(runs.c.id.not_in(kept))
        self._gone = mine.where(runs.c.finished < at - runs_seconds)
        self._bare = mine.where(runs.c.finished < at - evidence_seconds)
        self._long_gone = mine.where(runs.c.finished < at - runs_seconds - AGEING_SECONDS)
        self._long_bare = mine.where(runs.c.finished < at - evidence_seconds - AGEING_SECONDS)

    def removal(self) -> Removal:
        holding = select(func.count(evidence.c.run.distinct()))
        return Removal(
            before=self.before,
            runs=self._count(_number(self._gone)),
            of_runs=self._count(select(func.count()).select_from(runs)),
            stripped=self._count(holding.where(evidence.c.run.in_(self._bare))),
            of_evidence=self._count(holding),
            overdue=self._count(_number(self._long_gone)),
            overdue_evidence=self._count(holding.where(evidence.c.run.in_(self._long_bare))),
        )

    def _count(self, query: Select[Any]) -> int:
        return int(self._connection.scalar(query) or 0)

    def remove(self, now: datetime) -> None:
        execute = self._connection.execute
        execute(delete(evidence).where(evidence.c.run.in_(self._bare)))
        execute(delete(samples).where(samples.c.run.in_(self._gone)))
        execute(delete(runs).where(runs.c.id.in_(self._gone)))
        execute(delete(journal).where(journal.c.closed < now.timestamp() - JOURNAL_SECONDS))


def _number(which: Select[Any]) -> Select[Any]:
    return select(func.count()).select_from(which.subquery())
