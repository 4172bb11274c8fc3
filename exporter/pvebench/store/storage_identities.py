"""Which storage each name stood for, in the order in which it did. The last is in force."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import Engine, insert, select

from pvebench.model.volume import Identity, is_same, token
from pvebench.store.engine import reading, writing
from pvebench.store.tables import storage_identities as table


class StorageIdentities:
    """`model.storage_identity.IdentityRecords`. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def recorded(self, node: str, storage: str) -> Identity | None:
        """Return what the storage is to be; None: nothing is recorded."""
        return next(reversed(self._all(node, storage)), None)

    def record(self, node: str, storage: str, found: Identity) -> None:
        """Keep what the storage is from now on. Raises StoreError.

        One that it was before continues its own history.
        """
        known = next((one for one in self._all(node, storage) if is_same(one, found)), found)
        row = {"node": node, "storage": storage, "facts": json.dumps(dict(known))}
        with writing(self._engine) as connection:
            connection.execute(insert(table).values(**row, since=datetime.now(UTC).timestamp()))

    def tokens(self, node: str) -> dict[str, str]:
        """Return storage -> token, for those that are no longer what they were at first."""
        with reading(self._engine) as connection:
            query = select(table.c.storage).where(table.c.node == node).distinct()
            names = connection.scalars(query).all()
        histories = {name: self._all(node, name) for name in names}
        return {name: token(all_[-1]) for name, all_ in histories.items() if all_[-1] != all_[0]}

    def _all(self, node: str, storage: str) -> list[Identity]:
        query = select(table.c.facts).where(table.c.node == node, table.c.storage == storage)
        with reading(self._engine) as connection:
            return [json.loads(text) for text in connection.scalars(query.order_by(table.c.id))]
