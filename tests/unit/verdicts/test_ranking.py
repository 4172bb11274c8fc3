"""What ranks no configuration: runs beside others, in several VMs, or read from memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pvebench.advice.recommendation import recommendations
from pvebench.advice.recommendation_text import NOTHING
from pvebench.cli.progress import result_text
from pvebench.metrics.exposition import Families
from pvebench.metrics.result_collectors import collect_settings, snapshot_of
from pvebench.model.definition import Definition
from pvebench.model.disk import Cache
from pvebench.model.environment import Environment
from pvebench.model.run import Run, Sample, Unit
from pvebench.model.run_metrics import UNKNOWN, WARM
from pvebench.model.workload import Case, Direction
from pvebench.report.table import result_rows
from pvebench.store.live_results import LiveResults, PlannedCase, View, read_trends
from pvebench.verdicts.fastest_text import after_cycles, ranking_text, ranking_title
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.ranking import Exclusion, answers, rankings, shown_definitions
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.views.pages import case_view, index_view
from testing.families import families_of
from testing.packs import SMALL, quick, write_pack
from testing.simulated_results import case
from testing.simulated_site import results_of
from testing.simulations import Simulation, simulate
from testing.stored_runs import ended
from testing.stores import TemporaryStore

MIXED = (
    SMALL.partition("axes:")[0]
    + """\
axes:
  chain: [0, 3]
fixed: {bus: scsi, format: qcow2, cache: none}
volume: {size: 64M}
measure: {ramp: 1s, runtime: 12s}
workloads:
  - fio: {rw: randwrite, bs: 4k, sync: true}
  - fio: {rw: randwrite, bs: 4k, fsync: 1, during: [backup, neighbor]}
  - fio: {rw: randread, bs: 4k, vms: 2}
"""
)
UNDISTURBED = "local.scsi.qcow2.none/randwrite-4k-qd1-sync"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    place = tmp_path_factory.mktemp("undisturbed")
    simulation = simulate(place, cycles=3, pack=write_pack(place, MIXED))
    simulation.worker.run()
    assert len(simulation.results.now.cases) == 8
    return simulation


@pytest.fixture(scope="module")
def view(simulation: Simulation) -> View:
    return results_of(simulation).now


@pytest.fixture(scope="module")
def verdicts(simulation: Simulation) -> Verdicts:
    return VerdictService(simulation.results, ()).judge()


@pytest.mark.parametrize(
    "load", [{"during": "move"}, {"fault": "outage"}, {"vms": 8}, {"during": "snapshot", "vms": 1}]
)
def test_a_load_with_anything_beside_it_is_disturbed(load: dict[str, str | int]) -> None:
    plain = case("scsi.qcow2.none")
    assert plain.undisturbed
    assert replace(plain, parameters={**plain.parameters, "vms": 1, "during": ""}).undisturbed
    assert not replace(plain, parameters={**plain.parameters, **load}).undisturbed


def test_snapshots_are_a_state_and_no_configuration_to_choose() -> None:
    assert case("scsi.qcow2.none.chain-0").undisturbed
    assert not case("scsi.qcow2.none.chain-1").undisturbed


def disturbed_only(view: View) -> dict[str, Definition]:
    known = shown_definitions(view)
    return {key: one for key, one in known.items() if one.name != UNDISTURBED}


def test_rankings_have_no_place_for_disturbed_runs(view: View) -> None:
    every = rankings(view)
    assert [one.definition.name for found in every for one in found.places] == [UNDISTURBED]
    excluded = [one.exclusion for found in every for one in found.excluded]
    assert excluded == ["disturbed"] * 7


def test_sentences_name_the_undisturbed_case_only(view: View) -> None:
    (only,) = answers(view)
    assert ranking_title(only) == "4k random write, depth 1, each write synced on local"
    assert answers(view, disturbed_only(view)) == ()


def test_advice_rests_on_undisturbed_runs_only(view: View) -> None:
    (only,) = recommendations(view)
    assert [choice.definition.name for choice in only.choices] == [UNDISTURBED]
    assert only.excluded == ()
    assert recommendations(view, disturbed_only(view)) == ()
    assert NOTHING.startswith("No advice yet: no configuration has a result to rank")
    assert "`pvebench report` why results are not ranked" in NOTHING


def test_the_performance_index_counts_undisturbed_cases_only(verdicts: Verdicts) -> None:
    (level,) = verdicts.reports[0].levels
    assert (level.cases, level.runs) == (1, 3)


def test_the_page_marks_disturbed_results_and_shows_the_gap_of_snapshots(
    view: View, verdicts: Verdicts
) -> None:
    page = index_view(view, (), view.periods[-1].finished, verdicts)
    notes = {}
    for table in page.tables:
        for row in table.rows:
            for cell in filter(None, row.cells):
                notes[table.slug, "chain 3" in row.options] = (
                    "not ranked" in {note.word for note in cell.notes},
                    cell.against,
                    cell.best,
                )
        assert (table.found == "") == (table.slug != "randwrite-4k-qd1-sync")
    plain, chain = (notes.pop(("randwrite-4k-qd1-sync", state)) for state in (False, True))
    assert plain[0] is chain[2] is False
    assert chain[0] is True
    assert "%" in chain[1]
    assert set(notes.values()) == {(True, "", False)}


def test_metrics_exclude_disturbed_cases_from_the_rank(view: View) -> None:
    families = Families()
    now = view.periods[-1].finished
    collect_settings(snapshot_of(view, now=now, max_age_seconds=1e6), families)
    excluded = {
        f"{sample.labels['scenario']}/{sample.labels['workload']}": sample.labels["excluded"]
        for family in families_of(families)
        for sample in family.samples
        if sample.name == "pvebench_scenario_rank_info"
    }
    assert excluded.pop(UNDISTURBED) == ""
    assert set(excluded.values()) == {"disturbed"}


START = datetime(2026, 5, 1, tzinfo=UTC)
READS = next(case for case in quick()[1].cases if case.workload.directions == (Direction.READ,))
COLD, CACHED = (
    replace(READS, scenario=replace(READS.scenario, disk=replace(READS.scenario.disk, cache=cache)))
    for cache in (Cache.NONE, Cache.WRITEBACK)
)
SHARE = WARM.sample(0.99, Direction.READ)
NOT_KNOWN = WARM.sample(1.0, Direction.READ, UNKNOWN)


def run(case: Case, hour: int, iops: float, *marks: Sample) -> Run:
    sample = Sample("iops", Direction.READ, iops, Unit.IOPS)
    environment = Environment(node="lab", facts={"accel": "kvm"})
    return ended(case, START + timedelta(hours=hour), sample, *marks, environment=environment)


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
    (ranking,) = rankings(view, cases)
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
    text = " ".join(ranking_text(ranking, after_cycles) for ranking in answers(view))
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
    (ranking,) = rankings(results.now)
    assert [(one.level, one.runs) for one in ranking.places] == [(1000.0, 3), (900.0, 3)]


def test_both_directions_of_a_warm_run_are_warm(results: LiveResults) -> None:
    both = run(CACHED, 0, 500.0, Sample("iops", Direction.WRITE, 5.0, Unit.IOPS), SHARE)
    results.keep(both)
    definitions = {CACHED.key: Definition.of(CACHED)}
    (trend,) = read_trends(results.store, definitions).values()
    assert [point.warm for point in trend.points] == [True, True]
    assert results.now.trends[CACHED.key].points == trend.points
