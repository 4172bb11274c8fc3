"""What drivers record in the database: the undo journal, and the identities of storages."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import Engine, insert, select, update

from pvebench.errors import StoreError
from pvebench.log import log
from pvebench.model.volume import Identity, device_text, is_same, token
from pvebench.store.engine import reading, writing
from pvebench.store.tables import journal
from pvebench.store.tables import storage_identities as table


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

    def pending(self, *kinds: str) -> list[tuple[int, str, Mapping[str, str]]]:
        """Return the open changes, newest first: they are undone in reverse order."""
        query = (
            select(journal.c.id, journal.c.kind, journal.c.details)
            .where(journal.c.closed.is_(None), *([journal.c.kind.in_(kinds)] if kinds else []))
            .order_by(journal.c.id.desc())
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            return [(int(row.id), str(row.kind), journal_details(row.details)) for row in rows]


def journal_details(text: str) -> Mapping[str, str]:
    """Return an entry's details; of a damaged entry what is left, which its cleanup rejects."""
    try:
        details = json.loads(text)
    except (ValueError, TypeError, RecursionError):  # a row can have any number of brackets
        return {}
    pairs = details.items() if isinstance(details, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


class StorageIdentities:
    """`model.volume.IdentityRecords` in the database. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def recorded(self, node: str, storage: str) -> Identity | None:
        """Return the expected identity of a storage; None: nothing is recorded."""
        return next(reversed(self._histories(node).get(storage, [])), None)

    def record(self, node: str, storage: str, identity: Identity) -> None:
        """Store the identity of a storage from now on. Raises StoreError.

        An earlier identity that returns continues its own history.
        """
        history = self._histories(node).get(storage, [])
        recorded = next((earlier for earlier in history if is_same(earlier, identity)), identity)
        row = {"node": node, "storage": storage, "facts": json.dumps(dict(recorded))}
        with writing(self._engine) as connection:
            connection.execute(insert(table).values(**row, since=datetime.now(UTC).timestamp()))

    def tokens(self, node: str) -> dict[str, str]:
        """Return storage -> token, for storages whose identity is no longer the first one."""
        return {
            name: token(identities[-1])
            for name, identities in self._histories(node).items()
            if identities[-1] != identities[0]
        }

    def devices(self) -> dict[str, str]:
        """Return `node/storage` -> the device that it is on now, in words."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(table).order_by(table.c.id)).all()
        return {f"{row.node}/{row.storage}": device_text(json.loads(row.facts)) for row in rows}

    def _histories(self, node: str) -> dict[str, list[Identity]]:
        """Return storage -> its identities, oldest first."""
        histories: dict[str, list[Identity]] = {}
        query = select(table.c.storage, table.c.facts).where(table.c.node == node)
        with reading(self._engine) as connection:
            for name, text in connection.execute(query.order_by(table.c.id)):
                histories.setdefault(name, []).append(json.loads(text))
        return histories
