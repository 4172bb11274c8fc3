"""A short version of the demo's year: the same cases and story, its last days only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pvebench.config import load_pack
from pvebench.scheduler.plan import Assignment, Matrix
from pvebench.service.instance import planned_cases
from pvebench.store.live_results import LiveResults
from pvebench.store.store import Store
from pvebench_lab.cli.demo import demo_assignments, fill_store
from pvebench_lab.simulated.demo_year import YEAR, Story
from testing.packs import ROOT
from testing.stores import TemporaryStore

DEMO = ROOT / "scenarios" / "demo.yaml"


def last_days(days: float) -> Story:
    return replace(YEAR, days=days)


def assignments(*workloads: str) -> list[Assignment]:
    """Return the cases of these workloads on all nodes of the demo; without any, those of two."""
    found = demo_assignments(load_pack(DEMO))
    if not workloads:
        return found[:2]
    return [
        Assignment(
            one.pack,
            Matrix(
                cases=tuple(case for case in one.matrix.cases if case.workload.slug in workloads),
                excluded=(),
            ),
        )
        for one in found
    ]


def results_of(store: Store) -> LiveResults:
    """Return the results of a store of the demo, which know its pack."""
    return LiveResults(store, planned_cases(assignments()))


def filled_store(
    directory: Path, *, days: float, end: datetime | None = None, story: Story | None = None
) -> Store:
    """Return a store with the last days of the story, ending now or at `end`."""
    store = TemporaryStore(directory / "pvebench.db", simulated=True)
    chosen = story or last_days(days)
    fill_store(store, assignments(), end=end or datetime.now(UTC), seed=1, story=chosen)
    return store
