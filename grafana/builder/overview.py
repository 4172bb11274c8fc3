"""Overview: changes, storage performance, freshness of the results."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, stat, statetimeline, table
from grafana_foundation_sdk.models import common as models

from builder.changes import change_log, open_changes, worst_change
from builder.charts import FEW_POINTS, timeline
from builder.looks import BETTER, compare_link, prop, rated
from builder.panels import case_counts, failing, headline, intro, names, newest, stale
from builder.parts import base, node_variable, place, storage_variable
from builder.promql import (
    LARGE_BLOCKS,
    SAME_CASE,
    SMALL_BLOCKS,
    filter_workloads,
    recorded,
    series,
    with_descriptions,
)
from builder.tables import Column, age_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

HERE: Final = {"node": "$node", "storage": "$storage"}
BY: Final = "node, storage"
TREND: Final = "90d"
SMALL: Final = {"block_size_bytes": "4096"}


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("Overview", "pvebench-overview", "What changed, how fast is my storage?", since="7d")
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_panel(_sentence().grid_pos(place(0, 0, 24, 4)))
        .with_panel(open_changes("$node").grid_pos(place(0, 4, 24, 6)))
        .with_panel(_storages().grid_pos(place(0, 10, 24, 8)))
        .with_panel(case_counts(**HERE).grid_pos(place(0, 18, 5, 4)))
        .with_panel(newest(**HERE).grid_pos(place(5, 18, 5, 4)))
        .with_panel(stale(**HERE).grid_pos(place(10, 18, 4, 4)))
        .with_panel(failing(**HERE).grid_pos(place(14, 18, 4, 4)))
        .with_panel(_software().grid_pos(place(18, 18, 6, 4)))
        .with_panel(_best().grid_pos(place(0, 22, 24, 12)))
        .with_panel(change_log("$node").grid_pos(place(0, 34, 24, 8)))
        .with_panel(_verdicts().grid_pos(place(0, 42, 12, 7)))
        .with_panel(_alerts().grid_pos(place(12, 42, 12, 7)))
        .with_panel(
            intro(
                "**What changed, how fast is my storage, and is the data current?** pvebench "
                "cycles a benchmark disk through configurations and measures each one in a guest. "
                "Each value is held until the case's next successful run. A *change* is one event "
                "that affects any number of cases; it is listed once it is significant and "
                "confirmed by further runs.",
                y=49,
            )
        )
    )


def _sentence() -> stat.Panel:
    text = common.VizTextDisplayOptions().value_size(16)  # five lines fit on a phone
    return headline("Verdict").text(text)


def _software() -> stat.Panel:
    environment = series(m.ENVIRONMENT_INFO, node="$node")
    panel = names(
        "Tested software",
        "Environment of the latest results per node.",
        f"max by (node, environment) ({environment})",
        "{{node}}: {{environment}}",
        missing="none before the first run",
    )
    return panel.text(common.VizTextDisplayOptions().value_size(13))


def _best_of(metric: str, direction: str, rw: str, **more: str) -> str:
    result = f.IOPS.metric if metric == "iops" else f.BANDWIDTH.metric
    ranked = f"{series(result, direction=direction, **HERE)} and on ({SAME_CASE}) {_ranked()}"
    return f"max by ({BY}) ({filter_workloads(f'({ranked})', rw=rw, **more)})"


def _ranked() -> str:
    """Return the configurations that are ranked: durable, and reading from the disk."""
    return f"{series(m.SCENARIO_RANK_INFO, excluded='', **HERE)} @ end()"


def _storages() -> table.Panel:
    slower = "node_storage:pvebench_change_state:count_regressed"
    syncs = series(f.SYNC_PERCENTILE.metric, percentile="99", **HERE)
    sync = f"min by ({BY}) ({syncs} and on ({SAME_CASE}) {_ranked()})"
    return (
        rows(
            "Storage summary",
            "Fastest durable configuration per storage: 4k random and large sequential I/O, p99 "
            "of sync latency, each with its last 90 days; the worst open change, age. "
            "Click a storage to see its matrix, or *compare* to compare it with another one.",
            ("storage", "node"),
            (
                Column("another", f"0 * max by ({BY}) ({series(m.RUN_TIMESTAMP, **HERE)})"),
                Column(
                    "change", worst_change("$node", "$storage"), wide=70, change=True, coded=True
                ),
                Column("slower", f"max by ({BY}) ({recorded(slower, **HERE)})", wide=66),
                *(
                    Column(
                        title,
                        (best := _best_of(metric, direction, rw, **size)),
                        wide=88,
                        unit=unit,
                        trend=best,
                    )
                    for title, metric, direction, rw, size, unit in (
                        ("4k read", "iops", "read", "randread", SMALL, "iops"),
                        ("4k write", "iops", "write", "randwrite", SMALL, "iops"),
                        ("seq. read", "bandwidth", "read", "read", {}, "Bps"),
                        ("seq. write", "bandwidth", "write", "write", {}, "Bps"),
                    )
                ),
                Column("sync p99", sync, unit="s", wide=80, trend=sync),
                age_column(f"time() - max by ({BY}) ({series(m.RUN_TIMESTAMP, **HERE)})"),
            ),
            linked=False,
            missing="no data before the first run",
        )
        .time_from(TREND)
        .override_by_name("storage", [prop("links", [_to_matrix()])])
        .override_by_name(
            "another",
            [
                prop("links", [compare_link("__data.fields", "storage")]),
                *rated({"0": ("compare", BETTER)}),
                prop("displayName", "compare"),
                prop("custom.width", 78),
            ],
        )
    )


def _to_matrix() -> dashboard.DashboardLink:
    variables = "&".join(f"var-{name}=${{__data.fields.{name}}}" for name in ("node", "storage"))
    url = f"/d/pvebench-matrix?${{datasource:queryparam}}&{variables}"
    return dashboard.DashboardLink("Configuration matrix").url(url)


def _best() -> table.Panel:
    def candidates(metric: Metric) -> str:
        return f"{series(metric, **HERE)} and on ({SAME_CASE}) {_ranked()}"

    def of(metric: Metric, blocks: str) -> str:
        best = f"(topk by (workload, direction) (1, {candidates(metric)}))"
        return with_descriptions(f"({filter_workloads(best, block_size_bytes=blocks)})")

    return rows(
        "Fastest configuration per workload",
        "Fastest durable configuration of the selected nodes and storages: operations for blocks "
        "below 64 KiB, otherwise bytes. Click a configuration to see its case.",
        ("description", "configuration", "storage", "node", "direction", "scenario", "workload"),
        (
            Column("IOPS", of(f.IOPS.metric, SMALL_BLOCKS), unit="iops"),
            Column("bandwidth", of(f.BANDWIDTH.metric, LARGE_BLOCKS), unit="Bps"),
        ),
        sort="workload description",
        descending=False,
        hidden=("bus", "cache", "format"),
        present=candidates(f.IOPS.metric),
        missing="no data before the first run",
    )


def _verdicts() -> statetimeline.Panel:
    return timeline(
        "Worst verdict per storage",
        "State of the worst metric of each storage.",
        f"min by ({BY}) ({series(m.CHANGE_STATE, **HERE)})",
        "{{storage}}, {{node}}",
        points=FEW_POINTS,
        present=series(m.CHANGE_STATE, **HERE),
    )


def _alerts() -> table.Panel:
    return rows(
        "Firing alerts",
        "Alerts that Prometheus fires now. PVEBenchWatchdog always fires: it shows that alerting "
        "works.",
        ("alertname", "severity", "node", "storage"),
        (
            Column(
                "firing",
                "count by (alertname, severity, node, storage) "
                '(ALERTS{alertname=~"PVEBench.*",alertstate="firing"})',
            ),
        ),
        linked=False,
        missing="no alerts, not even PVEBenchWatchdog: Prometheus has not loaded the rules",
    ).cell_height(models.TableCellHeight.SM)
