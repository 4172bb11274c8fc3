"""The page of `/metrics` of a simulation."""

from __future__ import annotations

from dataclasses import replace

from pvebench.metrics.exposition import Page
from pvebench.metrics.result_collectors import Snapshot
from pvebench.service.publisher import collect_build, collect_database, collect_scheduler
from pvebench.store.live_results import PlannedCase
from testing.simulations import Simulation


def snapshot_of(simulation: Simulation, **changes: object) -> Snapshot:
    view = simulation.results.now
    planned = [
        PlannedCase(key=key, definition=record.definition, every_seconds=300.0)
        for key, record in view.cases.items()
    ]
    values: dict[str, object] = {
        "now": simulation.world.clock.now(),
        "records": list(view.cases.values()),
        "view": replace(view, planned={case.key: case for case in planned}, simulated=True),
    }
    return Snapshot(**(values | changes))  # type: ignore[arg-type] # by name


def page_of(simulation: Simulation, **changes: object) -> Page:
    live = {
        "build": collect_build,
        "scheduler": lambda families: collect_scheduler([simulation.worker.status], families),
        "database": lambda families: collect_database(simulation.store.path, families),
    }
    snapshot = snapshot_of(simulation, **changes)
    page = Page(lambda: snapshot, live, now=lambda: snapshot.now)
    page.refresh()
    return page
