"""Journal in the database: records every intended change, durably, before it is made."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import structlog
from sqlalchemy import Engine, insert, select, update

from pvebench.errors import StoreError
from pvebench.store.engine import reading, writing
from pvebench.store.tables import journal

log = structlog.get_logger()


class StoredJournal:
    """`model.ports.Journal` on the results database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open(self, kind: str, details: Mapping[str, str]) -> int:
        """Record an intended change; durable on return."""
        row = insert(journal).values(
            opened=time.time(), kind=kind, details=json.dumps(dict(details), sort_keys=True)
        )
        with writing(self._engine) as connection:
            return int(connection.execute(row.returning(journal.c.id)).scalar_one())

    def close(self, number: int) -> None:
        """Mark a change as undone.

        If that cannot be written, the entry stays open and the next start checks it again, which is
        harmless; stopping the VM and removing the volumes must continue.
        """
        closed = update(journal).where(journal.c.id == number).values(closed=time.time())
        try:
            with writing(self._engine) as connection:
                connection.execute(closed)
        except StoreError as error:
            log.warning("closing journal entry failed", reason=str(error))

    def pending(self) -> list[tuple[int, str, Mapping[str, str]]]:
        """Return the open changes, newest first: they are undone in reverse order."""
        query = (
            select(journal.c.id, journal.c.kind, journal.c.details)
            .where(journal.c.closed.is_(None))
            .order_by(journal.c.id.desc())
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            return [(int(row.id), str(row.kind), _details(row.details)) for row in rows]


def _details(text: str) -> Mapping[str, str]:
    """Return an entry's details; of a damaged entry what is left, which its cleanup rejects."""
    try:
        details = json.loads(text)
    except ValueError:
        return {}
    pairs = details.items() if isinstance(details, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}
