"""Results database: opening and writing; `stored_results` reads, `retention` expires results."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.errors import StoreMixed
from pvebench.model.durability import Durability
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
from pvebench.store.retention import Expired, Removal, unacknowledged
from pvebench.store.stored_results import DURABILITY, StoredResults
from pvebench.store.tables import (
    case_outcomes,
    case_sums,
    cases,
    cycles,
    evidence,
    facts,
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
