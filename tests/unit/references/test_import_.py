"""Output of tools that is no history: `judge` and `import` name the tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.cli.main import run_cli

pytestmark = pytest.mark.lab

FORMS = [
    ("3;fio-3.33;x;0;0;5125040;5119920\n", "fio's terse output"),
    (
        "x: (g=0): rw=randrw, bs=(R) 4096B-4096B\nfio-3.33\nStarting 1 process\n",
        "fio's text output",
    ),
    ("111, 3884360, 0, 0, 0\n211, 3884361, 0, 0, 0\n", "a log of fio"),
    ("fio: pid=8281, err=84/file:io_u.c:2141, func=x, error=y\n", "messages of fio"),
    ("\nCommand Line: C:\\diskspd.exe -b8K -d900 D:\\t.dat\n\nInput", "output of diskspd"),
    ("<Results>\n  <System>\n", "XML or HTML, such as of diskspd"),
    ("scaling factor: 1\nlatency average = 1.200 ms\ntps = 833.3\n", "output of pgbench"),
    ("sysbench 1.0.20 (using system LuaJIT 2.1.0)\n", "output of sysbench"),
    ('{\n  "results": [\n    {\n      "command": "sleep 0.1",\n', "output of hyperfine"),
    ("command,mean,stddev,median,user,system,min,max\nls,1,,1,1,1,1,1\n", "output of hyperfine"),
    ('[\n {\n  "jmhVersion" : "1.36",\n', "output of JMH"),
    ('{"machine_info": {"node": "x"}, "benchmarks": []}', "output of pytest-benchmark"),
    ("fib 20   time:   [25.884 us 26.1 us 26.4 us]\n", "output of a benchmark of Rust"),
    (
        "goos: linux\nBenchmarkFib10-8  \t 5000000\t       325 ns/op\n",
        "output of a benchmark of Go",
    ),
]


@pytest.mark.parametrize(("text", "name"), FORMS)
@pytest.mark.parametrize("command", ["judge", "import"])
def test_output_of_another_tool_is_named_with_a_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, text: str, name: str
) -> None:
    file = tmp_path / "results"
    file.write_text(text, "utf-8")
    state = ["--state", str(tmp_path)] if command == "import" else []
    assert run_cli([command, *state, str(file)]) != 0
    printed = capsys.readouterr().err
    assert f"this is {name}" in printed
    assert "write a table with" in printed


def test_a_history_with_names_of_tools_is_read(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    file.write_text("time,value,case\n2026-03-01,5,sysbench 1.0 on HammerDB CLI\n", "utf-8")
    assert run_cli(["judge", str(file)]) == 0


def test_results_of_the_future_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "future.csv"
    file.write_text("time,value\n2026-03-01,5\n2996-03-02,5\n", "utf-8")
    assert run_cli(["judge", str(file)]) == 0
    assert "results of the future, up to 2996-03-02; check the times" in capsys.readouterr().err
