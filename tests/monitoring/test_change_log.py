"""The log of changes: asked of Prometheus' own engine, by promtool.

Witness: the rules of evaluation are those of promtool, of the same source as the server.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from testing.boards import queries, substitute

HOURS = 72
CLOSED, OPEN = (-12, 23), -6
"""Begin and end of the first change, and begin of the second one; in hours."""
CHOSEN = {"node": ".*", "held": str(HOURS * 3600)}
OVERVIEW = "pvebench-overview"


def labels(**more: str) -> str:
    every = {"job": "j", "instance": "a", "since": "2026-01-01", **more}
    return ",".join(f'{name}="{value}"' for name, value in every.items())


OF_CLOSED = {"change": "c1", "state": "resolved", "cause": "k", "summary": "c is 40% slower"}
OF_OPEN = {"change": "c2", "severity": "warning", "summary": "o p99 67% longer"}


def input_series() -> list[dict[str, str]]:
    """Return a change that closed, and one that is open."""
    where = {"node": "pve1", "storage": "s", "kind": "level"}
    closed, still = labels(**OF_CLOSED, metric="p", **where), labels(**OF_OPEN, **where)
    values = {f"pvebench_closed_change_info{{{closed}}}": 1, f"pvebench_change_info{{{still}}}": 1}
    for prefix, change, times in (
        ("closed_change", "c1", {"begin": CLOSED[0], "end": CLOSED[1]}),
        ("change", "c2", {"since": OPEN}),
    ):
        of = f'{{job="j",instance="a",change="{change}"}}'
        values |= {
            f"pvebench_{prefix}_cases{of}": 7,
            f"pvebench_{prefix}_effect_ratio{of}": -0.4,
        } | {
            f"pvebench_{prefix}_{name}_timestamp_seconds{of}": hours * 3600
            for name, hours in times.items()
        }
    return [{"series": one, "values": f"{value}+0x{HOURS}"} for one, value in values.items()]


def asked(ref: str) -> str:
    here = (OVERVIEW, "Change log", ref)
    return substitute(next(one for *where, one in queries() if tuple(where) == here), CHOSEN)


@pytest.mark.parametrize(
    ("ref", "closed", "still_open"),
    [
        ("A", 7, 7),  # cases
        ("B", -40, 1000140),  # 40% less; a factor of 1.40 of what is better when less
        ("C", (CLOSED[1] - CLOSED[0]) * 3600, (HOURS - OPEN) * 3600),  # seconds
    ],
)
def test_a_closed_change_stays_in_the_log_with_its_duration_and_the_open_one_is_there_once(
    tmp_path: Path, ref: str, closed: float, still_open: float
) -> None:
    samples = [
        {"labels": f"{{{labels(**OF_CLOSED)}}}", "value": closed},
        {"labels": f"{{{labels(**OF_OPEN, state='1')}}}", "value": still_open},
    ]
    check = {"expr": asked(ref), "eval_time": f"{HOURS}h", "exp_samples": samples}
    ask_promtool(tmp_path, input_series(), check)


def test_a_closed_change_is_there_once_while_two_sentences_of_it_are_known(tmp_path: Path) -> None:
    """As in an imported year, where a later judgment of a closed change words it differently."""
    (closed,) = (one for one in input_series() if "closed_change_info" in one["series"])
    again = {**closed, "series": closed["series"].replace("40% slower", "41% slower")}
    samples = [{"labels": f'{{change="{change}"}}', "value": 1} for change in ("c1", "c2")]
    expr = f"count by (change) ({asked('A')})"
    check = {"expr": expr, "eval_time": f"{HOURS}h", "exp_samples": samples}
    ask_promtool(tmp_path, [*input_series(), again], check)


@pytest.mark.parametrize("ref", ["A", "B", "C", "D", "E"])
def test_a_change_is_there_once_while_it_is_known_as_open_and_as_closed(
    tmp_path: Path, ref: str
) -> None:
    """As in a past of eight hours a sample, whose look-back reaches both: seen as an error."""
    both = [
        {**one, "series": one["series"].replace("pvebench_change_", "pvebench_closed_change_", 1)}
        for one in input_series()
        if 'change="c2"' in one["series"] and "since_timestamp" not in one["series"]
    ]
    samples = [{"labels": f'{{change="{change}"}}', "value": 1} for change in ("c1", "c2")]
    check = {
        "expr": f"count by (change) ({asked(ref)})",
        "eval_time": f"{HOURS}h",
        "exp_samples": samples,
    }
    ask_promtool(tmp_path, [*input_series(), *both], check)


def ask_promtool(directory: Path, series: list[dict[str, str]], check: dict[str, object]) -> None:
    test = {"interval": "1h", "input_series": series, "promql_expr_test": [check]}
    path = directory / "log.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
