"""Every panel query against a real Prometheus that scraped a real exporter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pvebench.cli.instance import StoreSource
from pvebench.config import Settings
from pvebench.metrics import CATALOG, Page
from pvebench.web import Board, WebServer, listen
from pvebench.web.app import make_app
from support.packs import ROOT, simulate
from support.prometheus import Prometheus, free_port, prometheus

FILES = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
SAFE_PANELS = {"text", "table", "bargauge", "timeseries", "stat", "row"}
SAFE_TRANSFORMATIONS = {"groupingToMatrix", "merge", "organize", "sortBy"}


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in FILES]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard["panels"]
    return found


def queries() -> list[tuple[str, str, str]]:
    return [
        (dashboard["uid"], panel["title"], target["expr"])
        for dashboard in dashboards()
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
    ]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("monitoring")
    simulation = simulate(directory, start=datetime.now(UTC))
    simulation.worker.run()
    intervals = dict.fromkeys(simulation.store.case_keys(), 300.0)
    settings, now = Settings(node="lab", driver="simulated"), simulation.world.clock.now
    page = Page(
        StoreSource(simulation.store, lambda: settings, lambda: intervals, now), {}, now=now
    )
    page.refresh()
    exporter = f"127.0.0.1:{free_port()}"
    app = make_app(page=page, statuses=list, ready=lambda: True, board=Board(simulation.store))
    with WebServer(app, listen(exporter)), prometheus(directory / "p", exporter) as server:
        server.wait_for("pvebench_iops")
        yield server


def first_value(server: Prometheus, text: str) -> str:
    """Return what Grafana puts into a variable by default: the first value, sorted."""
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
    assert match, text
    values = {entry["metric"].get(match[2], "") for entry in server.query(match[1])}
    assert values - {""}, text
    return min(values - {""})


def defaults(server: Prometheus, dashboard: dict[str, Any], *, all_values: bool) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        if all_values and variable.get("includeAll"):
            chosen[variable["name"]] = variable["allValue"]
        else:
            text = substitute(variable["query"]["query"], chosen)
            chosen[variable["name"]] = first_value(server, text)
    return chosen


def substitute(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = re.sub(rf"\$\{{?{name}\b\}}?", value.replace("\\", "\\\\"), text)
    assert "$" not in text, text
    return text


@pytest.mark.parametrize("all_values", [False, True], ids=["defaults", "each All"])
@pytest.mark.parametrize(("uid", "panel", "expression"), queries())
def test_a_panel_query_returns_data(
    scraped: Prometheus, uid: str, panel: str, expression: str, all_values: bool
) -> None:
    dashboard = next(one for one in dashboards() if one["uid"] == uid)
    chosen = defaults(scraped, dashboard, all_values=all_values)
    found = scraped.wait_for(substitute(expression, chosen), seconds=5)
    assert all(entry["value"][1] != "NaN" for entry in found), panel


def test_the_matrix_of_raw_has_both_buses_and_both_cache_modes(scraped: Prometheus) -> None:
    expression = next(text for _, title, text in queries() if title == "IOPS, raw")
    chosen = defaults(scraped, dashboards()[0], all_values=True)
    cells = {
        (entry["metric"]["bus"], entry["metric"]["cache"])
        for entry in scraped.query(substitute(expression, chosen))
    }
    assert cells == {(bus, mode) for bus in ("scsi", "virtio") for mode in ("none", "writeback")}


def test_the_six_configurations_of_the_quick_pack_are_counted(scraped: Prometheus) -> None:
    found = scraped.query("count by (bus, cache, format) (pvebench_iops)")
    assert {entry["value"][1] for entry in found} == {"2"}
    assert len(found) == 6


def test_the_recording_rules_give_values(scraped: Prometheus) -> None:
    text = (ROOT / "prometheus" / "rules" / "pvebench.yml").read_text("utf-8")
    names = re.findall(r"record: (\S+)", text)
    assert names
    for name in names:
        assert scraped.wait_for(name, seconds=10), name


def test_every_metric_in_panels_and_rules_is_in_the_catalogue() -> None:
    known = {metric.exposed for metric in CATALOG.values()}
    rules = (ROOT / "prometheus" / "rules" / "pvebench.yml").read_text("utf-8")
    expressions = [expression for _, _, expression in queries()]
    expressions += re.findall(r"expr: (.+)", rules)
    used = {name for text in expressions for name in re.findall(r"\bpvebench_\w+", text)}
    assert used
    assert used <= known


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: str(dashboard["uid"]))
def test_a_dashboard_keeps_to_what_grafana_9_4_to_13_can_show(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] == 37
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(ids) == len(set(ids))
    for panel in panels(dashboard):
        assert panel["type"] in SAFE_PANELS
        assert panel["title"]
        assert panel["description"]
        used = {entry["id"] for entry in panel.get("transformations", [])}
        assert used <= SAFE_TRANSFORMATIONS
        if panel["type"] == "table":
            assert panel["fieldConfig"]["defaults"]["custom"]["displayMode"]
        if panel["type"] != "text":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["fieldConfig"]["defaults"]["unit"]


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: str(dashboard["uid"]))
def test_no_two_panels_overlap_and_none_leaves_the_grid(dashboard: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        place = panel["gridPos"]
        x, y, width, height = (place[key] for key in "xywh")
        assert x + width <= 24
        mine = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert not mine & cells, panel["title"]
        cells |= mine


def test_the_committed_dashboards_are_what_their_source_builds() -> None:
    command = [sys.executable, str(ROOT / "grafana" / "builder" / "build.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_prometheus_configuration_is_valid() -> None:
    command = ["promtool", "check", "config", str(ROOT / "prometheus" / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
