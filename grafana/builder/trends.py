"""Trends: how did it develop?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, timeseries

from builder.panels import intro, lines
from builder.parts import (
    base,
    changes,
    environment_changes,
    label_variable,
    node_variable,
    place,
    query,
    scenario_variable,
    storage_variable,
    workload_variable,
)
from builder.promql import in_words, series
from pvebench.metrics.catalog import BANDWIDTH, HOST_CPU, IOPS, LATENCY_MAX, LATENCY_PERCENTILE

CASE: Final = {
    "node": "$node",
    "storage": "$storage",
    "scenario": "$scenario",
    "workload": "$workload",
}
RESULT: Final = {**CASE, "direction": "$direction"}
MOST: Final = 10
LEGEND: Final = "{{configuration}}, {{direction}} ({{storage}}, {{node}})"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("Trends", "pvebench-trends", "How did each scenario develop?")
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable())
        .with_variable(
            label_variable("direction", "Direction", multi=True, among='workload=~"$workload"')
        )
        .with_variable(scenario_variable())
        .with_panel(
            intro(
                "**How did it develop?** The held value of each scenario; a step is a new run, a "
                f"purple line a change of software. At most the {MOST} scenarios with the highest "
                "last value are drawn; choose others above."
            )
        )
        .with_panel(_iops().grid_pos(place(0, 3, 24, 10)))
        .with_panel(_relative().grid_pos(place(0, 13, 12, 10)))
        .with_panel(_percentile("99", "p99").grid_pos(place(12, 13, 12, 10)))
        .with_panel(_bandwidth().grid_pos(place(0, 23, 12, 10)))
        .with_panel(_longest().grid_pos(place(12, 23, 12, 10)))
        .with_panel(_percentile("50", "median").grid_pos(place(0, 33, 12, 10)))
        .with_panel(_cpu().grid_pos(place(12, 33, 12, 10)))
    )


def _some(expression: str) -> str:
    """Keep the same few series over the whole range: those highest at its end."""
    return in_words(f"({expression} and topk({MOST}, {expression} @ end()))", workload=False)


def _iops() -> timeseries.Panel:
    return lines(
        "IOPS",
        "Mean of each run.",
        [query(_some(series(IOPS, **RESULT)), legend=LEGEND)],
        unit="iops",
    )


def _relative() -> timeseries.Panel:
    now = series(IOPS, **RESULT)
    usual = f"avg_over_time({now}[$__range] @ end())"
    return lines(
        "IOPS against the mean of the time range",
        "100 % is a scenario's own mean over the range shown: different ones become comparable.",
        [
            query(
                in_words(
                    f"({now} / ({usual} > 0) and topk({MOST}, {now} @ end()))", workload=False
                ),
                legend=LEGEND,
            )
        ],
        unit="percentunit",
        right=False,
    )


def _percentile(percentile: str, name: str) -> timeseries.Panel:
    chosen = series(LATENCY_PERCENTILE, percentile=percentile, **RESULT)
    return lines(
        f"Completion latency, {name}",
        "Logarithmic. Lower is better.",
        [query(_some(chosen), legend=LEGEND)],
        unit="s",
        log=True,
        right=False,
    )


def _bandwidth() -> timeseries.Panel:
    return lines(
        "Bandwidth",
        "Mean of each run; SI units, as vendors count.",
        [query(_some(series(BANDWIDTH, **RESULT)), legend=LEGEND)],
        unit="Bps",
        right=False,
    )


def _longest() -> timeseries.Panel:
    return lines(
        "Longest single operation",
        "Logarithmic. Stalls show here first, long before any mean moves.",
        [query(_some(series(LATENCY_MAX, **RESULT)), legend=LEGEND)],
        unit="s",
        log=True,
        right=False,
    )


def _cpu() -> timeseries.Panel:
    return lines(
        "Host CPU of QEMU, cores",
        "What the workload costs the host.",
        [
            query(
                _some(series(HOST_CPU, component="qemu", **CASE)),
                legend="{{configuration}} ({{storage}}, {{node}})",
            )
        ],
        unit="none",
        right=False,
    )
