"""Latency: what does a database feel?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, heatmap, table, timeseries
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from builder.bars import ranking
from builder.panels import FEW_POINTS, ROOM, intro, lines
from builder.parts import (
    DATASOURCE,
    base,
    changes,
    custom_variable,
    environment_changes,
    node_variable,
    place,
    query,
    scenario_variable,
    storage_variable,
    workload_variable,
)
from builder.promql import in_words, none_of, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    IOPS,
    LATENCY,
    LATENCY_MAX,
    LATENCY_MEAN,
    LATENCY_PERCENTILE,
    SYNC_LATENCY_PERCENTILE,
)

NO_HISTOGRAM: Final = f"{ROOM}no histogram yet"
HERE: Final = {"node": "$node", "storage": "$storage", "scenario": "$scenario"}
CASE: Final = {**HERE, "workload": "$workload"}
LEGEND: Final = "{{description}}, {{direction}}: {{configuration}} ({{storage}}, {{node}})"
SHORT: Final = "{{configuration}}: {{description}} ({{storage}}, {{node}})"
CHOSEN: Final = {**CASE, "percentile": "$percentile"}
INTRO: Final = (
    "**What does a database feel?** Completion latency as the guest sees it. Percentiles are exact "
    "for each run and are never averaged here. A sync is what makes a commit durable; the longest "
    "operation tells stalls that no percentile shows. Lower is better everywhere."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    percentiles = {"99 %": "99", "50 %": "50", "95 %": "95", "99.9 %": "99.9", "99.99 %": "99.99"}
    return (
        base("Latency", "pvebench-latency", "Percentiles, syncs and stalls.")
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable(multi=True))
        .with_variable(scenario_variable())
        .with_variable(custom_variable("percentile", "Percentile", percentiles))
        .with_panel(_over_time().grid_pos(place(0, 0, 12, 13)))
        .with_panel(_ranking().grid_pos(place(12, 0, 12, 13)))
        .with_panel(_syncs().grid_pos(place(0, 13, 12, 11)))
        .with_panel(_sync_ranking().grid_pos(place(12, 13, 12, 11)))
        .with_panel(_stalls().grid_pos(place(0, 24, 12, 9)))
        .with_panel(_tail().grid_pos(place(12, 24, 12, 9)))
        .with_panel(_distribution().grid_pos(place(0, 33, 24, 10)))
        .with_panel(_table().grid_pos(place(0, 43, 24, 11)))
        .with_panel(intro(INTRO, y=54))
    )


def _most(expression: str) -> str:
    return in_words(f"({expression} and topk(10, {expression} @ end()))")


def _over_time() -> timeseries.Panel:
    return lines(
        "Completion latency, chosen percentile",
        "The ten slowest, logarithmic.",
        [query(_most(series(LATENCY_PERCENTILE, **CHOSEN)), legend=LEGEND)],
        unit="s",
        log=True,
        right=False,
    )


def _ranking() -> bargauge.Panel:
    chosen = series(LATENCY_PERCENTILE, **CHOSEN)
    return ranking(
        "Quickest of each workload, chosen percentile",
        "The setting with the lowest latency of each workload: unlike ones are not ranked.",
        f"sort({in_words(f'bottomk by (workload, direction) (1, {chosen})')})",
        unit="s",
        legend="{{description}}: {{configuration}} ({{storage}}, {{node}})",
    )


def _syncs() -> timeseries.Panel:
    chosen = series(SYNC_LATENCY_PERCENTILE, **HERE, percentile="$percentile")
    return lines(
        "Sync latency, chosen percentile",
        "fsync and fdatasync. A sudden drop below what "
        "the device can do means that syncs are ignored.",
        [query(_most(chosen), legend=SHORT)],
        unit="s",
        log=True,
        right=False,
        missing="No workload that syncs has run yet.",
    )


def _sync_ranking() -> bargauge.Panel:
    chosen = series(SYNC_LATENCY_PERCENTILE, **HERE, percentile="$percentile")
    return ranking(
        "Quickest syncs",
        "The twelve lowest; too good to be true is a warning.",
        f"sort({in_words(f'bottomk(12, {chosen})')})",
        unit="s",
        legend=SHORT,
        missing="no workload that syncs has run yet",
    )


def _stalls() -> timeseries.Panel:
    return lines(
        "Longest single operation",
        "Of each run; the ten longest, logarithmic.",
        [query(_most(series(LATENCY_MAX, **CASE)), legend=LEGEND)],
        unit="s",
        log=True,
        right=False,
    )


def _tail() -> timeseries.Panel:
    slow = series(LATENCY_PERCENTILE, **CASE, percentile="99.9")
    middle = series(LATENCY_PERCENTILE, **CASE, percentile="50")
    slowest = f"({slow} and topk(10, {slow} @ end()))"
    ratio = f"{slowest} / ignoring (percentile) ({middle} > 0)"
    return lines(
        "Tail: 99.9 % over median",
        "How much worse the unlucky operations are, of the ten slowest: 10 is usual, 1000 is a "
        "disk that freezes.",
        [query(in_words(f"({ratio})"), legend=LEGEND)],
        unit="none",
        log=True,
        right=False,
        points=FEW_POINTS,
    )


def _distribution() -> heatmap.Panel:
    """Return how many operations took how long, of all chosen cases and nodes together."""
    kept = series(LATENCY, **CASE)
    # Seen in a Grafana 12.4: a heatmap without an answer has "No data", whatever its `noValue`.
    none = f'label_replace({none_of(f"group({kept} @ end())")}, "le", "{NO_HISTOGRAM}", "", "")'
    added = f"sum by (le) (increase({kept}[$__rate_interval])) or 0 * ({none})"
    target = query(added, legend="{{le}}").format(PromQueryFormat.HEATMAP)
    return (
        heatmap.Panel()
        .datasource(DATASOURCE)
        .with_target(target)
        .max_data_points(FEW_POINTS)
        .title("How long operations took (workloads with histogram: true)")
        .description(
            "Operations of the runs that ended in each stretch of time, by completion latency, all "
            "chosen cases together; of workloads with histogram: true in their pack. A second band "
            "above the first is a stall that means and medians hide. A case is in it from its "
            "second run on: what a counter begins with is no increase."
        )
        .no_value(NO_HISTOGRAM)
        # Without a histogram its scale has no ends; the tooltip has the numbers.
        .hide_legend()
        # No colour that means better or worse; the exponent shows the rare beside the frequent.
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
    keys = "node, storage, scenario, workload, direction"

    def percentile(value: str) -> str:
        return f"max by ({keys}) ({series(LATENCY_PERCENTILE, **CASE, percentile=value)})"

    return rows(
        "All cases",
        "Last good runs.",
        ("description", "configuration", "storage", "node", "direction", "scenario", "workload"),
        (
            Column(
                title="IOPS",
                expression=in_words(f"(max by (job, instance, {keys}) ({series(IOPS, **CASE)}))"),
                unit="iops",
            ),
            Column(
                title="mean",
                expression=f"max by ({keys}) ({series(LATENCY_MEAN, **CASE)})",
                unit="s",
                decimals=2,
            ),
            Column(title="p50", expression=percentile("50"), unit="s", decimals=2),
            Column(title="p99", expression=percentile("99"), unit="s", decimals=2),
            Column(title="p99.9", expression=percentile("99.9"), unit="s", decimals=2),
            Column(
                title="longest",
                expression=f"max by ({keys}) ({series(LATENCY_MAX, **CASE)})",
                unit="s",
                decimals=2,
            ),
        ),
        sort="p99",
        descending=False,
        hidden=("scenario",),
        missing="nothing measured yet: it comes with the first run",
    )
