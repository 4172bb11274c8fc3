"""Results database: opening, writing, removal of expired results; `stored_results` reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Select, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.errors import StoreMixed
from pvebench.model.durability import Durability
from pvebench.model.units import DAY
from pvebench.store.backups import Backup, back_up
from pvebench.store.engine import (
    check_there,
    damaged,
    faults,
    open_engine,
    put_rows,
    reading,
    writing,
)
from pvebench.store.records import StoredRun
from pvebench.store.stored_results import DURABILITY, StoredResults
from pvebench.store.tables import (
    case_outcomes,
    case_sums,
    cases,
    cycles,
    evidence,
    facts,
    fleet_log,
    fleet_position,
    journal,
    runs,
    samples,
)
from pvebench.store.writing import RunWriter, renew_good_run

SIMULATED: Final = "simulated"
MEASURED: Final = "measured"
IMPORTED: Final = "imported"
_USES: Final = {
    SIMULATED: "use --driver simulated",
    MEASURED: "use a driver that measures",
    IMPORTED: "only import and read there",
}
"""Kind of results in a database -> its use."""
_OF_CASE: Final = ((cases, "key"), (case_outcomes, "case_key"), (case_sums, "case_key"))


class Store(StoredResults, RunWriter):
    """Results database. Safe to use from several threads.

    Args:
        path: the database file.
        simulated: kind of results that it may hold, set by the first opening. None accepts both
            kinds, for reading.

    Attributes:
        faults: part of this process -> why it fails; also of `outbox`.

    Raises:
        StoreTooNew, StoreError, StoreMixed.
    """

    def __init__(self, path: Path, *, simulated: bool | None = None) -> None:
        self.path = path
        super().__init__(open_engine(path))
        self.faults: dict[str, str] = {}
        if simulated is not None:
            self._claim(SIMULATED if simulated else MEASURED)

    @property
    def simulated(self) -> bool:
        """Whether its results come from the simulation."""
        with reading(self._engine) as connection:
            kind = connection.scalar(select(facts.c.value).where(facts.c.name == "kind"))
        return kind == SIMULATED

    @property
    def engine(self) -> Engine:
        """The database, for packages that keep more in it; see `engine.reading`, `writing`."""
        return self._engine

    @property
    def in_fleet(self) -> bool:
        """Whether a hub gets the results."""
        with reading(self._engine) as connection:
            return unacknowledged(connection) is not None

    def check(self, *, full: bool = False) -> None:
        """Check that the database exists and is sound.

        Args:
            full: check the indexes too, which takes several times as long.

        Raises:
            StoreLost: it is absent or damaged. StoreError: it cannot be read now.
        """
        check_there(self._engine)
        if messages := faults(self._engine, full=full):
            raise damaged(self._engine, "; ".join(messages))

    def check_there(self) -> None:
        """Raise StoreLost if the database's file was removed or replaced."""
        check_there(self._engine)

    def back_up(self, now: datetime, *, keep: int, max_bytes: int) -> Backup:
        """Back up the database; see `backups.back_up`. Raises StoreError."""
        return back_up(self.path, now, keep=keep, max_bytes=max_bytes)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _claim(self, kind: str) -> None:
        try:
            with writing(self._engine) as connection:
                self.claim(connection, kind)
        except BaseException:
            self.close()
            raise

    def claim(self, connection: Connection, kind: str) -> None:
        """Set the kind of results at the first time. Raises StoreMixed: it has another kind."""
        row = upsert(facts).values(name="kind", value=kind).on_conflict_do_nothing()
        connection.execute(row)
        stored = str(connection.scalar(select(facts.c.value).where(facts.c.name == "kind")))
        if stored != kind:
            other = "" if kind == IMPORTED else f", or {_USES[stored]}"
            raise StoreMixed(
                f"{self.path} has {stored} results and accepts no {kind} ones",
                next_step=f"use another state directory with --state{other}",
            )

    def begin_cycle(self, uid: str, *, node: str, pack: str, tier: str, planned: int) -> None:
        """Record the start of a cycle."""
        row = insert(cycles).values(
            uid=uid,
            node=node,
            pack=pack,
            tier=tier,
            planned=planned,
            started=datetime.now(UTC).timestamp(),
        )
        with writing(self._engine) as connection:
            connection.execute(row)

    def record_durability(self, result: Durability) -> None:
        """Store a measured durability instead of an earlier one. Raises StoreError."""
        name = f"{DURABILITY}{result.node}/{result.storage}/{result.configuration}"
        with writing(self._engine) as connection:
            put_rows(connection, facts, ["name"], [{"name": name, "value": result.to_json()}])

    def end_cycle(self, uid: str) -> tuple[str, str] | None:
        """Record the end of a complete cycle; return its node and tier, None: it had ended."""
        running = update(cycles).where(cycles.c.uid == uid, cycles.c.finished.is_(None))
        ended = running.values(finished=datetime.now(UTC).timestamp())
        with writing(self._engine) as connection:
            row = connection.execute(ended.returning(cycles.c.node, cycles.c.tier)).first()
        return None if row is None else (row.node, row.tier)

    def delete(self, run: StoredRun) -> None:
        """Delete a run with its numbers and output; its case gets the state it had without it.

        Counters stay, as they never decrease, and so does the environment's period.
        """
        with writing(self._engine) as connection:
            for table, column in ((evidence, "run"), (samples, "run"), (runs, "id")):
                connection.execute(delete(table).where(table.c[column] == run.number))
            of_case = runs.c.case_key == run.case_key
            query = select(runs.c.id, runs.c.finished).where(of_case).order_by(runs.c.id.desc())
            last = connection.execute(query.limit(1)).first()
            if last is None:
                for table, column in _OF_CASE:
                    connection.execute(delete(table).where(table.c[column] == run.case_key))
                return
            row = update(cases).where(cases.c.key == run.case_key)
            connection.execute(row.values(last_run=last.id, last_finished=last.finished))
            first = select(func.min(runs.c.started)).where(of_case).scalar_subquery()
            was_first = cases.c.first_started == run.started.timestamp()
            connection.execute(row.where(was_first).values(first_started=first))
            renew_good_run(connection, run.case_key)

    def removable(self, now: datetime, *, evidence_seconds: float, runs_seconds: float) -> Removal:
        """Return the removal that `prune` would make now."""
        with reading(self._engine) as connection:
            return Expired(connection, now, evidence_seconds, runs_seconds).removal()

    def prune(
        self,
        now: datetime,
        *,
        evidence_seconds: float,
        runs_seconds: float,
        certain: bool = False,
        keep_unsent: bool = True,
    ) -> tuple[Removal, bool]:
        """Remove older evidence and runs; return the removal, and whether it was made.

        Args:
            certain: remove them even if they are more at once than aging can explain.
            keep_unsent: keep runs that the hub of the fleet has not acknowledged.
        """
        with writing(self._engine) as connection:
            expired = Expired(
                connection, now, evidence_seconds, runs_seconds, keep_unsent=keep_unsent
            )
            removal = expired.removal()
            if removal.suspect and not certain:
                return removal, False
            expired.remove(now)
        return removal, True


# --- Removal of expired runs and evidence, so that the size of the database stays bounded.

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
