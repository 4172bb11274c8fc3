"""Latency: percentiles, syncs and stalls."""

from __future__ import annotations

from functools import partial
from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, heatmap, table, timeseries
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from builder.bars import ranking
from builder.charts import FEW_POINTS, PADDING, lines
from builder.panels import intro
from builder.parts import (
    DATASOURCE,
    base,
    custom_variable,
    node_variable,
    place,
    query,
    scenario_variable,
    storage_variable,
    workload_variable,
)
from builder.promql import RESULT_KEYS, highest, if_empty, label, series, with_descriptions
from builder.tables import Column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

NO_HISTOGRAM: Final = f"{PADDING}no histogram yet"
HERE: Final = {"node": "$node", "storage": "$storage", "scenario": "$scenario"}
CASE: Final = {**HERE, "workload": "$workload"}
LEGEND: Final = "{{description}}, {{direction}}: {{configuration}} ({{storage}}, {{node}})"
SHORT: Final = "{{configuration}}: {{description}} ({{storage}}, {{node}})"
CHOSEN: Final = {**CASE, "percentile": "$percentile"}
INTRO: Final = (
    "**What latency does an application see?** Completion latency, measured in the guest. "
    "Percentiles are per run and never averaged. Syncs make a database commit durable; the maximum "
    "latency shows stalls that percentiles hide. Lower is better in all panels."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    percentiles = {"p99": "99", "p50": "50", "p95": "95", "p99.9": "99.9", "p99.99": "99.99"}
    over_time, stalls, tail, syncs = _charts()
    return (
        base(
            "Latency",
            "pvebench-latency",
            "Percentiles, syncs and stalls.",
            scenario="$scenario",
            workload="$workload",
        )
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable(multi=True))
        .with_variable(scenario_variable())
        .with_variable(custom_variable("percentile", "Percentile", percentiles))
        .with_panel(over_time.grid_pos(place(0, 0, 12, 13)))
        .with_panel(_ranking().grid_pos(place(12, 0, 12, 13)))
        .with_panel(_table().grid_pos(place(0, 13, 24, 11)))
        .with_panel(_distribution().grid_pos(place(0, 24, 24, 9)))
        .with_panel(stalls.grid_pos(place(0, 33, 12, 10)))
        .with_panel(tail.grid_pos(place(12, 33, 12, 10)))
        .with_panel(syncs.grid_pos(place(0, 43, 12, 11)))
        .with_panel(_sync_ranking().grid_pos(place(12, 43, 12, 11)))
        .with_panel(intro(INTRO, y=54))
    )


def _charts() -> tuple[timeseries.Panel, ...]:
    """Return the charts over time, logarithmic: latency, stalls, tail, syncs."""
    slow = series(f.CLAT_PERCENTILE.metric, **CASE, percentile="99.9")
    middle = series(f.CLAT_PERCENTILE.metric, **CASE, percentile="50")
    slowest = f"({slow} and topk(10, {slow} @ end()))"
    tail = f"{slowest} / ignoring (percentile) ({middle} > 0)"
    syncs = series(f.SYNC_PERCENTILE.metric, **HERE, percentile="$percentile")
    chart = partial(lines, log=True, right=False)
    return (
        chart(
            "Completion latency, selected percentile",
            "The ten slowest, logarithmic.",
            {LEGEND: highest(series(f.CLAT_PERCENTILE.metric, **CHOSEN), workload=True)},
            unit="s",
        ),
        chart(
            "Maximum latency",
            "Slowest operation (longest stall) of each run; the ten highest, logarithmic.",
            {LEGEND: highest(series(f.CLAT_MAX.metric, **CASE), workload=True)},
            unit="s",
        ),
        chart(
            "Tail latency: p99.9 / median",
            "The ten cases with the highest p99.9. About 10 is normal; 1000 means stalls.",
            {LEGEND: with_descriptions(f"({tail})")},
            unit="none",
            points=FEW_POINTS,
        ),
        chart(
            "Sync latency, selected percentile",
            "fsync and fdatasync. A drop below the device's minimum means that syncs are ignored.",
            {SHORT: highest(syncs, workload=True)},
            unit="s",
            missing="No data: no workload with syncs has run yet.",
        ),
    )


def _ranking() -> bargauge.Panel:
    latency = series(f.CLAT_PERCENTILE.metric, **CHOSEN)
    return ranking(
        "Lowest latency per workload, selected percentile",
        "Configuration with the lowest latency of each workload.",
        f"sort({with_descriptions(f'bottomk by (workload, direction) (1, {latency})')})",
        unit="s",
        legend="{{description}}: {{configuration}} ({{storage}}, {{node}})",
    )


def _sync_ranking() -> bargauge.Panel:
    latency = series(f.SYNC_PERCENTILE.metric, **HERE, percentile="$percentile")
    return ranking(
        "Lowest sync latency",
        "The 12 lowest. An implausibly low value is a warning.",
        f"sort({with_descriptions(f'bottomk(12, {latency})')})",
        unit="s",
        legend=SHORT,
        missing="no workload with syncs has run yet",
    )


def _distribution() -> heatmap.Panel:
    """Return the heatmap of completion latencies, of all selected cases and nodes together."""
    histogram = series(m.LATENCY, **CASE)
    # Without a result, a heatmap of Grafana 12.4 shows "No data", regardless of `noValue`.
    fallback = label("le", NO_HISTOGRAM, if_empty(f"group({histogram} @ end())"))
    operations = f"sum by (le) (increase({histogram}[$__rate_interval])) or 0 * ({fallback})"
    target = query(operations, legend="{{le}}").format(PromQueryFormat.HEATMAP)
    return (
        heatmap.Panel()
        .datasource(DATASOURCE)
        .with_target(target)
        .max_data_points(FEW_POINTS)
        .title("Completion latency distribution (workloads with histogram: true)")
        .description(
            "Operations of the runs that ended in each time step, by completion latency, all "
            "selected cases together. Needs workloads with histogram: true in their pack. A second "
            "band above the first shows stalls hidden by means and medians. A case appears with "
            "its second run: the first value of a counter is not an increase."
        )
        .no_value(NO_HISTOGRAM)
        # Without a histogram, its scale has no limits; the tooltip shows the numbers.
        .hide_legend()
        # No color that means better or worse; the exponent keeps rare values visible.
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heat_models.HeatmapColorMode.SCHEME)
            .scale(heat_models.HeatmapColorScale.EXPONENTIAL)
            .scheme("Cividis")
            .exponent(0.3)
            .steps(64)
        )
        .unit("short")
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .cell_values(heatmap.CellValues().unit("short").decimals(0))
        .tooltip(heatmap.HeatmapTooltip().mode(models.TooltipDisplayMode.SINGLE).y_histogram(True))
    )


def _table() -> table.Panel:
    def of(metric: Metric, **more: str) -> str:
        return f"max by ({RESULT_KEYS}) ({series(metric, **CASE, **more)})"

    iops = with_descriptions(
        f"(max by (job, instance, {RESULT_KEYS}) ({series(f.IOPS.metric, **CASE)}))"
    )
    tail, longest = of(f.CLAT_PERCENTILE.metric, percentile="99.9"), of(f.CLAT_MAX.metric)
    p50, p99 = (of(f.CLAT_PERCENTILE.metric, percentile=one) for one in ("50", "99"))
    return rows(
        "All cases",
        "Latest successful runs, and the tail over the time range.",
        ("description", "configuration", "storage", "node", "direction", "scenario", "workload"),
        (
            Column("IOPS", iops, unit="iops"),
            Column("p99", p99, unit="s"),
            Column("p99.9", tail, unit="s", trend=tail),
            Column("max", longest, unit="s", trend=longest),
            Column("p50", p50, unit="s"),
            Column("mean", of(f.CLAT_MEAN.metric), unit="s"),
        ),
        sort="p99.9",
        hidden=("scenario",),
        missing="no data before the first run",
    )
