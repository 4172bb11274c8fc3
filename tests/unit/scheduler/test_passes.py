"""A case that runs several times in a cycle: first and later passes are told apart."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.metrics.exposition import Families
from pvebench.metrics.result_collectors import Snapshot, collect_results
from pvebench.model.run import Outcome, Run
from pvebench.report.table import csv_text, of_pass, result_rows
from pvebench.scheduler.due_cases import Passes
from pvebench.web.views.pages import case_view, run_view
from testing.families import families_of
from testing.packs import SMALL, write_pack
from testing.simulations import Simulation, simulate

Captured = pytest.CaptureFixture[str]
THREE = SMALL.replace("  ramp: 1s", "  repeats: 3\n  ramp: 1s")


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    folder = tmp_path_factory.mktemp("passes")
    simulation = simulate(folder, pack=write_pack(folder, THREE), cycles=2)
    simulation.worker.run()
    return simulation


def runs_of(simulation: Simulation, bus: str) -> list[Run]:
    return [run for run in simulation.recorder.runs if run.case.scenario.disk.bus == bus]


def iops(run: Run) -> float:
    return next(one.value for one in run.samples if one.metric == "iops")


def ratios(run: Run) -> list[float]:
    return [one.value for one in run.samples if one.metric == "pass_to_first"]


def test_each_run_knows_its_pass_and_a_new_cycle_counts_again(simulation: Simulation) -> None:
    assert [run.pass_number for run in runs_of(simulation, "virtio")] == [1, 2, 3, 1, 2, 3]
    stored = simulation.store.runs(limit=100, pack="small")
    assert sorted(run.pass_number for run in stored) == sorted([1, 2, 3] * 4)


def test_a_later_pass_is_compared_with_the_first_of_its_own_cycle(simulation: Simulation) -> None:
    runs = runs_of(simulation, "scsi")
    for first, second, third in (runs[:3], runs[3:]):
        assert ratios(first) == []
        assert ratios(second) == [pytest.approx(iops(second) / iops(first))]
        assert ratios(third) == [pytest.approx(iops(third) / iops(first))]


def test_after_a_first_pass_that_failed_nothing_is_compared_but_the_pass_counts(
    simulation: Simulation,
) -> None:
    second, passes = replace(runs_of(simulation, "virtio")[0]), Passes()
    failed = replace(second, outcome=Outcome.FAILED, samples=())
    passes.count(failed)
    passes.count(second)
    assert (failed.pass_number, second.pass_number) == (1, 2)
    assert ratios(second) == []


def test_the_table_has_first_and_last_pass_of_the_newest_cycle(simulation: Simulation) -> None:
    stored = simulation.store.runs(limit=100, pack="small")
    row = next(row for row in result_rows(stored) if row["bus"] == "virtio")
    first, *_, last = runs_of(simulation, "virtio")[3:]
    assert (row["pass"], row["passes"]) == (3, 3)
    assert (row["first_pass"], row["last_pass"]) == (iops(first), iops(last))
    assert row["last_to_first_ratio"] == pytest.approx(iops(last) / iops(first))
    (line, _) = csv.DictReader(csv_text(result_rows(stored)).splitlines())
    assert {"first_pass", "last_pass", "last_to_first_ratio"} <= line.keys()


def test_a_pass_that_was_not_good_has_no_value(simulation: Simulation) -> None:
    stored = simulation.store.runs(limit=100, pack="small")
    bad = [
        replace(run, outcome=Outcome.FAILED, samples=()) if run.pass_number == 1 else run
        for run in stored
    ]
    row = result_rows(bad)[0]
    assert row["first_pass"] is None
    assert row["last_to_first_ratio"] is None
    assert row["last_pass"] is not None


def test_the_ratio_of_the_last_run_to_its_first_pass_is_a_metric(simulation: Simulation) -> None:
    store = simulation.store
    records = [record for key in store.cases() if (record := store.cases().get(key)) is not None]
    snapshot = Snapshot(now=simulation.world.clock.now(), records=records)
    families = Families()
    collect_results(snapshot, families)
    (family,) = (one for one in families_of(families) if one.name == "pvebench_pass_to_first_ratio")
    first, *_, last = runs_of(simulation, "virtio")[3:]
    shown = {sample.labels["bus"]: sample.value for sample in family.samples}
    assert shown["virtio"] == pytest.approx(iops(last) / iops(first))
    assert "pass" not in family.samples[0].labels


def test_the_pages_of_a_case_and_a_run_tell_the_pass(simulation: Simulation) -> None:
    (key, *_) = simulation.store.cases()
    case = case_view(simulation.store, simulation.results.now, key, simulation.world.clock.now())
    assert case is not None
    assert [run.pass_number for run in case.runs] == [3, 2, 1, 3, 2, 1]
    run = run_view(simulation.store, case.runs[0])
    assert run.run.pass_number == 3


def test_runs_of_one_pass_are_chosen(simulation: Simulation) -> None:
    stored = simulation.store.runs(limit=100, pack="small")
    assert {run.pass_number for run in of_pass(stored, 3)} == {3}
    assert len(of_pass(stored, 1)) == 4


def test_results_show_one_pass_when_asked(simulation: Simulation, capsys: Captured) -> None:
    state = ["--state", str(simulation.store.path.parent)]
    assert run_cli(["results", "--pack", "small", "--pass", "3", "--format=json", *state]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["pass"] for run in found] == [3, 3, 3, 3]
    assert run_cli(["results", "--pack", "small", "--pass", "1", "--format", "csv", *state]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    firsts = [iops(runs_of(simulation, bus)[3]) for bus in ("scsi", "virtio")]
    assert [float(line["iops"]) for line in lines] == pytest.approx(firsts)
    assert run_cli(["results", *state]) == 0
    assert "pass" in capsys.readouterr().out.splitlines()[0]


def test_runs_from_before_passes_were_counted_belong_to_none(tmp_path: Path) -> None:
    simulation = simulate(tmp_path, pack=write_pack(tmp_path), cycles=1)
    simulation.worker.run()
    stored = simulation.store.runs(limit=10, pack="small")
    older = [replace(run, pass_number=0) for run in stored]
    assert all(row["pass"] is None for row in result_rows(older))
    assert of_pass(older, 1) == []
