"""A database, for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.store.store import Store
from testing.stores import TemporaryStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a database for measured results, with a cycle for its runs."""
    opened = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    opened.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    yield opened
    opened.close()
