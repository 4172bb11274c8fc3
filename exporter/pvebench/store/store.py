"""The results database: opening it and writing to it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.errors import StoreMixed
from pvebench.model.run import Run
from pvebench.store.bulk import add_history
from pvebench.store.decisions import Decisions
from pvebench.store.engine import open_engine, reading, writing
from pvebench.store.history import History
from pvebench.store.journal import StoredJournal
from pvebench.store.numbers import Numbers
from pvebench.store.reading import StoredResults
from pvebench.store.retention import prune
from pvebench.store.rows import run_row, sample_row
from pvebench.store.tables import (
    cycles,
    evidence,
    facts,
    runs,
    samples,
)
from pvebench.store.writing import add_totals, note_environment


class Store(StoredResults):
    """The results database. Safe to use from several threads.

    Args:
        path: the database file.
        simulated: what kind of results it may hold; decided by the first opening. None
            accepts either, for reading.

    Raises:
        StoreTooNew, StoreError, StoreMixed.
    """

    def __init__(self, path: Path, *, simulated: bool | None = None) -> None:
        self.path = path
        super().__init__(open_engine(path))
        self.journal = StoredJournal(self._engine)
        self.history = History(self._engine)
        self.numbers = Numbers(self._engine)
        self.decisions = Decisions(self._engine)
        if simulated is not None:
            self._claim("simulated" if simulated else "measured")

    @property
    def simulated(self) -> bool:
        """Whether the results in it are invented by the simulation."""
        with reading(self._engine) as connection:
            kind = connection.scalar(select(facts.c.value).where(facts.c.name == "kind"))
        return kind == "simulated"

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _claim(self, kind: str) -> None:
        with writing(self._engine) as connection:
            row = upsert(facts).values(name="kind", value=kind).on_conflict_do_nothing()
            connection.execute(row)
            held = connection.scalar(select(facts.c.value).where(facts.c.name == "kind"))
        if held != kind:
            self.close()
            raise StoreMixed(
                f"{self.path} holds {held} results; {kind} ones must not be mixed with them",
                next_step="use another state directory (--state)",
            )

    def begin_cycle(self, uid: str, *, node: str, pack: str, tier: str, planned: int) -> None:
        """Record that a cycle starts."""
        row = insert(cycles).values(
            uid=uid, node=node, pack=pack, tier=tier, planned=planned,
            started=datetime.now(UTC).timestamp(),
        )  # fmt: skip
        with writing(self._engine) as connection:
            connection.execute(row)

    def end_cycle(self, uid: str) -> None:
        """Record that a cycle went through to its end."""
        now = datetime.now(UTC).timestamp()
        with writing(self._engine) as connection:
            connection.execute(update(cycles).where(cycles.c.uid == uid).values(finished=now))

    def add_run(self, run: Run) -> int:
        """Store a finished run with all that belongs to it; durable on return.

        Adding the same run again changes nothing. Returns the run's number.

        Raises:
            StoreError: the database cannot be written now; the same call may work later.
        """
        with writing(self._engine) as connection:
            known = connection.scalar(select(runs.c.id).where(runs.c.uid == run.uid))
            if known is not None:
                return int(known)
            note_environment(connection, run.environment, run.started, run.finished)
            number = _insert_run(connection, run)
            add_totals(connection, run)
        return number

    def add_history(self, history: Iterable[Run]) -> int:
        """Store many new runs in one transaction; return their number."""
        return add_history(self._engine, history)

    def prune(
        self, now: datetime, *, evidence_seconds: float, runs_seconds: float
    ) -> tuple[int, int]:
        """Remove what is older; return how many runs lost their evidence, and were removed."""
        return prune(
            self._engine, now=now, evidence_seconds=evidence_seconds, runs_seconds=runs_seconds
        )


def _insert_run(connection: Connection, run: Run) -> int:
    row = insert(runs).values(**run_row(run))
    number = int(connection.execute(row.returning(runs.c.id)).scalar_one())
    if run.samples:
        connection.execute(insert(samples), [sample_row(number, one) for one in run.samples])
    if run.evidence:
        pieces = [
            {"run": number, "name": name, "content": zlib.compress(text.encode("utf-8"))}
            for name, text in run.evidence.items()
        ]
        connection.execute(insert(evidence), pieces)
    return number
