"""A run whose reads came from memory is marked everywhere and never ranked as the disk."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pvebench.cli.progress import result_text
from pvebench.metrics.collector_io import Families, snapshot_of
from pvebench.metrics.collectors import collect_settings
from pvebench.model.definition import Definition
from pvebench.model.disk import Cache
from pvebench.model.environment import Environment
from pvebench.model.figures import UNKNOWN, WARM
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.workload import Case, Direction
from pvebench.report.table import result_rows
from pvebench.store.live_results import LiveResults, PlannedCase, View, read_trends
from pvebench.verdicts.fastest_text import after_cycles, summaries
from pvebench.verdicts.ranking import Exclusion, contests
from pvebench.web.views.pages import case_view
from testing.families import families_of
from testing.packs import quick
from testing.stores import TemporaryStore

START = datetime(2026, 5, 1, tzinfo=UTC)
READS = next(case for case in quick()[1].cases if case.workload.directions == (Direction.READ,))
COLD, CACHED = (
    replace(READS, scenario=replace(READS.scenario, disk=replace(READS.scenario.disk, cache=cache)))
    for cache in (Cache.NONE, Cache.WRITEBACK)
)
SHARE = WARM.sample(0.99, Direction.READ)
NOT_KNOWN = WARM.sample(1.0, Direction.READ, UNKNOWN)


def run(case: Case, hour: int, iops: float, *marks: Sample) -> Run:
    return Run(
        uid=f"{case.slug}{hour}",
        case=case,
        environment=Environment(node="lab", facts={"accel": "kvm"}),
        cycle="c1",
        started=START + timedelta(hours=hour),
        finished=START + timedelta(hours=hour, seconds=12),
        outcome=Outcome.OK,
        samples=(Sample("iops", Direction.READ, iops, Unit.IOPS), *marks),
    )


@pytest.fixture
def results(tmp_path: Path) -> LiveResults:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=2)
    planned = [
        PlannedCase(key=case.key, definition=Definition.of(case), every_seconds=3600.0)
        for case in (COLD, CACHED)
    ]
    return LiveResults(store, planned)


def excluded(view: View) -> dict[str, Exclusion]:
    cases = {key: one.definition for key, one in view.cases.items()}
    (ranking,) = contests(cases, view.trends)
    every = (*ranking.places, *ranking.excluded)
    return {one.definition.cache: one.exclusion for one in every}


@pytest.mark.parametrize("mark", [SHARE, NOT_KNOWN])
def test_warm_reads_are_excluded_in_the_ranking_and_named_in_every_output(
    results: LiveResults, mark: Sample
) -> None:
    for hour in range(3):
        results.keep(run(COLD, hour, 1000.0))
        results.keep(run(CACHED, hour, 9000.0, mark))
    view = results.now
    assert excluded(view) == {"none": Exclusion.NO, "writeback": Exclusion.WARM}
    assert excluded(LiveResults(results.store).now) == excluded(view)
    text = " ".join(one.text for one in summaries(view, after_cycles))
    assert "cache writeback reaches 9,000 IOPS; excluded: may read from host memory" in text
    families = Families()
    collect_settings(
        snapshot_of(view, now=START + timedelta(hours=3), max_age_seconds=1e6), families
    )
    labels = [one.labels for family in families_of(families) for one in family.samples]
    ranks = {one["cache"]: one["excluded"] for one in labels if "excluded" in one}
    assert ranks == {"none": "", "writeback": "warm"}
    warm = "possibly warm cache: no counters of the device" if mark.part else "warm cache: 99% of"
    page = case_view(results.store, view, CACHED.key, START)
    assert page is not None
    assert page.warm.startswith(warm)
    newest = results.store.runs(limit=1, case_key=CACHED.key)
    assert warm in result_text(newest[0])
    assert [str(row["caveats"]).startswith(warm) for row in result_rows(newest)] == [True]


def test_cold_runs_of_a_case_count_without_its_warm_ones(results: LiveResults) -> None:
    for hour in range(3):
        results.keep(run(COLD, hour, 1000.0))
        results.keep(run(CACHED, hour, 900.0))
    results.keep(run(CACHED, 3, 9000.0, SHARE))
    assert excluded(results.now) == {"none": Exclusion.NO, "writeback": Exclusion.NO}
    (ranking,) = contests(
        {key: one.definition for key, one in results.now.cases.items()}, results.now.trends
    )
    assert [(one.level, one.runs) for one in ranking.places] == [(1000.0, 3), (900.0, 3)]


def test_both_directions_of_a_warm_run_are_warm(results: LiveResults) -> None:
    both = run(CACHED, 0, 500.0, Sample("iops", Direction.WRITE, 5.0, Unit.IOPS), SHARE)
    results.keep(both)
    definitions = {CACHED.key: Definition.of(CACHED)}
    (trend,) = read_trends(results.store, definitions).values()
    assert [point.warm for point in trend.points] == [True, True]
    assert results.now.trends[CACHED.key].points == trend.points
