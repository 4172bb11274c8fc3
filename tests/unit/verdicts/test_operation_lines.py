"""The answer of a run with an operation: stalls, what was canceled, an emulated CPU."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.cli.progress import result_text
from pvebench.drivers.clocks import START
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.report.html import Subject, report_html
from pvebench.report.value_text import sample_rows
from pvebench.store.records import StoredRun
from pvebench.verdicts.fastest_text import operation_lines
from testing.packs import SMALL, write_pack
from testing.simulated_results import case

Captured = pytest.CaptureFixture[str]
GAP = Sample("operation_gap", None, 3.4, Unit.SECONDS)
SIZE = Sample("operation_bytes", None, 4096, Unit.BYTES)
TIME = Sample("operation_time", None, 1.5, Unit.SECONDS)
RATE = Sample("iops", Direction.WRITE, 21, Unit.IOPS)
OPERATIONS = (
    SMALL.replace("[virtio, scsi]", "[scsi]").replace("runtime: 2s", "runtime: 12s")
    + "  - fio: {rw: randwrite, bs: 4k, sync: true, during: [backup, backup-fleecing]}\n"
).replace("  - fio: {rw: randread, bs: 4k, iodepth: 8}\n", "")


def run(during: str, *samples: Sample, number: int = 1) -> StoredRun:
    own = case("scsi.raw.none", sync=1)
    own = replace(own, parameters={**own.parameters, "during": during})
    return StoredRun(
        number=number,
        uid=str(number),
        case_key=during,
        node=own.node,
        scenario=own.scenario,
        workload=own.workload,
        definition=own,
        cycle="",
        environment="e",
        started=START + timedelta(hours=number),
        finished=START,
        outcome=Outcome.OK,
        reason="",
        samples=samples,
    )


def test_an_operation_that_had_not_ended_is_named() -> None:
    lines = operation_lines([run("backup", GAP, SIZE), run("move", GAP, SIZE, TIME), run("", RATE)])
    assert len(lines) == 3
    assert lines[-1] == "Not ended, so canceled at the end of the run: a backup on local"


def test_runs_without_an_operation_have_no_such_answer() -> None:
    assert operation_lines([run("", RATE)], {"e"}) == ()


def test_the_newest_run_of_a_case_counts() -> None:
    later = run("move", replace(GAP, value=0.5), TIME, number=2)
    (line,) = operation_lines([later, run("move", GAP, TIME)])
    assert line.endswith("for 0.5 s")


def test_an_emulated_cpu_is_named_once() -> None:
    lines = operation_lines([run("backup", GAP, TIME), run("move", GAP, TIME)], {"e"})
    assert [line.startswith("Emulated CPU (TCG)") for line in lines] == [False, False, True]


def test_the_report_names_an_emulated_cpu_beside_operations() -> None:
    facts = {"digest": "e", "facts": {"accel": "tcg"}}
    subject = Subject(
        title="t", source="", node="lab", now=START, simulated=False, environments=(facts,)
    )
    html = report_html(subject, [run("move", GAP, TIME)])
    assert "for 3.4 s.</li>" in html
    assert "<li>Emulated CPU (TCG)" in html


def test_results_and_pages_show_a_canceled_operation() -> None:
    assert result_text(run("backup", RATE, SIZE)) == "write 21 IOPS; operation canceled at the end"
    assert result_text(run("backup", RATE, SIZE, TIME)) == "write 21 IOPS"
    rows = {name: value for name, _, value in sample_rows((RATE, SIZE))}
    assert rows["operation time"] == "canceled at the end of the run"
    rows = {name: value for name, _, value in sample_rows((SIZE, TIME))}
    assert rows["operation time"] == "1.5 s"


def test_run_results_and_verdict_end_with_the_effect_of_operations(
    tmp_path: Path, capsys: Captured
) -> None:
    pack, state = write_pack(tmp_path, OPERATIONS), ["--state", str(tmp_path / "state")]
    simulated = ["--driver", "simulated", "--node", "lab", "--pack", str(pack)]
    assert run_cli(["run", *state, *simulated]) == 0
    said = capsys.readouterr().out
    answer = "A backup on node lab, storage local stalls 4k random write, depth 1, each write "
    assert f"Results on lab:\n  {answer}" in said
    assert "only configuration" not in said
    for command in (["results"], ["verdict"], ["verdict", "--format", "markdown"]):
        assert run_cli([*command, *state]) == 0
        assert answer in capsys.readouterr().out
