"""The page of `/metrics` of a simulation."""

from __future__ import annotations

from pvebench.metrics.exposition import Page
from pvebench.metrics.live import collect_build, collect_database, collect_scheduler
from pvebench.metrics.snapshot import Snapshot
from testing.simulations import Simulation


def snapshot_of(simulation: Simulation, **changes: object) -> Snapshot:
    view = simulation.results.now
    values: dict[str, object] = {
        "now": simulation.world.clock.now(),
        "records": list(view.cases.values()),
        "episodes": view.periods,
        "intervals": dict.fromkeys(view.cases, 300.0),
        "totals": view.totals,
        "simulated": True,
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
