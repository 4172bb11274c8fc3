"""`pvebench judge` and `pvebench baseline`: files, faults, exit codes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvebench.analysis.judge import Judge
from pvebench.cli.main import run_cli
from pvebench.errors import ConfigError
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import progress_lines
from pvebench_lab.cli.judge import judged, read_history
from testing.packs import QUICK

Captured = pytest.CaptureFixture[str]


def history(path: Path, *, slower: float = 1.0, days: int = 40, after: int = 5) -> Path:
    rng = random.Random(3)
    lines = ["time,value,environment"]
    for day in range(days + after):
        value = 1000 * rng.gauss(1, 0.01) / (slower if day >= days else 1)
        stamp = f"2026-{1 + day // 28:02}-{1 + day % 28:02}T02:00:00Z"
        lines.append(f"{stamp},{value:.1f},{'9.1' if day < days else '9.2'}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def complaints(path: Path, lines: Sequence[str], capsys: Captured) -> list[str]:
    path.write_text("\n".join(lines), "utf-8")
    assert run_cli(["judge", str(path)]) == 2
    text = capsys.readouterr().err.removeprefix("pvebench: ")
    return [line.removeprefix(f"{path}:") for line in text.strip().splitlines()]


def test_a_slower_history_ends_with_1_and_a_sentence(tmp_path: Path, capsys: Captured) -> None:
    path = history(tmp_path / "disk.csv", slower=1.25)
    assert run_cli(["judge", str(path)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("1 regression: 1 slower\n")
    assert ": disk is 20% slower since environment 9.2 (95% CI" in text


def test_a_steady_history_ends_with_0(tmp_path: Path, capsys: Captured) -> None:
    assert run_cli(["judge", str(history(tmp_path / "disk.csv"))]) == 0
    assert capsys.readouterr().out.startswith(
        "No regressions. Changes above 2% ruled out: 1 unchanged.\n"
    )


def test_whether_more_is_better_depends_on_the_metric(tmp_path: Path, capsys: Captured) -> None:
    path = history(tmp_path / "disk.csv", slower=1 / 1.25)
    assert run_cli(["judge", str(path), "--metric", "latency_p99", "--format", "json"]) == 1
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change["moves"][0]["metric"] == "latency_p99"
    assert change["moves"][0]["change_ratio"] == pytest.approx(-0.25, abs=0.02)
    assert run_cli(["judge", str(path)]) == 0


@pytest.mark.parametrize(
    ("text", "what"),
    [("report", "fio's I/O per second"), ("benchmarkjs", "tool benchmarkjs"), ("pytest", "tool")],
)
def test_rates_are_not_judged_as_times(
    text: str, what: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(_REPORT) if text == "report" else _TOOL.format(text), "utf-8")
    assert run_cli(["judge", str(path), "--metric", "latency_p99"]) == 2
    said = capsys.readouterr().err
    assert f"1:1: {what}" in said
    assert "more is better, unlike latency_p99; select --metric throughput" in said


def test_every_fault_of_a_file_is_reported_with_its_place(tmp_path: Path, capsys: Captured) -> None:
    lines = ["time,value", "2026-01-01T00:00:00Z,1000", "yesterday,-5", "1767312000"]
    assert complaints(tmp_path / "bad.csv", lines, capsys) == [
        "3:1: 'yesterday' is not a time: write 2026-03-01T12:00:00Z or seconds",
        "3:11: '-5' is not from 1e-18 to 1e+18",
        "4:1: 1 cells, but the header has 2",
    ]


_COMMITS = [{"date": 1740787200000 + 1, "benches": [{"name": "b", "value": 9, "unit": "MB/s"}]}]
_DATA_JS = f"window.BENCHMARK_DATA = {json.dumps({'entries': {'disk': _COMMITS}})};"
_REPORT = {"fio version": "fio-3.33", "timestamp": 1740787200, "jobs": [
    {"jobname": "rr", "read": {"iops": 9.0, "bw_bytes": 36864}, "write": {"iops": 0}}
]}  # fmt: skip
_MORE = _REPORT | {"timestamp": 1740787260}
_IDLE = {"jobs": [{"jobname": "rr", "read": {"iops": float("nan")}, "write": {"iops": -9}}]}
_TOOL = _DATA_JS.replace("{", "{{").replace("}", "}}").replace('"date"', '"tool": "{}", "date"')


@pytest.mark.parametrize(
    ("text", "runs", "said"),
    [
        ("time,value\n1740787200000,9\n1740787200,9", {"mine": [9, 9]}, ""),
        ('"Time","Value"\n"2025-03-01 00:00:00","9"\n', {"mine": [9]}, ""),
        ("sep=,\nTime,a,b\n2025-03-01 00:00:00,9,\n", {"a": [9]}, "no value or 0: lines 3"),
        (
            "Time,a,b\n2025-03-01,undefined,undefined\n2025-03-01 00:00:01,8,null\n",
            {"a": [8]},
            "no value or 0: lines 2, 3\n",
        ),
        ("\n\ntime,value\n2025-03-01,9\n", {"mine": [9]}, ""),
        ("time;value\n2025-03-01;100,5\n", {"mine": [100.5]}, ""),
        ("time;value\n2025-03-01;1.234\n2025-03-01;1,5", {"mine": [1234, 1.5]}, ""),
        ("time,value\n1740787200,0\n1740787201,9", {"mine": [9]}, "lines 2\n"),
        (_DATA_JS, {"b": [9]}, ""),
        (json.dumps([_REPORT, _MORE]), {"rr read": [9, 9]}, ""),
        ("time;value\n2025-03-01;1.234\n", "2:12: '1.234' can mean", ""),
        ("time,value\n1,5e-324\n2,1e308", "2:3: '5e-324' is not from 1e-18", ""),
        ("time,value\n1,1.2 GB/s", "2:3: '1.2 GB/s' is not a number with a decimal point", ""),
        ("time,v,v\n1,9,9", "1:1: column 'v' is there twice; rename one", ""),
        ("time,value,unit\n1,9,MB/s", "1:1: unknown column 'unit'", ""),
        ('{"entries": 5}', "data.js of github-action-benchmark; write a table", ""),
        ('{"a":' + "[" * 200_000, "data.js of github-action-benchmark; write a table", ""),
        (json.dumps(_REPORT | {"timestamp": 0}), "1:1: report 1 has no time", ""),
        (json.dumps([_REPORT, _MORE | _IDLE]), {"rr read": [9]}, "no value or 0: lines 2\n"),
        (json.dumps(_REPORT | _IDLE), "2:1: no run has a value", "lines 1\n"),
        (_TOOL.format("cargo"), "tool cargo: less is better, unlike throughput; select", ""),
        (_TOOL.format("pytest"), {"b": [9]}, ""),
    ],
)  # fmt: skip
def test_histories_of_other_programs_are_read_or_named(
    text: str, runs: Any, said: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text, "utf-8")
    if isinstance(runs, str):
        with pytest.raises(ConfigError, match=re.escape(runs)):
            read_history(path, JUDGED["throughput"])
        assert said in capsys.readouterr().err
        return
    histories = read_history(path, JUDGED["throughput"]).histories
    assert {history.case: list(history.points.values) for history in histories} == runs
    assert all(1740787200 <= time < 1740787261 for each in histories for time in each.points.times)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["when,value", "1,2"], "1:1: no column 'time'; the columns are when, value"),
        (["time", "1"], "1:1: missing column 'value'; name the columns time, value, environ"),
        (["time,value"], "2:1: no runs after the header"),
        (["time,value", '1,"2'], "2:1: invalid CSV: unexpected end of data"),
    ],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, capsys: Captured, lines: list[str], expected: str
) -> None:
    assert any(expected in line for line in complaints(tmp_path / "bad.csv", lines, capsys))


def test_a_missing_file_is_reported(tmp_path: Path, capsys: Captured) -> None:
    assert run_cli(["judge", str(tmp_path / "none.csv")]) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_without_results_the_next_step_is_reported(tmp_path: Path, capsys: Captured) -> None:
    for command in (
        ["verdict"],
        ["baseline", "list"],
        ["baseline", "reset", "--all", "--reason", "x"],
    ):
        assert run_cli([*command, "--state", str(tmp_path)]) == 5
        assert "run `pvebench run` first" in capsys.readouterr().err


def test_a_baseline_of_no_case_is_refused(tmp_path: Path, capsys: Captured) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated"]
    assert run_cli(["run", *state, "--pack", str(QUICK)]) == 0
    assert run_cli(["verdict", *state]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\nInconclusive: [0-9]+ metrics of 12 cases\. ", text)
    assert run_cli(["verdict", *state, "--strict"]) == 10
    assert run_cli(["baseline", "accept", "--only", "*nvme*", "--reason", "x", *state]) == 5
    assert "no case matches '*nvme*'" in capsys.readouterr().err
    # Neither command decides about all cases, or some of them, without being asked to.
    for chosen in ([], ["--only", "*", "--all"]):
        for kind in ("accept", "reset"):
            assert run_cli(["baseline", kind, *chosen, "--reason", "x", *state]) == 2
            assert "--only GLOB, or all cases with --all" in capsys.readouterr().err
    assert run_cli(["baseline", "list", *state]) == 0
    assert "no decisions" in capsys.readouterr().out
    assert run_cli(["baseline", "reset", "--all", "--reason", "new disk", *state]) == 0
    assert "ignoring earlier runs of 12 cases" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_verdict_of_a_young_store_is_ten_lines_with_what_is_missing(
    form: str, tmp_path: Path, capsys: Captured
) -> None:
    state = ["--state", str(tmp_path), "--driver", "simulated"]
    assert run_cli(["run", *state, "--pack", str(QUICK), "--cycles", "2"]) == 0
    capsys.readouterr()
    assert run_cli(["verdict", *state, "--format", form]) == 0
    brief = capsys.readouterr().out
    assert len(brief.splitlines()) <= 10
    assert "Known: no verdict yet; each case needs 7 runs" in brief
    assert "Missing: 48 metrics with 5 more runs each" in brief
    assert run_cli(["verdict", *state, "--format", form, "--all"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "/rand" in line]
    assert len(rows) == len(set(rows)) == 48


def test_progress_names_the_end_of_missing_runs_and_what_no_run_decides(tmp_path: Path) -> None:
    path = history(tmp_path / "disk.csv", days=2, after=0)
    verdicts = judged(read_history(path, JUDGED["throughput"]), Judge())
    (report,) = verdicts.reports
    (late,) = report.verdicts
    noisy = replace(late, more_runs=0, reason="too noisy")
    verdicts = replace(verdicts, reports=(replace(report, verdicts=(late, noisy)),))
    assert list(progress_lines(verdicts)) == [
        "Known: no verdict yet; each case needs 7 runs",
        "Missing: 1 metric with 5 more runs each",
        "Undecidable: 1 metric, such as disk: too noisy",
    ]
    assert list(progress_lines(Verdicts())) == []
