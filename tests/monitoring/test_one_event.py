"""One event on every board: throughput 40% lower, p99 and CPU per I/O 1.67 times as large.

Witness: the rules of evaluation are those of promtool, of the same source as the server.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pvebench.metrics.exposition import Families, text_of
from pvebench.metrics.verdict_collectors import collect_changes
from pvebench.model.run_metrics import JUDGED
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import headline, verdicts_data
from testing.boards import dashboards, panels, queries, substitute
from testing.changes import FINDING, MOVE
from testing.packs import ROOT

HOURS, UPGRADE_HOUR = 72, 36
LOG: Final = "Change log"
CASE: Final = 'job="pvebench",instance="a",node="pve1",storage="s",scenario="c",workload="w"'
RESULT: Final = f'{CASE},direction="read"'
CHANGE: Final = 'job="pvebench",instance="a",change="x"'
INFO: Final = f'{CHANGE},node="pve1",storage="s",kind="slower",severity="critical",since="d"'
AFTER: Final = {"throughput": 0.6, "latency_p99": 1.67, "cpu_cost": 1.67}
"""Metric -> after / before."""
SELECTED: Final = {
    "node": ".*",
    "storage": ".*",
    "window": "24h",
    "noise": "0.05",
    "before": str(24 * 3600),
    "after": str(HOURS * 3600),
    "held": "end()",
    "change": ".*",
    "scenario": "c",
    "workload": "w",
}


def event(summary: str, metric: str) -> dict[str, list[float]]:
    """Return every series of the event: one value per hour; the change is in the metrics."""

    def step(before: float, after: float) -> list[float]:
        return [before if hour < UPGRADE_HOUR else after for hour in range(HOURS + 1)]

    def always(value: float) -> list[float]:
        return [value] * (HOURS + 1)

    def ratio(name: str) -> float:
        change = AFTER[name] - 1
        return change if JUDGED[name].more_is_better else -change

    judged = {
        f'pvebench_{kind}{{{RESULT},metric="{name}"}}': always(value)
        for name in AFTER
        for kind, value in (
            ("change_ratio", ratio(name)),
            ("change_threshold_ratio", 0.02),
            ("change_state", -2),
        )
    }
    return judged | {
        f"pvebench_run_timestamp_seconds{{{CASE}}}": always(3600),
        f"pvebench_iops{{{RESULT}}}": step(1000, 600),
        f'pvebench_latency_percentile_seconds{{{RESULT},percentile="99"}}': step(0.001, 0.00167),
        # Not recorded: an imported past has no results of rules.
        f'pvebench_host_cpu_usage_cores{{{CASE},component="total"}}': step(1, 0.6 * 1.67),
        f'pvebench_scenario_info{{{CASE.rpartition(",")[0]},configuration="c"}}': always(1),
        'pvebench_workload_info{job="pvebench",instance="a",workload="w",description="d"}': always(
            1
        ),
        f"pvebench_change_effect_ratio{{{CHANGE}}}": always(ratio(metric)),
        f'pvebench_change_info{{{INFO},summary="{summary}"}}': always(1),
        f'pvebench_change_case_info{{{CHANGE},node="pve1",scenario="s.c",workload="w"}}': always(1),
    }


def column(uid: str, title: str, named: str) -> str:
    """Return the query of a table's column by its title."""
    (panel,) = (
        panel
        for board in dashboards()
        if board["uid"] == uid
        for panel in panels(board)
        if panel["title"] == title
    )
    (renames,) = (
        one["options"]["renameByName"]
        for one in panel["transformations"]
        if one["id"] == "organize"
    )
    (key,) = (key for key, value in renames.items() if value == named and "#" in key)
    ref = key.removeprefix("Value #")
    return query(uid, title, ref)


def query(uid: str, title: str, ref: str = "A") -> str:
    return next(text for *where, text in queries() if where == [uid, title, ref])


def values(
    directory: Path,
    expressions: dict[str, str],
    series: dict[str, list[float]],
    selected: dict[str, str] = SELECTED,
) -> None:
    """Check with promtool what each expression answers: a value for each expression."""
    checks = [
        {
            "expr": f"max(round(100 * ({substitute(text, selected)})))",
            "eval_time": f"{HOURS}h",
            "exp_samples": [{"labels": "{}", "value": float(expected)}],
        }
        for text, expected in expressions.items()
    ]
    some = [{"series": name, "values": " ".join(map(str, all_))} for name, all_ in series.items()]
    rules = {"interval": "1h", "input_series": some, "promql_expr_test": checks}
    path = directory / "event.yml"
    path.write_text(json.dumps({"rule_files": [], "tests": [rules]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


CODED = "100016700"
"""What a table shows as ×1.67, times 100."""


def test_every_board_gives_one_number_for_the_same_event(tmp_path: Path) -> None:
    by_metric = column("pvebench-case", "Changes by metric", "change")
    only = by_metric.replace("direction) (", "direction) (1 * ")
    values(
        tmp_path,
        {
            column("pvebench-upgrades", "Changed cases", "change"): "-4000",
            column("pvebench-upgrades", "Changed cases", "p99"): CODED,
            column("pvebench-upgrades", "Changed cases", "CPU per I/O"): CODED,
            column("pvebench-upgrades", "Cases of open changes", "change"): CODED,
            f"({only}) > 0": CODED,
            f"({only}) < 0": "-4000",
            column("pvebench-overview", "Open changes", "effect"): "-4000",
            column("pvebench-overview", "Storage summary", "change"): "-4000",
        },
        event("4k reads are 40% slower", "throughput"),
    )


@pytest.mark.parametrize("word", ["higher", "longer"])
def test_a_change_of_latency_is_a_factor_in_the_list_too(tmp_path: Path, word: str) -> None:
    effect = column("pvebench-overview", "Open changes", "effect")
    of_storage = column("pvebench-overview", "Storage summary", "change")
    shown = dict.fromkeys((effect, of_storage), CODED)
    values(tmp_path, shown, event(f"p99 latency 67% {word} since x", "latency_p99"))


@pytest.mark.parametrize(
    ("figure", "ratio", "said", "shown"),
    [
        ("throughput", 0.6, "40% slower", "-4000"),
        ("latency_p99", 1.67, "67% higher", CODED),
        ("cpu_cost", 1.67, "67% higher", CODED),
    ],
)
def test_boards_show_the_number_that_page_api_and_command_say(
    tmp_path: Path, figure: str, ratio: float, said: str, shown: str
) -> None:
    """The own page, the API and the command share their sentences: test_overall_state."""
    effect = math.log(ratio) * (1 if JUDGED[figure].more_is_better else -1)
    move = replace(MOVE, figure=JUDGED[figure], effect=effect)
    change = replace(FINDING, id="x", storages=("s",), severity="critical", moves=(move,))
    verdicts = Verdicts(version=1, changes=(change,))
    (of_api,) = verdicts_data(verdicts)["changes"]
    assert said in of_api["text"]
    assert said in headline(verdicts)
    assert abs(of_api["moves"][0]["change_ratio"]) == pytest.approx(abs(ratio - 1))
    families = Families()
    collect_changes(verdicts, families)
    text = text_of([families])
    some = re.findall(r"(?m)^(pvebench_\w+)\{(.*)\} (\S+)$", text)
    series = {
        f'{name}{{job="pvebench",instance="a",{labels}}}': [float(value)] * (HOURS + 1)
        for name, labels, value in some
    }
    of_lists = {column("pvebench-overview", title, "effect") for title in ("Open changes", LOG)}
    values(tmp_path, dict.fromkeys(of_lists, shown), series)


def test_the_page_of_the_boards_states_the_convention() -> None:
    text = (ROOT / "docs/dashboards.md").read_text("utf-8")
    assert "×1.67" in text
    assert "−40%" in text  # noqa: RUF001 # the minus sign
    for board in dashboards():
        assert "ositive is better" not in json.dumps(board), board["uid"]
