"""Sites that send what they have stored to a hub, without HTTP between them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from pvebench.cli.demo import fill_store
from pvebench.drivers.simulated.demo_year import Story
from pvebench.fleet.connection import new_process
from pvebench.fleet.push import Reply, Sender
from pvebench.fleet.wire import Limits
from pvebench.hub.door import Door
from pvebench.hub.store import HubDatabase
from pvebench.scheduler.plan import Assignment
from pvebench.store import Store
from testing.stores import TemporaryStore

STEPS = 1000


def send(store: Store, database: HubDatabase, name: str) -> None:
    """Send everything that a site has stored."""
    door = Door(database.begin, lambda: 1, Limits(lines=5000, wait_seconds=0))
    store.fleet.begin()
    sender = Sender(
        store.fleet,
        lambda method, path, body: Reply(*door.answer(name, method, path, body)),
        new_process(),
        time.time,
    )
    for _ in range(STEPS):
        sender.step()
        state = store.fleet.state()
        if state is not None and state.acked == state.newest:
            return
    raise AssertionError(f"not sent: {sender.state}")


def filled_store(
    directory: Path, assignments: list[Assignment], story: Story, *, end: float, seed: int = 1
) -> Store:
    """Return a new store with a story's results."""
    directory.mkdir(parents=True, exist_ok=True)
    store = TemporaryStore(directory / "pvebench.db", simulated=True)
    fill_store(store, assignments, end=datetime.fromtimestamp(end, UTC), seed=seed, story=story)
    return store
