"""The undo book in the database: an intended change is durable here before it is made."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from sqlalchemy import Engine, insert, select, update

from pvebench.store.tables import journal


class StoredJournal:
    """`model.ports.Journal` on the results database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        """Record an intended change; durable on return."""
        row = insert(journal).values(
            opened=time.time(), kind=kind, details=json.dumps(dict(details), sort_keys=True)
        )
        with self._engine.begin() as connection:
            return int(connection.execute(row.returning(journal.c.id)).scalar_one())

    def close(self, number: int) -> None:
        """Strike out a change that has been undone."""
        with self._engine.begin() as connection:
            connection.execute(
                update(journal).where(journal.c.id == number).values(closed=time.time())
            )

    def pending(self) -> list[tuple[int, str, Mapping[str, str]]]:
        """Return the open changes, newest first: undo goes backwards."""
        query = (
            select(journal.c.id, journal.c.kind, journal.c.details)
            .where(journal.c.closed.is_(None))
            .order_by(journal.c.id.desc())
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [(int(row.id), str(row.kind), json.loads(row.details)) for row in rows]
