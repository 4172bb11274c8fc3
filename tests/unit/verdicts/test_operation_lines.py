"""Effects of operations on a guest as sentences, and as judged metrics."""

from __future__ import annotations

import itertools
import re
from array import array
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pvebench.cli.main import run_cli
from pvebench.cli.progress import result_text
from pvebench.drivers.clocks import START
from pvebench.model.definition import workload_text
from pvebench.model.ports import Progress
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.run_metrics import JUDGED
from pvebench.model.units import MIB
from pvebench.model.workload import DISK_OPERATIONS, NEIGHBOR, Direction
from pvebench.report.html import Subject, report_html
from pvebench.report.value_text import sample_rows
from pvebench.runner.operation_watch import Look, longest_gap
from pvebench.store.records import StoredRun
from pvebench.verdicts.fastest_text import operation_lines
from pvebench.verdicts.judge_input import figures_of
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


def run(during: str, *samples: Sample, number: int = 1, **parameters: int) -> StoredRun:
    own = case("scsi.raw.none", sync=1, **parameters)
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


def stalled(
    during: str, gap: float, resolution: float = 0.01, number: int = 2, **parameters: int
) -> StoredRun:
    """Return a run with its longest gap and the resolution of that, in seconds."""
    known = Sample("operation_resolution", None, resolution, Unit.SECONDS)
    return run(during, replace(GAP, value=gap), known, TIME, number=number, **parameters)


def test_an_operation_that_had_not_ended_is_named() -> None:
    lines = operation_lines([run("backup", GAP, SIZE), run("move", GAP, SIZE, TIME), run("", RATE)])
    assert len(lines) == 3
    assert lines[-1] == "Not ended, so canceled at the end of the run: a backup on local"


def test_runs_without_an_operation_have_no_such_answer() -> None:
    assert operation_lines([run("", RATE)], {"e"}) == ()


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


def test_a_backup_is_compared_with_one_with_fleecing() -> None:
    (line,) = operation_lines([stalled("backup", 3.4), stalled("backup-fleecing", 0.05)])
    assert line == (
        "A backup on node lab, storage local stalls 4k random write, depth 1, each write synced "
        "(scsi, raw, cache none) for 3.4 s (at most 3.5 s); with fleecing 0.05 s (at most 0.06 s)"
    )


@pytest.mark.parametrize(
    ("during", "word"),
    [
        ("backup-fleecing", "A backup with fleecing"),
        ("move", "A move of the disk"),
        ("neighbor", "Another VM"),
        ("restore", "The restore of a backup"),
        ("snapshot", "A snapshot"),
        ("snapshot-ram", "A snapshot with the memory of the VM"),
        ("delete-snapshot", "The removal of a snapshot"),
    ],
)
def test_each_operation_has_a_sentence(during: str, word: str) -> None:
    (line,) = operation_lines([stalled(during, 1.25)])
    assert line.startswith(f"{word} on node lab, storage local stalls ")
    assert line.endswith("for 1.2 s (at most 1.3 s)")


def test_workloads_that_differ_in_their_operation_have_different_descriptions() -> None:
    """Terminal, page and metrics show this description."""
    loads = [{}, {"touch": "first"}, {"vms": 4}, *({"during": name} for name in DISK_OPERATIONS)]
    loads += [
        {"during": NEIGHBOR, "neighbor_iops": 100},
        {"during": "move", "target_rate": 8 * MIB},
    ]
    plain = case("scsi.raw.none")
    texts = [
        workload_text(replace(plain, parameters={**plain.parameters, **load})) for load in loads
    ]
    assert len(set(texts)) == len(texts)
    assert texts[-2].endswith(", beside another VM at 100 IOPS")
    assert texts[-1].endswith(", during a move of the disk, target limited to 8M/s")


def test_a_gap_below_the_resolution_is_no_number() -> None:
    (line,) = operation_lines([stalled("snapshot", 1.12, resolution=1.1)])
    assert line.endswith("for less than 2.3 s")


@pytest.mark.parametrize("spacing", [0.1, 1.0, 1.12])
def test_no_stall_is_longer_than_its_sentence_says(spacing: float) -> None:
    """500 I/O per second, and a stall of any length that begins at any time between two looks."""
    for length, phase in itertools.product(range(10, 40, 3), range(0, 10, 2)):
        stall, begin = length / 10 * spacing, (25.03 + phase / 10) * spacing
        times = [number * spacing for number in range(60)]
        done = [int(500 * (min(at, begin) + max(0.0, at - begin - stall))) for at in times]
        looks = [
            Look(at, Progress(operations=one, latencies=()))
            for at, one in zip(times, done, strict=True)
        ]
        (line,) = operation_lines([stalled("move", *longest_gap(looks, 20 * spacing))])
        most = float(re.findall(r"(?:at most|less than|for) ([0-9.]+) s", line)[-1])
        assert stall <= most


def test_the_newest_run_counts_in_any_order() -> None:
    newest, oldest = stalled("backup", 9.0), stalled("backup", 3.4, number=1)
    lines = {operation_lines(runs) for runs in ([newest, oldest], [oldest, newest])}
    assert len(lines) == 1
    assert "for 9 s (" in next(iter(lines))[0]


def test_other_loads_and_other_runs_are_not_mixed_with_it() -> None:
    other = stalled("backup-fleecing", 0.05, iodepth=8)
    lines = operation_lines([stalled("backup", 3.4), other, run("", RATE)])
    assert len(lines) == 2
    assert "; with fleecing" not in lines[0]


def test_two_configurations_have_different_sentences() -> None:
    plain = stalled("backup", 3.4)
    chain = f"{plain.definition.scenario}.chain-3"
    chained = replace(plain, definition=replace(plain.definition, scenario=chain))
    lines = operation_lines([plain, chained])
    assert ["chain 3" in line for line in lines] == [False, True]


def test_the_gap_is_judged_like_a_stall() -> None:
    number = ("operation_gap", "", "")
    columns = figures_of({number: array("d", [0.5, 1.0])}, "fio")
    assert list(columns["operation_gap", ""]) == [0.5, 1.0]
    assert JUDGED["operation_gap"].kind == JUDGED["longest_stall"].kind
    assert not JUDGED["operation_gap"].more_is_better
