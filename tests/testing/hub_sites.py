"""Sites that send what they have stored to a hub, without HTTP between them."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

from pvebench.scheduler.plan import Assignment
from pvebench.store.store import Store
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.hub.rules import Door
from pvebench_fleet.hub.store.database import HubDatabase
from pvebench_fleet.push import Reply, Sender
from pvebench_fleet.wire import Limits
from pvebench_lab.cli.demo import fill_store
from pvebench_lab.simulated.demo_year import Story
from testing.stores import TemporaryStore

STEPS = 1000


def send(store: Store, database: HubDatabase, name: str) -> None:
    """Send everything that a site has stored."""
    door = Door(database.begin, lambda: 1, Limits(lines=5000, wait_seconds=0))
    FleetLog(store.engine).begin()
    sender = Sender(
        FleetLog(store.engine),
        lambda method, path, body: Reply(*door.answer(name, method, path, body)),
        secrets.token_hex(8),
        time.time,
    )
    for _ in range(STEPS):
        sender.step()
        state = FleetLog(store.engine).state()
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
