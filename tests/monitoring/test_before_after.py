"""What Before/after says of few runs: asked of Prometheus' own engine, by promtool.

Witness: the rules of evaluation are those of promtool, of the same source as the server.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from testing.boards import queries, substitute

HOUR = 3600
WINDOW_HOURS = 24
BEFORE_HOUR, UPGRADE_HOUR, AFTER_HOUR = 24, 36, 72
CHOSEN = {
    "node": ".*",
    "storage": ".*",
    "window": f"{WINDOW_HOURS}h",
    "noise": "0.05",
    "held": str(AFTER_HOUR * HOUR),
    "before": str(BEFORE_HOUR * HOUR),
    "after": str(AFTER_HOUR * HOUR),
}
HOURS_BETWEEN_RUNS = {"often": 6, "daily": 48}
"""Workload -> so often it is run; `daily` has one run in each window."""


def asked(ref: str) -> str:
    """Return the query of a column of the table of cases."""
    here = ("pvebench-upgrades", "Changed cases", ref)
    expression = next(one for *where, one in queries() if tuple(where) == here)
    return substitute(expression, CHOSEN)


def iops(run: int, *, upgraded: bool) -> float:
    """Return a run's IOPS: two fifths less after the upgrade, and a little noise."""
    return (600.0 if upgraded else 1000.0) + run % 3


def held(workload: str, hours: int) -> list[dict[str, str]]:
    """Return what is scraped of a workload each hour: its last value, and when that run was."""
    between = HOURS_BETWEEN_RUNS[workload]
    # The run at the upgrade is the first of the new software.
    runs = [(hour - UPGRADE_HOUR) // between for hour in range(hours)]
    values = {
        "pvebench_iops": [iops(run, upgraded=run >= 0) for run in runs],
        "pvebench_run_timestamp_seconds": [UPGRADE_HOUR + run * between for run in runs],
        "pvebench_change_threshold_ratio": [0.02] * hours,
    }
    case = f'job="pvebench",instance="a",node="pve1",storage="s",scenario="c",workload="{workload}"'
    labels = {
        "pvebench_iops": f'{case},direction="read"',
        "pvebench_run_timestamp_seconds": case,
        "pvebench_change_threshold_ratio": f'{case},direction="read",metric="throughput"',
    }
    return [
        {"series": f"{name}{{{labels[name]}}}", "values": " ".join(map(str, some))}
        for name, some in values.items()
    ]


def assert_that(directory: Path, expectations: dict[str, list[str]]) -> None:
    """Ask for expressions: each gives these workloads and no other."""
    checks = [
        {
            "expr": f"group by (workload) ({expression})",
            "eval_time": f"{AFTER_HOUR}h",
            "exp_samples": [{"labels": f'{{workload="{one}"}}', "value": 1} for one in workloads],
        }
        for expression, workloads in expectations.items()
    ]
    some = [one for workload in HOURS_BETWEEN_RUNS for one in held(workload, AFTER_HOUR + 1)]
    test = {"interval": "1h", "input_series": some, "promql_expr_test": checks}
    path = directory / "before_after.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [test]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_of_a_side_with_one_run_chance_is_not_said_and_no_change_is_certain(tmp_path: Path) -> None:
    """The noise is the verdict's: here 2% of a change by 40%."""
    before, chance, certain = (f"({asked(ref)})" for ref in "BDE")
    assert_that(
        tmp_path,
        {
            before: ["daily", "often"],
            chance: ["often"],
            certain: ["often"],
            f"{certain} == 1": ["often"],
            f"{chance} == 0.02": ["often"],
        },
    )
