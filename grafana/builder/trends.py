"""Trends: results over time."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table, timeseries

from builder.charts import lines
from builder.panels import intro
from builder.parts import (
    base,
    label_variable,
    node_variable,
    place,
    scenario_variable,
    storage_variable,
    workload_variable,
)
from builder.promql import MAX_SERIES, RESULT_KEYS, cpu_per_io, highest, series, with_descriptions
from builder.tables import Column, rows
from pvebench.model import figures as f

CASE: Final = {
    "node": "$node",
    "storage": "$storage",
    "scenario": "$scenario",
    "workload": "$workload",
}
RESULT: Final = {**CASE, "direction": "$direction"}
LEGEND: Final = "{{configuration}}, {{direction}} ({{storage}}, {{node}})"
SHORT: Final = "{{configuration}} ({{storage}}, {{node}})"
INTRO: Final = (
    "**How did results develop?** Each value is held until the next run; a purple line "
    f"marks a change of software. The charts show the {MAX_SERIES} configurations with "
    "the highest latest value, the table has all; select others above."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    built = (
        base(
            "Trends",
            "pvebench-trends",
            "Results of each configuration over time.",
            scenario="$scenario",
            workload="$workload",
        )
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable())
        .with_variable(
            label_variable("direction", "Direction", multi=True, among='workload=~"$workload"')
        )
        .with_variable(scenario_variable())
    )
    built = built.with_panel(_table().grid_pos(place(0, 0, 24, 10)))
    for index, one in enumerate(_charts()):
        built = built.with_panel(
            one.grid_pos(place(12 * (index % 2), 10 + index // 2 * 10, 12, 10))
        )
    return built.with_panel(intro(INTRO, y=30))


def _table() -> table.Panel:
    """Return one row per configuration: latest values, their lines, the change since the start."""
    iops = f"max by ({RESULT_KEYS}) ({series(f.IOPS.metric, **RESULT)})"
    p99 = f"max by ({RESULT_KEYS}) ({series(f.CLAT_PERCENTILE.metric, percentile='99', **RESULT)})"
    cost = cpu_per_io(**CASE)
    mean = f"avg_over_time({series(f.IOPS.metric, **RESULT)}[$__range])"
    change = f"{iops} / (max by ({RESULT_KEYS}) ({mean}) > 0) - 1"
    bandwidth = f"max by ({RESULT_KEYS}) ({series(f.BANDWIDTH.metric, **RESULT)})"
    named = f"max by (job, instance, {RESULT_KEYS}) ({series(f.IOPS.metric, **RESULT)})"
    return rows(
        "Configurations",
        "Latest values with their course over the time range; the throughput also relative to its "
        "mean in it. Click a configuration to see its case.",
        ("configuration", "storage", "node", "direction", "scenario", "workload"),
        (
            Column("IOPS", with_descriptions(named, workload=False), unit="iops", trend=iops),
            Column("to mean", change, change=True),
            Column("bandwidth", bandwidth, unit="Bps", decimals=1),
            Column("p99", p99, unit="s", trend=p99),
            Column("CPU per I/O", cost, unit="µs", decimals=1, trend=cost),
        ),
        sort="IOPS",
        missing="no data before the first run",
    )


def _charts() -> list[timeseries.Panel]:
    p99, cpu = {"percentile": "99"}, {"component": "qemu"}
    low = "Logarithmic. Lower is better."
    return [
        lines(
            title,
            text,
            {LEGEND if "direction" in of else SHORT: highest(series(metric, **of))},
            unit=unit,
            log=unit == "s",
            right=False,
        )
        for title, text, metric, of, unit in (
            ("IOPS", "Mean of each run.", f.IOPS.metric, RESULT, "iops"),
            ("Completion latency, p99", low, f.CLAT_PERCENTILE.metric, RESULT | p99, "s"),
            (
                "Maximum latency",
                f"Longest stall of each run. {low}",
                f.CLAT_MAX.metric,
                RESULT,
                "s",
            ),
            (
                "QEMU's host CPU, cores",
                "During the workload.",
                f.HOST_CPU.metric,
                CASE | cpu,
                "none",
            ),
        )
    ]
