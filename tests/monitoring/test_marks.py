"""Marks of changes in charts over time: asked of Prometheus' own engine, by promtool.

Witness: the rules of evaluation are those of promtool, of the same source as the server.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from testing.boards import dashboards, substitute

HOURS = 72
BEGAN = 24
CASE = {"node": "pve1", "scenario": "ceph.scsi.raw.none", "workload": "w"}
CHOSEN = CASE | {"storage": "ceph", "change": ".*", "held": "end()"}
INFO = 'node="pve1",storage="ceph",kind="level",severity="warning",since="d",summary="slower"'
LABELS = '{job="j",instance="a",change="c1",since="d",summary="slower"}'
HOUR = 3600


def series() -> list[dict[str, str]]:
    """Return a change that is known from the 30th hour on, and began earlier."""
    known = f"_x30 %sx{HOURS - 30}"
    of = 'job="j",instance="a",change="c1"'
    case = ",".join(f'{name}="{value}"' for name, value in CASE.items())
    values = {
        f"pvebench_change_info{{{of},{INFO}}}": "1",
        f"pvebench_change_case_info{{{of},{case}}}": "1",
        f"pvebench_change_since_timestamp_seconds{{{of}}}": f"{BEGAN * HOUR}+0",
        'pvebench_exposition_timestamp_seconds{job="j",instance="a"}': "1",
    }
    of, info = 'job="j",instance="a",change="old"', INFO.replace("slower", "was slower")
    values |= {
        f'pvebench_closed_change_info{{{of},{info},state="resolved"}}': "1",
        f"pvebench_closed_change_begin_timestamp_seconds{{{of}}}": f"{10 * HOUR}+0",
        f"pvebench_closed_change_end_timestamp_seconds{{{of}}}": f"{20 * HOUR}+0",
    }
    return [{"series": name, "values": known % value} for name, value in values.items()]


def times(
    directory: Path,
    uid: str,
    chosen: dict[str, str],
    expected: dict[int, int],
    *,
    name: str = "Changes",
    labels: str = LABELS,
) -> None:
    """Check the time of the mark, in hours, that each moment gives; 0: none."""
    (board,) = (one for one in dashboards() if one["uid"] == uid)
    mark = next(one for one in board["annotations"]["list"] if one["name"] == name)
    assert mark["enable"] is (name == "Changes")
    asked = substitute(mark["expr"], chosen)
    checks = [
        {
            # What is read at the end of the range is read there of each of its points.
            "expr": asked.replace("end()", str(HOURS * HOUR)),
            "eval_time": f"{moment}h",
            "exp_samples": [{"labels": labels, "value": time * HOUR * 1000}] if time else [],
        }
        for moment, time in expected.items()
    ]
    # promtool loads samples to the last moment that is asked for.
    last = {"expr": "0", "eval_time": f"{HOURS}h", "exp_samples": [{"labels": "{}", "value": 0}]}
    test = {"interval": "1h", "input_series": series(), "promql_expr_test": [*checks, last]}
    path = directory / "marks.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_change_is_marked_from_its_start_to_the_present(tmp_path: Path) -> None:
    times(tmp_path, "pvebench-overview", CHOSEN, {22: 0, 24: 24, 25: 25, 60: 60, 72: 72})


@pytest.mark.parametrize("uid", ["pvebench-overview", "pvebench-upgrades"])
def test_a_change_is_marked_where_it_affects_a_case_that_is_shown(tmp_path: Path, uid: str) -> None:
    times(tmp_path, uid, CHOSEN, {60: 60})
    other = {"storage": "local", "scenario": "local.scsi.raw.none"}
    times(tmp_path, uid, CHOSEN | other, {60: 0})


def test_a_change_of_another_workload_is_not_marked(tmp_path: Path) -> None:
    for uid in ("pvebench-case", "pvebench-matrix"):
        times(tmp_path, uid, CHOSEN | {"workload": "idle"}, {60: 0})


def test_a_closed_change_is_marked_from_its_start_to_its_end_on_request(tmp_path: Path) -> None:
    labels = '{job="j",instance="a",change="old",since="d",state="resolved",summary="was slower"}'
    expected = {8: 0, 10: 10, 15: 15, 20: 20, 22: 0}
    times(tmp_path, "pvebench-overview", CHOSEN, expected, name="Closed changes", labels=labels)
