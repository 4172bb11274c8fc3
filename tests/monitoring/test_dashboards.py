"""Every panel query against a real Prometheus: the past backfilled, the present scraped."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvebench.metrics.state_metrics import CATALOG
from pvebench.model.definition import Definition
from pvebench.model.run import LATENCY_BOUNDS
from pvebench.store.live_results import main_metric
from testing.boards import (
    GRAYS,
    STANDS_IN,
    chosen,
    dashboards,
    panels,
    queries,
    substitute,
    variables,
)
from testing.monitored_demo import monitored
from testing.packs import ROOT
from testing.prometheus import Prometheus
from testing.stored_runs import FIRST

SAFE_PANELS = {"text", "table", "timeseries", "stat", "row", "state-timeline", "heatmap"}
SAFE_TRANSFORMATIONS = {
    "convertFieldType",
    "groupingToMatrix",
    "merge",
    "organize",
    "sortBy",
    "labelsToFields",
    "timeSeriesTable",
    "configFromData",
}
MAY_BE_EMPTY = {
    ("pvebench-operations", "Drive wear"): "simulated drives report none, as the panel says",
    ("pvebench-operations", "Waiting for"): "nothing does in the demo",
    ("pvebench-operations", "Failing and stale cases"): "the defaults may have none",
    ("pvebench-operations", "Several VMs at the same time"): "the demo has one VM a node",
    **{
        ("pvebench-operations", title): "only one node of the demo has operations"
        for title in (
            "Effect of each operation",
            "Longest gap",
            "p99 before, during and after",
            "Recovery",
            "Lost I/O",
        )
    },
    ("pvebench-case", "Host CPU power"): "needs node_exporter's collector rapl",
    (
        "pvebench-case",
        "Throughput, baseline and noise",
    ): "dots are drawn where a run ended just then",
    ("pvebench-case", "Sync latency"): "the default case does not sync",
    ("pvebench-case", "Completion latency distribution"): "the default case keeps none",
    ("pvebench-case", "All configurations"): "the default workload does not sync",
}
"""Panels that may be empty, and why; every other one must say something."""
NOT_ALWAYS = {
    ("pvebench-operations", "Node status"): "a node runs, waits or is stuck, never all",
    ("pvebench-operations", "Writes by storage"): "budgets and plans belong to a service",
}
"""Panels of which some queries may be empty beside those that the kind of panel allows."""
EITHER_OR = {"stat", "timeseries"}
"""Kinds of panels whose queries are alternatives: plus and minus, operations and bytes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with monitored(tmp_path_factory.mktemp("monitoring"), days=26) as server:
        yield server


def dashboard(uid: str) -> dict[str, Any]:
    return next(one for one in dashboards() if one["uid"] == uid)


def results(server: Prometheus, uid: str, expression: str, *, every: bool) -> list[dict[str, Any]]:
    return server.query(substitute(expression, chosen(server, dashboard(uid), every=every)))


@pytest.mark.parametrize("every", [False, True], ids=["defaults", "each All"])
@pytest.mark.parametrize("uid", [one["uid"] for one in dashboards()])
def test_every_panel_query_returns_data(server: Prometheus, uid: str, every: bool) -> None:
    board = dashboard(uid)
    values = chosen(server, board, every=every)
    silent, strange = [], []
    for panel in panels(board):
        found = {
            target["refId"]: server.query(substitute(target["expr"], values))
            for target in panel.get("targets", [])
        }
        where = (uid, panel["title"])
        assert not found.pop(GRAYS, None)  # the exporter answers
        instead = found.pop(STANDS_IN, None)
        # In a timeline both for a step: what begins has no bar yet.
        both = panel["type"] == "state-timeline"
        if instead is not None and not (bool(instead) ^ any(found.values()) or (both and instead)):
            strange.append(where)
        strange += [
            where
            for entries in found.values()
            for entry in entries
            if not math.isfinite(float(entry["value"][1]))
        ]
        some = panel["type"] in EITHER_OR or where in NOT_ALWAYS
        answered = any(found.values()) if some else all(found.values())
        if found and not answered and where not in MAY_BE_EMPTY:
            silent.append((panel["title"], [ref for ref, entries in found.items() if not entries]))
    assert (silent, strange) == ([], [])


@pytest.mark.parametrize("uid", [one["uid"] for one in dashboards()])
def test_every_query_over_time_works_as_a_range(server: Prometheus, uid: str) -> None:
    values = chosen(server, dashboard(uid), every=True)
    for panel in panels(dashboard(uid)):
        for target in panel.get("targets", []):
            if target.get("range"):
                server.query_range(substitute(target["expr"], values), days=20, step=6 * 3600)


def one_query(uid: str, title: str, ref: str = "A") -> str:
    return next(
        expression
        for board, panel, name, expression in queries()
        if (board, panel, name) == (uid, title, ref)
    )


def test_a_cell_of_the_matrix_is_one_scenario_the_same_in_all_tables(server: Prometheus) -> None:
    for title in ("IOPS", "Gap to the fastest", "Change from baseline"):
        expression = one_query("pvebench-matrix", title)
        found = results(server, "pvebench-matrix", expression, every=True)
        cells = [(entry["metric"]["disk"], entry["metric"]["cache"]) for entry in found]
        assert len(cells) == len(set(cells)), title
    measured = results(server, "pvebench-matrix", SCENARIOS, every=True)
    assert len(cells) == len(measured) > 4


SCENARIOS = 'count by (scenario) (pvebench_iops{node="$node",storage="$storage"})'


def test_the_matrix_names_one_fastest_setting_and_how_far_the_others_are(
    server: Prometheus,
) -> None:
    expression = one_query("pvebench-matrix", "Gap to the fastest")
    found = results(server, "pvebench-matrix", expression, every=True)
    values = [float(entry["value"][1]) for entry in found]
    assert values.count(1001) == 1
    assert any(-100 < value < 0 for value in values)


def test_the_upgrade_dashboard_finds_the_loss_of_the_storys_last_upgrade(
    server: Prometheus,
) -> None:
    expression = one_query("pvebench-upgrades", "Changed cases")
    changed = results(server, "pvebench-upgrades", expression, every=True)
    found = [entry for entry in changed if float(entry["value"][1]) < 0]
    assert found
    assert {entry["metric"]["node"] for entry in found} == {"pve1", "pve2"}
    for entry in found:
        assert entry["metric"]["workload"].startswith("randread")
        assert entry["metric"]["configuration"].startswith("iothread 1")
        assert float(entry["value"][1]) == pytest.approx(-40, abs=5)


def test_the_loss_of_the_storys_last_upgrade_is_certain(server: Prometheus) -> None:
    expression = one_query("pvebench-upgrades", "Changed cases", "E")
    found = results(server, "pvebench-upgrades", expression, every=True)
    certain = [entry for entry in found if entry["metric"]["workload"].startswith("randread")]
    assert certain
    assert {float(entry["value"][1]) for entry in certain} == {1.0}


def test_what_is_compared_with_itself_is_not_called_the_same(server: Prometheus) -> None:
    """Without an upgrade both sides are the one environment that there is."""
    board = dashboard("pvebench-upgrades")
    values = chosen(server, board, every=True)
    for title, refs in (("Compared cases", "ABC"), ("Throughput change, %", "AB")):
        asked = [one_query(board["uid"], title, ref) for ref in refs]

        def answered(before: str, asked: list[str] = asked) -> list[dict[str, Any]]:
            every = [server.query(substitute(one, values | {"before": before})) for one in asked]
            return [entry for entries in every for entry in entries]

        assert answered(values["before"]), title
        assert not answered(values["after"]), title


def test_the_overview_counts_the_slower_cases_each_once(server: Prometheus) -> None:
    expression = one_query("pvebench-overview", "Cases", "C")
    found = results(server, "pvebench-overview", expression, every=True)
    slower = server.query("pvebench_change_state == -2")
    labels = ("node", "scenario", "workload")
    cases = {tuple(one["metric"][name] for name in labels) for one in slower}
    assert 0 < len(cases) < len(slower)
    assert float(found[0]["value"][1]) == len(cases)


def test_a_link_from_a_change_shows_the_cases_of_that_change_and_no_other(
    server: Prometheus,
) -> None:
    board = dashboard("pvebench-upgrades")
    expression = one_query(board["uid"], "Cases of open changes")
    (known,) = server.query("pvebench_change_case_info")
    labels = ("node", "scenario", "workload")

    def cases(entries: list[dict[str, Any]]) -> set[tuple[str, ...]]:
        return {tuple(one["metric"][name] for name in labels) for one in entries}

    def listed(change: str) -> set[tuple[str, ...]]:
        values = chosen(server, board, every=True) | {"change": change}
        return cases(server.query(substitute(expression, values)))

    assert listed(known["metric"]["change"]) == cases([known])
    slower = cases(server.query("pvebench_change_state < 0"))
    assert listed(".*") == slower | cases([known])
    assert len(slower) > 30


def test_windows_has_columns_beside_those_of_the_same_configuration_with_linux(
    tmp_path: Path,
) -> None:
    """By promtool; of each system, the best of three passes counts."""
    values = {"node": "n", "scenario": "s.scsi", "held": "300"}
    expression = substitute(one_query("pvebench-diskmark", "MB/s"), values)
    workload = 'workload="w", direction="read"'
    options = 'rw="randread", block_size_bytes="4096", io_depth="8", jobs="8"'
    series = {f"pvebench_workload_info{{{workload}, {options}}}": "1x9"}
    for system, best in (("", 7_100), (".os-windows", 800), (".os-windows-else", 9_000)):
        place = f'{{node="n", scenario="s.scsi{system}", {workload}}}'
        passes = f"{best - 5}e6 {best}e6 {best - 9}e6x7"
        series[f"pvebench_bandwidth_bytes_per_second{place}"] = passes
    samples = [
        {"labels": f'{{test="7  RND4K Q8T8", direction="{title}"}}', "value": best}
        for title, best in (("read", 7_100), ("Windows read", 800))
    ]
    rows = [{"series": name, "values": passes} for name, passes in series.items()]
    check = {"expr": expression, "eval_time": "5m", "exp_samples": samples}
    test_file = {"interval": "1m", "input_series": rows, "promql_expr_test": [check]}
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [test_file]}), "utf-8")
    command = ["promtool", "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_heatmap_counts_the_operations_of_the_runs_of_each_step(server: Prometheus) -> None:
    board = dashboard("pvebench-case")
    (case, *_) = server.query('pvebench_latency_seconds_bucket{le="+Inf"}')
    values = chosen(server, board, every=True) | {"__rate_interval": "2d"} | case["metric"]
    asked = substitute(one_query(board["uid"], "Completion latency distribution"), values)
    found = server.query_range(asked, days=10, step=86400)
    by_bound = {entry["metric"]["le"]: dict(entry["values"]) for entry in found}
    assert set(by_bound) == set(LATENCY_BOUNDS)
    moments = by_bound["+Inf"]
    assert len(moments) >= 9
    for moment in moments:
        counts = [float(by_bound[bound][moment]) for bound in LATENCY_BOUNDS]
        assert counts == sorted(counts)
        assert counts[-1] > 0
        assert counts[0] < counts[-1]


def test_the_wall_shows_four_cases(server: Prometheus) -> None:
    for slot in "1234":
        expressions = [one_query("pvebench-wall", f"Case {slot}", ref) for ref in "AB"]
        found = [results(server, "pvebench-wall", one, every=True) for one in expressions]
        assert sum(map(len, found)) == 1


def test_the_level_of_a_storage_is_that_of_its_cases_relative_to_their_baselines(
    server: Prometheus,
) -> None:
    """A case without a baseline is compared with its latest result."""
    title = "Throughput relative to the baseline"
    found = results(server, "pvebench-overview", one_query("pvebench-overview", title), every=True)
    level = {f"{one['metric']['node']} {one['metric']['storage']}": one for one in found}
    baselines = {case_of(one): value_of(one) for one in server.query("pvebench_baseline_iops")}
    ratios: dict[str, list[float]] = {}
    for one in server.query("pvebench_iops"):
        ratio = value_of(one) / baselines.get(case_of(one), value_of(one))
        place = f"{one['metric']['node']} {one['metric']['storage']}"
        ratios.setdefault(place, []).append(ratio)
    assert level.keys() == ratios.keys()
    for place, some in ratios.items():
        expected = math.exp(math.fsum(map(math.log, some)) / len(some))
        assert value_of(level[place]) == pytest.approx(expected)


def case_of(entry: dict[str, Any]) -> tuple[str, ...]:
    return tuple(entry["metric"][name] for name in ("node", "scenario", "workload", "direction"))


def value_of(entry: dict[str, Any]) -> float:
    return float(entry["value"][1])


def test_every_metric_in_panels_and_rules_is_in_the_catalogue() -> None:
    known = {metric.exposed for metric in CATALOG.values()}
    rules = "".join(path.read_text("utf-8") for path in (ROOT / "prometheus/rules").glob("*.yml"))
    recorded = set(re.findall(r"record: (\S+)", rules))
    texts = [expression for _, _, _, expression in queries()] + [rules]
    for name in recorded:
        texts = [text.replace(name, "") for text in texts]
    texts = [re.sub(r'"[^"]*"', "", text) for text in texts]
    used = {name for text in texts for name in re.findall(r"\bpvebench_\w+", text)}
    assert used
    assert used <= known


FOREIGN_LABELS = {"job", "instance", "device", "alertname", "severity", "le"}
"""Of Prometheus itself, the bound of a bucket with it, and of node_exporter."""


def named_labels(text: str) -> set[str]:
    """The labels that a query groups or matches by, and those that a legend or a text shows."""
    groups = re.findall(r"\b(?:by|on|without|ignoring|group_left|group_right) ?\(([^)]*)\)", text)
    shown = re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)
    words = {"end", "else"}  # of the templates of alerts
    return {name for group in groups for name in re.findall(r"\w+", group)} | {*shown} - words


def made_labels(text: str) -> set[str]:
    made = re.findall(r'\blabel_replace\(.*?, ?"(\w+)", ?"', text)
    made += re.findall(r'\bcount_values(?: by \(\w+\))? \("(\w+)"', text)
    made += re.findall(r'\bcount_values\("(\w+)"', text)
    return set(made) | set(re.findall(r'\blabel_join\(.*?, ?"(\w+)", ?"', text))


def label_texts() -> list[tuple[str, str]]:
    """(where, text) of every query with its legend, and of every file of rules."""
    asked = [
        (f"{board['uid']}: {panel['title']}", f"{one['expr']} {one.get('legendFormat', '')}")
        for board in dashboards()
        for panel in panels(board)
        for one in panel.get("targets", [])
    ]
    rules = sorted((ROOT / "prometheus/rules").glob("*.yml"))
    return asked + [(path.name, path.read_text("utf-8")) for path in rules]


def test_every_label_that_queries_legends_and_rules_name_is_there() -> None:
    known = {label for metric in CATALOG.values() for label in metric.labels} | FOREIGN_LABELS
    texts = label_texts()
    assert {"configuration", "scenario"} <= {
        name for _, text in texts for name in named_labels(text)
    }
    unknown = {
        (where, name)
        for where, text in texts
        for name in named_labels(text) - made_labels(text) - known
    }
    assert unknown == set()


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_a_dashboard_keeps_to_classic_panels_of_grafana_12_4(board: dict[str, Any]) -> None:
    assert board["schemaVersion"] == 37
    assert board["editable"] is False
    ids = [panel["id"] for panel in panels(board)]
    assert len(ids) == len(set(ids))
    for panel in panels(board):
        assert panel["type"] in SAFE_PANELS
        assert panel["title"]  # those of a wall are in their descriptions
        if panel["type"] == "row":
            continue
        assert panel["description"]
        used = {entry["id"] for entry in panel.get("transformations", [])}
        assert used <= SAFE_TRANSFORMATIONS
        if panel["type"] == "table":
            assert panel["fieldConfig"]["defaults"]["custom"]["displayMode"]
        if panel["type"] != "text":
            assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_an_empty_panel_says_what_is_missing(board: dict[str, Any]) -> None:
    for panel in panels(board):
        if panel["type"] in {"stat", "table", "state-timeline", "heatmap"}:
            assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
    texts = [panel["options"]["content"] for panel in panels(board) if panel["type"] == "text"]
    assert board["uid"].startswith("pvebench-wall") or "No data?" in texts[0]


def test_a_table_names_the_values_of_its_queries_as_grafana_does() -> None:
    """Witness: `getValueText` of grafana/grafana, packages/grafana-prometheus, at 12.4.0.

    Of one query it is `Value`, of several `Value #A`: those of held values' color count too.
    """
    for where, panel in of_kind("table"):
        tables = [one for one in panel["targets"] if one.get("format") == "table"]
        for change in panel.get("transformations", []):
            named = {change["options"].get("valueField")} - {None}
            if change["id"] == "organize":
                named = {*change["options"].get("renameByName", ())}
            if change["id"] in {"organize", "groupingToMatrix"} and tables:
                letters = {one["refId"] for one in tables} - {GRAYS, STANDS_IN}
                some = {"Value"} if len(tables) == 1 else {f"Value #{one}" for one in letters}
                of_values = {one for one in named if one.startswith("Value")}
                assert some <= of_values or not of_values, (where, change["id"])


def of_kind(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """(where, panel) of every panel of a kind."""
    return [
        (f"{board['uid']}: {panel['title']}", panel)
        for board in dashboards()
        for panel in panels(board)
        if panel["type"] == kind
    ]


def looks(panel: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a panel's overrides say of the field of that name."""
    return {
        one["id"]: one["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byName", "options": name}
        for one in override["properties"]
    }


def test_what_is_not_measured_has_no_colour_in_a_grid() -> None:
    """Seen in a Grafana 12.4: it was as dark as the lowest value, and so was a single one."""
    grids = [
        (where, panel["fieldConfig"]["defaults"])
        for where, panel in of_kind("table")
        if panel["fieldConfig"]["defaults"]["custom"]["displayMode"] == "color-background"
    ]
    assert grids
    for where, defaults in grids:
        assert defaults["min"] == 0, where
        (null,) = [one["options"] for one in defaults["mappings"] if one["type"] == "special"]
        assert null["match"] == "null+nan", where
        assert null["result"] == {"text": "not measured", "color": "transparent", "index": 0}


def test_a_table_without_rows_has_no_link_and_no_colour() -> None:
    """Seen in a Grafana 12.4: its words were a link to nowhere, cut, beside a green dash."""
    for where, panel in of_kind("table"):
        defaults = panel["fieldConfig"]["defaults"]
        color = defaults.get("color", {})
        if color.get("mode") == "thresholds":
            color = defaults["thresholds"]["steps"][0]
        shade = color.get("fixedColor") or color.get("color") or color.get("mode")
        assert shade in {"text", "blue", "continuous-blues"} or not [
            one for one in panel["targets"] if one["refId"] == STANDS_IN
        ], where
        for target in panel["targets"]:
            if target["refId"] == STANDS_IN:
                assert ', "nothing", "' in target["expr"], where
                assert looks(panel, "status").keys() == {"custom.minWidth"}, where


def test_no_two_columns_of_a_table_have_the_same_name() -> None:
    """Seen in a Grafana 12.4: each of several columns "trend" had the values of the last one."""
    trends = 0
    for where, panel in of_kind("table"):
        names = [
            one["value"]
            for override in panel["fieldConfig"]["overrides"]
            for one in override["properties"]
            if one["id"] == "displayName"
        ]
        trends += sum(name.startswith("trend") for name in names)
        assert len(names) == len(set(names)), where
    assert trends > 10


def test_the_switch_of_the_axis_reaches_each_chart_that_it_is_said_of() -> None:
    case = {panel["title"]: panel for panel in panels(dashboard("pvebench-case"))}
    panel = case["Throughput, baseline and noise"]
    (zero,) = [one for one in panel["targets"] if one.get("legendFormat") == "zero"]
    assert "$axis" in zero["expr"]
    assert looks(panel, "zero")["custom.hideFrom"]["legend"] is True


@pytest.mark.parametrize(
    ("workload", "unit", "metric"),
    [
        ("write-1M-qd8", "Bps", "pvebench_bandwidth_bytes_per_second"),
        ("randread-4k-qd1", "iops", "pvebench_iops"),
    ],
)
def test_a_case_is_shown_in_the_unit_of_its_workload(
    server: Prometheus, workload: str, unit: str, metric: str
) -> None:
    values = chosen(server, dashboard("pvebench-case"), every=False) | {"workload": workload}
    for title in ("Latest value", "Throughput, baseline and noise"):
        found, named = (
            server.query(substitute(one_query("pvebench-case", title, ref), values))
            for ref in ("A", "unit")
        )
        (measured,) = server.query(substitute(f"{metric}{{{THE_CASE}}}", values))
        assert [one["metric"]["unit"] for one in named] == [unit]
        assert float(found[0]["value"][1]) == pytest.approx(float(measured["value"][1]), rel=0.01)


THE_CASE = 'node="$node",scenario="$scenario",workload="$workload"'


def test_names_in_timelines_have_room_on_their_left() -> None:
    """Seen in a Grafana 12.4: it measures them a little narrower than it draws them."""
    for where, panel in of_kind("state-timeline"):
        for target in panel["targets"]:
            assert target["legendFormat"].startswith("\u2007\u2007"), where


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_no_two_panels_overlap_and_none_leaves_the_grid(board: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        x, y, width, height = (place[key] for key in "xywh")
        assert x + width <= 24
        mine = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert not mine & cells, panel["title"]
        cells |= mine
    heights = {row for _, row in cells}
    assert heights == set(range(max(heights) + 1))


def with_links() -> list[str]:
    """Return the files that lead to dashboards: the dashboards themselves, and the alerts."""
    alerts = ROOT / "prometheus/rules/alerts.yml"
    return [
        path.read_text("utf-8") for path in [*(ROOT / "grafana/dashboards").glob("*.json"), alerts]
    ]


def test_every_link_leads_to_a_dashboard_that_exists() -> None:
    uids = {board["uid"] for board in dashboards()}
    linked = {uid for text in with_links() for uid in re.findall(r"/d/([\w-]+)\?", text)}
    assert "pvebench-case" in linked
    assert linked <= uids


def test_rows_of_a_configuration_lead_to_its_comparison() -> None:
    """Both sides have a node and a storage, A has the configuration."""
    sides = {"node_a", "node_b", "storage_a", "storage_b"}
    found = 0
    for where, panel in of_kind("table"):
        config = panel["fieldConfig"]
        shown = [config["defaults"].get("links", [])]
        shown += [
            one["value"]
            for each in config["overrides"]
            for one in each["properties"]
            if one["id"] == "links"
        ]
        for links in shown:
            urls = [one["url"] for one in links]
            compared = [one for one in urls if "/d/pvebench-compare?" in one]
            if any("/d/pvebench-case?" in one for one in urls) and "Failing and stale" not in where:
                hidden = "'storage': True" in str(panel.get("transformations"))
                assert compared or hidden, where
            for url in compared:
                found += 1
                assert sides <= set(re.findall(r"var-(\w+)=", url)), where
    assert found > 5


def test_a_link_to_a_change_sets_the_time_range_around_it() -> None:
    links = [text for text in map(json.dumps, dashboards()) if "var-change=" in text]
    assert links
    assert all("&from=${__data.fields.start.numeric}&to=now" in text for text in links)


def test_the_comparison_is_in_sight_and_no_board_inherits_the_range_of_another() -> None:
    for board in dashboards():
        if not board["uid"].startswith("pvebench-wall"):
            first, menu, year = board["links"]
            assert first["url"] == "/d/pvebench-compare"
            assert not menu["keepTime"]
            assert year["url"] == f"/d/{board['uid']}?from=now-1y&to=now"


def test_operations_has_one_row_per_node(server: Prometheus) -> None:
    found = results(
        server,
        "pvebench-operations",
        one_query("pvebench-operations", "Scheduler state"),
        every=True,
    )
    assert sorted(one["metric"]["node"] for one in found) == ["pve1", "pve2"]


def test_writes_of_a_day_are_not_those_of_the_whole_history(server: Prometheus) -> None:
    """Here, Prometheus has the counter since a minute ago, of a history of 26 days."""
    board, panel = "pvebench-operations", "Writes by storage"
    day, year = (results(server, board, one_query(board, panel, ref), every=True) for ref in "AC")
    assert day == []
    written = {
        one["metric"]["storage"]: float(one["value"][1])
        for one in server.query('pvebench_moved_bytes_total{direction="write"}')
    }
    assert {one["metric"]["storage"] for one in year} == written.keys()
    for one in year:
        days = 365 * written[one["metric"]["storage"]] / float(one["value"][1])
        assert 24 < days < 28


def test_the_comparison_is_a_sentence_in_numbers_of_its_table(server: Prometheus) -> None:
    board = "pvebench-compare"
    said = [
        one["metric"]
        for ref in "AB"
        for one in results(server, board, one_query(board, "B against A", ref), every=False)
    ]
    (sentence,) = said
    changes = results(server, board, one_query(board, "Results by workload", "C"), every=False)
    assert int(sentence["all"]) == len(changes) >= int(sentence["n"]) > 0
    assert sentence["clear"]


def test_the_comparison_lists_the_settings_that_differ_and_no_other(server: Prometheus) -> None:
    board = "pvebench-compare"
    values = chosen(server, dashboard(board), every=False)
    sides = {}
    for side in "ab":
        where = f'node="{values[f"node_{side}"]}",scenario="{values[side]}"'
        (info,) = server.query(f"pvebench_scenario_info{{{where}}}")
        sides[side] = info["metric"]
    named = {"scenario", "configuration", "disk"}
    for side, other in ("ab", "ba"):
        rows = results(
            server, board, one_query(board, "Settings that differ", side.upper()), every=False
        )
        listed = {one["metric"]["setting"]: one["metric"].get(side.upper()) for one in rows}
        expected = {
            name: sides[side].get(name)
            for name in {*sides["a"], *sides["b"]} - named
            if sides[side].get(name) != sides[other].get(name)
        }
        assert listed == expected
        assert {"node", "storage"} <= listed.keys()


def test_a_band_of_the_comparison_is_the_noise_of_the_verdict(server: Prometheus) -> None:
    board = "pvebench-compare"
    found = results(server, board, one_query(board, "Throughput", "A"), every=False)
    lines = {
        (one["metric"]["workload"], one["metric"].get("edge")): float(one["value"][1])
        for one in found
    }
    table = results(server, board, one_query(board, "Results by workload", "D"), every=False)
    ordinary = {one["metric"]["workload"] for one in table}
    banded = {workload for workload, edge in lines if edge == " upper"}
    assert banded
    assert banded <= ordinary
    for workload in banded:
        value, upper, lower = (lines[workload, edge] for edge in (None, " upper", " lower"))
        assert lower < value < upper
        assert upper - value == pytest.approx(value - lower)


def test_every_link_names_variables_that_its_target_has() -> None:
    names = {board["uid"]: {one["name"] for one in variables(board)} for board in dashboards()}
    for text in with_links():
        for uid, rest in re.findall(r"/d/([\w-]+)\?([^\"]+)", text):
            assert set(re.findall(r"var-(\w+)=", rest)) <= names[uid]


def test_the_wall_fits_the_screen_and_has_nothing_to_operate() -> None:
    board = dashboard("pvebench-wall")
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels(board)) == 27
    assert [one["name"] for one in variables(board)] == ["held", "scenario", "workload"]
    assert {one["hide"] for one in variables(board)} == {2}
    assert board["timepicker"]["hidden"] is True
    assert {panel["type"] for panel in panels(board)} == {"stat", "timeseries"}
    for panel in panels(board):
        assert not re.search(r"\$(?!(held|scenario|workload)\b|\d)", str(panel["targets"]))
        assert panel["datasource"]["uid"] == "pvebench-prometheus"
        _assert_nothing_is_small(panel, least=28)
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {
            "pvebench-prometheus"
        }


def _assert_nothing_is_small(panel: dict[str, Any], *, least: float) -> None:
    """From 5 meters, less than 28 pixels of a 43-inch screen cannot be read."""
    if panel["type"] == "stat":
        sizes = panel["options"]["text"]
        assert min(sizes["titleSize"], sizes["valueSize"]) >= least, panel["title"]
    else:
        assert panel["fieldConfig"]["defaults"]["custom"]["axisPlacement"] == "hidden"
        assert panel["options"]["legend"]["showLegend"] is False


def test_no_panel_of_a_wall_has_a_title_which_would_be_small() -> None:
    board = json.loads((ROOT / "grafana/dashboards/wall.json").read_text("utf-8"))
    assert {panel["title"] for panel in board["panels"]} == {""}


def test_the_next_case_has_its_name_on_operations_and_wall(server: Prometheus) -> None:
    """The simulation's second node waits for it."""
    for uid, panel, ref, label in (
        ("pvebench-operations", "Node status", "G", "next"),
        ("pvebench-wall", "Activity", "D", "title"),
    ):
        (found,) = results(server, uid, one_query(uid, panel, ref), every=True)
        assert re.match(r"\w+ (random|sequential) (read|write)", found["metric"][label])


def test_every_other_dashboard_asks_the_data_source_that_is_chosen() -> None:
    for board in dashboards():
        if board["uid"].startswith("pvebench-wall"):
            continue
        assert variables(board)[0]["name"] == "datasource"
        for panel in panels(board):
            for target in panel.get("targets", []):
                assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("size", [None, 512, 4096, 65000, 65535, 65536, 70000, 131072, 1 << 20])
def test_boards_show_the_rate_that_is_the_main_metric_of_a_block_size(size: int | None) -> None:
    definition = Definition.of(FIRST)
    parameters = {key: value for key, value in definition.parameters.items() if key != "bs"}
    sized = replace(definition, parameters=parameters | ({"bs": size} if size else {}))
    text = (ROOT / "grafana/dashboards/overview.json").read_text("utf-8")
    patterns = set(re.findall(r'block_size_bytes=~\\"([^"]*\[[^"\\]*)', text))
    large = {pattern for pattern in patterns if re.fullmatch(pattern, str(1 << 20))}
    matching = {pattern for pattern in patterns if re.fullmatch(pattern, str(size or ""))}
    assert len(large) == len(patterns - large) == 1
    assert matching == (large if main_metric(sized) == "bandwidth" else patterns - large)


def test_the_committed_dashboards_are_what_their_source_builds() -> None:
    command = [sys.executable, str(ROOT / "grafana" / "builder" / "build.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_prometheus_configuration_is_valid() -> None:
    command = ["promtool", "check", "config", str(ROOT / "prometheus" / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_first_result_is_a_point_and_limits_of_bands_are_not() -> None:
    """Seen in a Grafana 12.4: a line of one value is invisible without its point."""
    for where, panel in of_kind("timeseries"):
        assert panel["fieldConfig"]["defaults"]["custom"]["showPoints"] == "auto", where
        for override in panel["fieldConfig"]["overrides"]:
            look = {one["id"]: one["value"] for one in override["properties"]}
            if look.get("custom.lineWidth") == 0:
                assert look["custom.showPoints"] == "never", where
