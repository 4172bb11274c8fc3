"""Retention: which runs and evidence expire, so that the size of the database stays bounded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Select, delete, func, select

from pvebench.model.units import DAY
from pvebench.store.tables import cases, evidence, fleet_log, fleet_position, journal, runs, samples

JOURNAL_SECONDS: Final = 30 * DAY
"""How long an undone change stays in the journal, for diagnosis."""
MIN_NEWER_RUNS: Final = 20
"""Runs that must be newer than the moment that ages are counted from: a clock that is wrong for an
hour must not make a history expire."""
SHARE: Final = 0.2
"""Largest part of the history that is removed at once: more is not aging, but a mistake."""
AGING_SECONDS: Final = 2 * DAY
"""Whatever expired within this time is aging, however large a part: with a history of three days,
each day is a third of it."""
FEW: Final = 100
"""Runs that are removed whatever their share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Numbers of runs that are, or would be, removed.

    Attributes:
        before: moment that ages are counted from, UNIX seconds; None: there are too few runs.
        runs, of_runs: expired runs, and all runs.
        stripped, of_evidence: runs with expired evidence, and all runs with evidence.
        overdue, overdue_evidence: those of `runs` and `stripped` that expired over AGING_SECONDS
            ago.
        unsent: expired runs that stay, because the hub of the fleet has not acknowledged them.
    """

    before: float | None
    runs: int
    of_runs: int
    stripped: int
    of_evidence: int
    overdue: int
    overdue_evidence: int
    unsent: int = 0

    @property
    def suspect(self) -> bool:
        """Whether more expired at once than aging can explain."""
        return _is_excessive(self.overdue, self.of_runs) or _is_excessive(
            self.overdue_evidence, self.of_evidence
        )


def _is_excessive(part: int, whole: int) -> bool:
    return part > FEW and part > SHARE * whole


class Expired:
    """Expired runs and evidence.

    Each case keeps its newest run and its newest good one, with their evidence, whatever their age:
    its current state derives from them.

    Ages are counted from `now`, but from no later than the newest runs: a clock that is ahead
    expires nothing, and after a pause of a year the old results still exist.
    """

    def __init__(
        self,
        connection: Connection,
        now: datetime,
        evidence_seconds: float,
        runs_seconds: float,
        *,
        keep_unsent: bool = True,
    ) -> None:
        self._connection = connection
        newest = select(runs.c.finished).order_by(runs.c.finished.desc())
        witness = connection.scalar(newest.offset(MIN_NEWER_RUNS - 1).limit(1))
        self.before = None if witness is None else min(now.timestamp(), float(witness))
        at = self.before or 0.0
        kept = select(cases.c.last_run).union(
            select(cases.c.good_run).where(cases.c.good_run.is_not(None)),
            # Keep the highest number too: another run must not get it.
            select(func.max(runs.c.id)),
        )
        candidates = select(runs.c.id).where(runs.c.id.not_in(kept))
        expired = candidates.where(runs.c.finished < at - runs_seconds)
        unsent = unacknowledged(connection) if keep_unsent else None
        self._runs = expired if unsent is None else expired.where(runs.c.uid.not_in(unsent))
        self._unsent = None if unsent is None else expired.where(runs.c.uid.in_(unsent))
        self._evidence = candidates.where(runs.c.finished < at - evidence_seconds)
        self._overdue_runs = self._runs.where(runs.c.finished < at - runs_seconds - AGING_SECONDS)
        self._overdue_evidence = candidates.where(
            runs.c.finished < at - evidence_seconds - AGING_SECONDS
        )

    def removal(self) -> Removal:
        """Return their numbers."""
        with_evidence = select(func.count(evidence.c.run.distinct()))
        return Removal(
            before=self.before,
            runs=self._count(_count_of(self._runs)),
            of_runs=self._count(select(func.count()).select_from(runs)),
            stripped=self._count(with_evidence.where(evidence.c.run.in_(self._evidence))),
            of_evidence=self._count(with_evidence),
            overdue=self._count(_count_of(self._overdue_runs)),
            overdue_evidence=self._count(
                with_evidence.where(evidence.c.run.in_(self._overdue_evidence))
            ),
            unsent=0 if self._unsent is None else self._count(_count_of(self._unsent)),
        )

    def _count(self, query: Select[Any]) -> int:
        return int(self._connection.scalar(query) or 0)

    def remove(self, now: datetime) -> None:
        """Remove them, and old undone changes in the journal."""
        execute = self._connection.execute
        execute(delete(evidence).where(evidence.c.run.in_(self._evidence)))
        execute(delete(samples).where(samples.c.run.in_(self._runs)))
        execute(delete(runs).where(runs.c.id.in_(self._runs)))
        execute(delete(journal).where(journal.c.closed < now.timestamp() - JOURNAL_SECONDS))


def _count_of(query: Select[Any]) -> Select[Any]:
    return select(func.count()).select_from(query.subquery())


def unacknowledged(connection: Connection) -> Any:
    """Return a query of the uids of runs that the hub has not acknowledged; None: no fleet."""
    acknowledged = connection.scalar(select(fleet_position.c.seq))
    if acknowledged is None:
        return None
    waiting = (fleet_log.c.seq > acknowledged) & (fleet_log.c.kind == "run")
    return select(fleet_log.c.key).where(waiting)
