"""A results database that is closed with its last user, for tests that share or return it."""

from __future__ import annotations

import weakref
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pvebench.store.store import Store


@cache
def _empty() -> bytes:
    """Return a database without results: SQLAlchemy's DDL takes four times as long as a copy."""
    with TemporaryDirectory() as place:
        path = Path(place) / "empty.db"
        Store(path).close()
        return path.read_bytes()


class TemporaryStore(Store):
    """Closes its connections when nothing uses it or its parts: Python 3.13 warns of open ones."""

    def __init__(self, path: Path, *, simulated: bool | None = None) -> None:
        # SQLite would take the log that a removed database left for the copy's own.
        if not path.exists() and not path.with_name(f"{path.name}-wal").exists():
            path.write_bytes(_empty())
        super().__init__(path, simulated=simulated)
        # The engine that the parts share has the pool of another one, without a reference back.
        engine: Any = self._engine
        weakref.finalize(engine, engine._proxied.dispose)
