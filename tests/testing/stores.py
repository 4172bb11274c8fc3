"""A results database that is closed with its last user, for tests that share or return it."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

from pvebench.store.store import Store


class TemporaryStore(Store):
    """Closes its connections when nothing uses it or its parts: Python 3.13 warns of open ones."""

    def __init__(self, path: Path, *, simulated: bool | None = None) -> None:
        super().__init__(path, simulated=simulated)
        # The engine that the parts share has the pool of another one, without a reference back.
        engine: Any = self._engine
        weakref.finalize(engine, engine._proxied.dispose)
