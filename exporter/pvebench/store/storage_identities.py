"""Identities of the storages by name, oldest first. The last one is the current one."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import Engine, insert, select

from pvebench.model.volume import Identity, is_same, token
from pvebench.store.engine import reading, writing
from pvebench.store.tables import storage_identities as table


class StorageIdentities:
    """`model.volume.IdentityRecords` in the database. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def recorded(self, node: str, storage: str) -> Identity | None:
        """Return the expected identity of a storage; None: nothing is recorded."""
        return next(reversed(self._all(node, storage)), None)

    def record(self, node: str, storage: str, identity: Identity) -> None:
        """Store the identity of a storage from now on. Raises StoreError.

        An earlier identity that returns continues its own history.
        """
        history = self._all(node, storage)
        known = next((earlier for earlier in history if is_same(earlier, identity)), identity)
        row = {"node": node, "storage": storage, "facts": json.dumps(dict(known))}
        with writing(self._engine) as connection:
            connection.execute(insert(table).values(**row, since=datetime.now(UTC).timestamp()))

    def tokens(self, node: str) -> dict[str, str]:
        """Return storage -> token, for storages whose identity is no longer the first one."""
        with reading(self._engine) as connection:
            query = select(table.c.storage).where(table.c.node == node).distinct()
            names = connection.scalars(query).all()
        histories = {name: self._all(node, name) for name in names}
        return {
            name: token(identities[-1])
            for name, identities in histories.items()
            if identities[-1] != identities[0]
        }

    def _all(self, node: str, storage: str) -> list[Identity]:
        query = select(table.c.facts).where(table.c.node == node, table.c.storage == storage)
        with reading(self._engine) as connection:
            return [json.loads(text) for text in connection.scalars(query.order_by(table.c.id))]
