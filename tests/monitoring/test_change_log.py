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
CLOSED_AFTER = 24
"""Hours for which the first change was open; it began 12 hours before the first sample."""
BEGAN = -12
CHOSEN = {"node": ".*", "held": str(HOURS * 3600)}
OVERVIEW = "pvebench-overview"


def labels(change: str, summary: str) -> str:
    about = (
        f'node="pve1",storage="s",kind="level",severity="warning",since="2026",summary="{summary}"'
    )
    return f'job="j",instance="a",change="{change}",{about}'


def input_series() -> list[dict[str, str]]:
    """Return a change that closed, and one that is open and whose sentence has changed."""
    closed = f"1x{CLOSED_AFTER - 1} _x{HOURS - CLOSED_AFTER}"
    infos = {
        labels("c1", "closed is 40% slower"): closed,
        labels("c2", "open was 20% slower"): closed,
        labels("c2", "open p99 67% longer"): f"_x{CLOSED_AFTER} 1x{HOURS - CLOSED_AFTER}",
    }
    series = [{"series": f"pvebench_change_info{{{one}}}", "values": v} for one, v in infos.items()]
    for change, lasts in (("c1", closed), ("c2", f"1x{HOURS}")):
        of = f'{{job="j",instance="a",change="{change}"}}'
        figures = {
            "pvebench_change_cases": "7",
            "pvebench_change_since_timestamp_seconds": str(BEGAN * 3600),
            "pvebench_change_effect_ratio": "-0.4",
        }
        series += [
            {"series": name + of, "values": lasts.replace("1x", f"{value}+0x")}
            for name, value in figures.items()
        ]
    return series


def asked(ref: str) -> str:
    here = (OVERVIEW, "Change log", ref)
    return substitute(next(one for *where, one in queries() if tuple(where) == here), CHOSEN)


@pytest.mark.parametrize(
    ("ref", "closed", "still_open"),
    [
        ("A", 1, 2),  # states
        ("B", 7, 7),  # cases
        ("C", -40, 1000140),  # 40% less; a factor of 1.40 of what is better when less
        ("D", (CLOSED_AFTER - 1 - BEGAN) * 3600, (HOURS - BEGAN) * 3600),  # seconds
    ],
)
def test_a_closed_change_stays_in_the_log_with_its_duration_and_the_open_one_is_there_once(
    tmp_path: Path, ref: str, closed: float, still_open: float
) -> None:
    samples = [
        {"labels": f"{{{labels('c1', 'closed is 40% slower')}}}", "value": closed},
        {"labels": f"{{{labels('c2', 'open p99 67% longer')}}}", "value": still_open},
    ]
    check = {"expr": asked(ref), "eval_time": f"{HOURS}h", "exp_samples": samples}
    test = {"interval": "1h", "input_series": input_series(), "promql_expr_test": [check]}
    path = tmp_path / "log.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
