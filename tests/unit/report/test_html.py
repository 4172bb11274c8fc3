"""Results as CSV, table beside published values, and one HTML file."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.report.html import (
    BOTTOM,
    CHART_HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Subject,
    bars,
    curves,
    profile,
    report_html,
    short_names,
)
from pvebench.report.table import ResultRow, csv_text, result_rows
from pvebench.store.live_results import LiveResults, Trend
from pvebench.verdicts.ranking import answers
from pvebench.web.views.tables import numbers_of
from testing.html_reader import Reader
from testing.packs import write_pack
from testing.simulations import Simulation, simulate

Captured = pytest.CaptureFixture[str]
PACK = """\
pack: small
title: "<Two> scenarios"
every: 10m
host: true
axes: {bus: [virtio], format: [raw], cache: [none, writeback]}
fixed: {filesystem: ext4}
volume: {size: 64M}
measure: {ramp: 1s, runtime: 2s}
workloads:
  - fio: {rw: [randread, randwrite], bs: 4k, iodepth: [1, 4, 16, 256]}
  - fio: {rw: [read, write], bs: 1M, iodepth: 8, title: SEQ1M Q8T1}
"""


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    folder = tmp_path_factory.mktemp("report")
    simulation = simulate(folder, pack=write_pack(folder, PACK), cycles=3)
    simulation.worker.run()
    return simulation


def rows_of(simulation: Simulation) -> list[ResultRow]:
    return result_rows(simulation.store.runs(limit=1000, pack="small"))


def html_of(simulation: Simulation, trends: Mapping[str, Trend] | None = None) -> str:
    runs = simulation.store.runs(limit=1000)
    subject = Subject(
        title="<Two> & more",
        source="",
        node="lab",
        now=runs[0].finished,
        simulated=True,
        environments=tuple(simulation.store.environments()),
        trends=trends or {},
    )
    return report_html(subject, runs)


def test_a_row_has_the_newest_run_and_those_of_its_environment(simulation: Simulation) -> None:
    row = next(row for row in rows_of(simulation) if row["bus"] == "virtio")
    assert row["good_runs"] == 3
    case = [
        run
        for run in simulation.recorder.runs
        if run.case.slug == (f"{row['scenario']}/{row['workload']}")
    ]
    reached = [s.value for run in case for s in run.samples if s.metric == "iops"]
    assert row["iops"] == reached[-1]
    assert (row["best"], row["median"]) == (max(reached), sorted(reached)[1])
    latest, *earlier = (run for run in simulation.store.runs() if run.case_key == row["case"])
    (row,) = result_rows([latest, *(replace(run, environment="old") for run in earlier)])
    assert (row["good_runs"], row["best"], row["median"]) == (1, reached[-1], reached[-1])


def test_a_level_stands_beside_the_number_of_its_runs(simulation: Simulation) -> None:
    view = LiveResults(simulation.store).now
    html = html_of(simulation, view.trends)
    assert '<th class="n">level</th><th class="n">runs</th>' in html
    (number, *_) = next(numbers_of(trend) for trend in view.trends.values() if trend.points)
    assert f'<td class="n">{number.value:,.0f}</td><td class="n">{number.runs}</td>' in html


def test_a_finding_names_its_node_if_another_one_has_results(simulation: Simulation) -> None:
    newest, *runs = simulation.store.runs(limit=1000)
    other = replace(newest, definition=replace(newest.definition, node="pve2"))
    subject = Subject(
        title="", source="", node="lab", now=newest.finished, simulated=True, environments=()
    )
    subject = replace(subject, rankings=answers(LiveResults(simulation.store).now))
    assert " on lab, local</strong>" in report_html(subject, [other, *runs])


def test_one_run_of_one_configuration_is_counted_in_the_singular(simulation: Simulation) -> None:
    (newest, *_) = simulation.store.runs(limit=1)
    subject = Subject(
        title="", source="", node="lab", now=newest.finished, simulated=True, environments=()
    )
    assert ": 1 run of 1 configuration.</p>" in report_html(subject, [newest])


def test_the_hosts_row_stands_first_in_its_workload(simulation: Simulation) -> None:
    rows = rows_of(simulation)
    first = {str(row["workload"]): row["bus"] for row in reversed(rows)}
    assert set(first.values()) == {"host"}


def test_csv_has_a_line_for_each_case_and_direction_in_base_units(simulation: Simulation) -> None:
    lines = list(csv.DictReader(csv_text(rows_of(simulation)).splitlines()))
    assert len(lines) == 3 * 10
    assert {line["direction"] for line in lines} == {"read", "write"}
    one = lines[0]
    product = float(one["iops"]) * int(one["block_size_bytes"])
    assert float(one["bandwidth_bytes_per_second"]) == pytest.approx(product, rel=0.01)


@pytest.mark.parametrize("evil", ["=HYPERLINK(1)", "+1", "-1", "@x"])
def test_no_cell_of_a_csv_becomes_a_formula(evil: str) -> None:
    text = csv_text([ResultRow({"title": evil})])
    assert f"'{evil}" in text


def test_the_report_needs_nothing_but_itself(simulation: Simulation) -> None:
    text = html_of(simulation)
    for tag, attributes in Reader(text).elements:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href"} & set(attributes)
    assert "default-src 'none'" in text


def test_the_report_escapes_what_comes_from_outside_and_says_that_it_is_simulated(
    simulation: Simulation,
) -> None:
    text = html_of(simulation)
    assert "&lt;Two&gt; &amp; more" in text
    assert "<Two>" not in text
    assert "these numbers are invented" in text


def test_a_sweep_over_the_depth_is_drawn_as_latency_against_iops(simulation: Simulation) -> None:
    text = html_of(simulation)
    assert "Latency against IOPS: randread 4.0 KiB read" in text
    assert "local.virtio.raw.none.filesystem-ext4, depth 256" in text


def test_a_doubtful_run_is_shown_with_its_reason_and_not_counted(simulation: Simulation) -> None:
    runs = simulation.store.runs(limit=1000)
    doubted = replace(
        runs[0],
        outcome=Outcome.IMPLAUSIBLE,
        reason="too good to be true",
        finished=runs[0].finished + timedelta(seconds=9),
    )
    rows = result_rows([doubted, *runs])
    row = next(row for row in rows if row["outcome"] == "implausible")
    assert row["good_runs"] == 3
    subject = Subject(
        title="t", source="", node="lab", now=runs[0].finished, simulated=True, environments=()
    )
    assert "too good to be true" in report_html(subject, [doubted, *runs])


def test_the_report_begins_with_the_answer_and_ranks_its_bars(simulation: Simulation) -> None:
    """Nor does it show a device share that other programs caused."""
    store = simulation.store
    view, runs = LiveResults(store).now, store.runs(limit=1000)
    noisy = next(run for run in runs if run.scenario.endswith("none.filesystem-ext4"))
    directions = noisy.definition.directions
    shares = [Sample("device_share", way, 183.64, Unit.RATIO) for way in directions]
    changed = replace(noisy, outcome=Outcome.NOISY, samples=(*noisy.samples, *shares))
    assert [row["device_share_ratio"] for row in result_rows([changed])] == [183.64]
    subject = Subject(
        title="t",
        source="",
        node="lab",
        now=runs[0].finished,
        simulated=False,
        environments=(),
        devices={"lab/local": "990 PRO"},
        verdict="No regressions.",
        rankings=answers(view),
        trends=view.trends,
    )
    text = report_html(subject, [changed if run is noisy else run for run in runs])
    order = [text.index(part) for part in (">Findings<", ">Verdict<", "<svg", ">Environments<")]
    assert order == sorted(order)
    assert text.index(">Latency against IOPS") > text.rindex("<h2>SEQ1M Q8T1")
    assert "183.64" not in text
    assert 'class="bar doubtful"' in text
    assert "lab/local: 990 PRO" in text
    blocks = re.findall(r"<svg(.*?)</svg>", text.split(">Latency against IOPS")[0], re.DOTALL)
    assert len(blocks) == 10
    for block in blocks:
        host, *lengths = (float(one) for one in re.findall(r'width="([0-9.]+)" height', block))
        assert host > 0
        # The ranked configurations, then those whose writes stay in host memory.
        assert sum(before < after for before, after in pairwise(lengths)) <= 1


def test_the_profile_is_shown_as_people_know_it(simulation: Simulation) -> None:
    lines = profile(rows_of(simulation))
    assert {line.name for line in lines} == {"SEQ1M Q8T1"}
    line = lines[0]
    assert line.passes == 3
    assert line.read_best is not None
    assert line.read_median is not None
    assert line.read_best >= line.read_median > 100  # MB/s


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bars([("a", 10.0, False), ("b", 5.0, True)], str)
    assert drawn[0].length == pytest.approx(2 * drawn[1].length, abs=0.2)
    assert drawn[1].doubtful


def test_curves_stay_inside_their_axes() -> None:
    chart = curves([("a", ((100.0, 0.001, "1"), (50_000.0, 0.2, "64")))])
    ((_, dots),) = chart.curves
    for x, y, _ in dots:
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= CHART_HEIGHT - BOTTOM


def published_state(tmp_path: Path) -> list[str]:
    pack = PACK.replace("pack: small", "pack: cache-bus-format-2017").replace(
        "host: true", "host: true\npublished: cache-bus-format-2017"
    )
    path = write_pack(tmp_path, pack)
    simulate(tmp_path, pack=path).worker.run()
    return ["--state", str(tmp_path), "--pack", str(path)]


def test_own_and_published_values_are_printed_side_by_side(
    tmp_path: Path, capsys: Captured
) -> None:
    options = published_state(tmp_path)
    capsys.readouterr()  # the log of the simulation
    assert run_cli(["results", *options, "--reference", "published", "--format=json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = {
        row["scenario"]: row["published"] for row in rows if row["workload"] == "randwrite-4k-qd256"
    }
    assert found == {
        "local.host.raw.none": 33580.0,
        "local.virtio.raw.none.filesystem-ext4": 25264.0,
        "local.virtio.raw.writeback.filesystem-ext4": 40666.0,
    }
    assert run_cli(["results", *options, "--reference", "published"]) == 0
    assert "25,264 IOPS" in capsys.readouterr().out


def test_values_beside_an_imported_series_stand_under_its_name(
    tmp_path: Path, capsys: Captured
) -> None:
    simulate(tmp_path).worker.run()
    table, state = tmp_path / "mine.csv", ["--state", str(tmp_path)]
    table.write_text("Pattern;IOPS\nrandread;1234\nrandwrite;1234\n", "utf-8")
    mapped = ["--column", "rw=Pattern", "--column", "iops=IOPS"]
    assert run_cli(["import", str(table), *state, *mapped]) == 0
    capsys.readouterr()
    assert run_cli(["results", *state, "--reference", "mine"]) == 0
    out = capsys.readouterr().out
    assert "1,234 IOPS" in out
    assert "own ÷ mine" in out
    assert "published" not in out


def test_the_commands_print_a_table_and_write_a_report(tmp_path: Path, capsys: Captured) -> None:
    options, path = published_state(tmp_path), tmp_path / "out.html"
    assert run_cli(["results", *options, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("node,storage,bus,")
    assert run_cli(["report", *options, "--output", str(path)]) == 0
    assert path.stat().st_size > 1000
    assert capsys.readouterr().out.startswith(f"wrote {path}")
    assert run_cli(["report", *options, "--output", str(tmp_path / "no" / "x.html")]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_beside_published_needs_a_pack_that_reproduces_something(
    tmp_path: Path, capsys: Captured
) -> None:
    simulate(tmp_path).worker.run()
    assert run_cli(["results", "--state", str(tmp_path), "--reference", "published"]) == 2
    assert "--reference published requires --pack" in capsys.readouterr().err


def test_bars_are_named_by_what_distinguishes_them() -> None:
    assert short_names(
        [
            "a.host.raw.none",
            "a.scsi.raw.none.x-1.y-2",
            "a.scsi.raw.none.y-2",
            "a.virtio.raw.none.y-2",
        ]
    ) == ["a.host.raw.none", "a.scsi.raw.none.x-1", "a.scsi.raw.none", "a.virtio.raw.none"]
