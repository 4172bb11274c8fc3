"""The results database: opening it and writing to it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.errors import StoreMixed
from pvebench.model.run import Run
from pvebench.store.changes import Changes
from pvebench.store.copies import Backup, back_up
from pvebench.store.decisions import Decisions
from pvebench.store.engine import check_there, damaged, faults, open_engine, reading, writing
from pvebench.store.journal import StoredJournal
from pvebench.store.mending import Mending
from pvebench.store.numbers import Numbers
from pvebench.store.outbox import Outbox
from pvebench.store.reading import StoredResults
from pvebench.store.retention import Removal, prune, removable
from pvebench.store.storage_identities import StorageIdentities
from pvebench.store.tables import cycles, facts
from pvebench.store.writing import add_history, add_run


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
        self.decisions = Decisions(self._engine)
        self.changes = Changes(self._engine)
        self.identities = StorageIdentities(self._engine)
        self.outbox = Outbox(self._engine)
        self.mending = Mending(self._engine)
        self.numbers = Numbers(self._engine)
        if simulated is not None:
            self._claim("simulated" if simulated else "measured")

    @property
    def simulated(self) -> bool:
        """Whether the results in it are invented by the simulation."""
        with reading(self._engine) as connection:
            kind = connection.scalar(select(facts.c.value).where(facts.c.name == "kind"))
        return kind == "simulated"

    def check(self, *, full: bool = False) -> None:
        """Look whether the database is there and sound.

        Args:
            full: look at the indexes too, which takes several times as long.

        Raises:
            StoreLost: it is not. StoreError: it cannot be read now.
        """
        check_there(self._engine)
        if found := faults(self._engine, full=full):
            raise damaged(self._engine, "; ".join(found))

    def check_there(self) -> None:
        """Raise StoreLost if the database's file was removed or replaced."""
        check_there(self._engine)

    def back_up(self, now: datetime, *, keep: int, room_bytes: int) -> Backup:
        """Copy the database beside itself; see `copies.back_up`. Raises StoreError."""
        return back_up(self.path, now, keep=keep, room_bytes=room_bytes)

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
            other = "--driver simulated" if held == "simulated" else "a driver that measures"
            raise StoreMixed(
                f"{self.path} holds {held} results; {kind} ones must not be mixed with them",
                next_step=f"use another state directory (--state), or {other} with this one",
            )

    def begin_cycle(self, uid: str, *, node: str, pack: str, tier: str, planned: int) -> None:
        """Record that a cycle starts."""
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
        return add_run(self._engine, run)

    def add_history(self, history: Iterable[Run]) -> int:
        """Store many new runs in one transaction; return their number."""
        return add_history(self._engine, history)

    def removable(self, now: datetime, *, evidence_seconds: float, runs_seconds: float) -> Removal:
        """Return what `prune` would remove now."""
        return removable(
            self._engine, now=now, evidence_seconds=evidence_seconds, runs_seconds=runs_seconds
        )

    def prune(
        self, now: datetime, *, evidence_seconds: float, runs_seconds: float, certain: bool = False
    ) -> tuple[Removal, bool]:
        """Remove what is older; return what that is, and whether it was removed.

        Args:
            certain: remove it even if it is more at once than ageing can explain.
        """
        return prune(
            self._engine,
            now=now,
            evidence_seconds=evidence_seconds,
            runs_seconds=runs_seconds,
            certain=certain,
        )
