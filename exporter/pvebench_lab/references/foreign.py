"""Recognition of the output of tools that is neither a history nor a table of storage results."""

from __future__ import annotations

import re
from typing import Final

_START: Final = 100_000
"""Characters of a file that are searched."""
_FLAGS: Final = re.MULTILINE | re.IGNORECASE
_SIGNS: Final = {
    "fio's terse output": r"^[2-5];fio-\d|^[^;\n]*;fio-\d",
    "fio's text output": r"^ *(read|write|trim) *: *(IOPS=|io=)|\(groupid=\d+, jobs=|^fio-\d",
    "a log of fio": r"\A\d+, *\d+, *[012], *\d+(, *\d+)*$",
    "messages of fio": r"\Afio: |verify failed at file",
    "output of diskspd": r"^Command Line: .*diskspd|\AInput parameters:",
    "output of pgbench": r"^tps = [\d.]+|^progress: [\d.]+ s, [\d.]+ tps|^latency average = ",
    "output of sysbench": r"^sysbench \d",
    "output of HammerDB": r"HammerDB CLI",
    "output of vdbench": r"\bVdbench\b",
    "output of hyperfine": r'\A\s*\{\s*"results":\s*\[\s*\{\s*"command"|\Acommand,mean,stddev',
    "output of JMH": r'"jmhVersion"|^Benchmark +(\(.*\) +)?Mode +Cnt',
    "output of pytest-benchmark": r'"machine_info"',
    "output of Google Benchmark": r'"cpu_scaling_enabled"|"run_type": "iteration"',
    "output of BenchmarkDotNet": r"BenchmarkDotNet",
    "output of a benchmark of Rust": r"\bbench: +[\d,.]+ | time: +\[[\d.]+ ",
    "output of a benchmark of Go": r"^Benchmark\S+\s+\d+\s+[\d.]+ ns/op",
    "XML or HTML, such as of diskspd": r"\A\s*<",
}


def foreign(text: str) -> str:
    """Return which tool's output a text is that could not be read; empty: unknown."""
    start = text[:_START]
    signs = _SIGNS.items()
    return next((name for name, sign in signs if re.search(sign, start, _FLAGS)), "")
