"""Trends: results over time."""

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
from builder.promql import series, with_descriptions
from pvebench.metrics import catalog as m

CASE: Final = {
    "node": "$node",
    "storage": "$storage",
    "scenario": "$scenario",
    "workload": "$workload",
}
RESULT: Final = {**CASE, "direction": "$direction"}
MAX_SERIES: Final = 10
LEGEND: Final = "{{configuration}}, {{direction}} ({{storage}}, {{node}})"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("Trends", "pvebench-trends", "Results of each configuration over time.")
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
                "**How did results develop?** Each value is held until the next run; a purple line "
                f"marks a change of software. The panels show the {MAX_SERIES} configurations with "
                "the highest latest value; select others above."
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
    """Keep the same series over the whole range: the highest at its end."""
    return with_descriptions(
        f"({expression} and topk({MAX_SERIES}, {expression} @ end()))", workload=False
    )


def _iops() -> timeseries.Panel:
    return lines(
        "IOPS",
        "Mean of each run.",
        [query(_some(series(m.IOPS, **RESULT)), legend=LEGEND)],
        unit="iops",
    )


def _relative() -> timeseries.Panel:
    now = series(m.IOPS, **RESULT)
    mean = f"avg_over_time({now}[$__range] @ end())"
    return lines(
        "IOPS relative to their mean",
        "100% is a configuration's own mean over the time range.",
        [
            query(
                with_descriptions(
                    f"({now} / ({mean} > 0) and topk({MAX_SERIES}, {now} @ end()))", workload=False
                ),
                legend=LEGEND,
            )
        ],
        unit="percentunit",
        right=False,
    )


def _percentile(percentile: str, name: str) -> timeseries.Panel:
    latency = series(m.LATENCY_PERCENTILE, percentile=percentile, **RESULT)
    return lines(
        f"Completion latency, {name}",
        "Logarithmic. Lower is better.",
        [query(_some(latency), legend=LEGEND)],
        unit="s",
        log=True,
        right=False,
    )


def _bandwidth() -> timeseries.Panel:
    return lines(
        "Bandwidth",
        "Mean of each run, in SI units.",
        [query(_some(series(m.BANDWIDTH, **RESULT)), legend=LEGEND)],
        unit="Bps",
        right=False,
    )


def _longest() -> timeseries.Panel:
    return lines(
        "Maximum latency",
        "Slowest operation (longest stall) of each run, logarithmic. It often rises before a mean.",
        [query(_some(series(m.LATENCY_MAX, **RESULT)), legend=LEGEND)],
        unit="s",
        log=True,
        right=False,
    )


def _cpu() -> timeseries.Panel:
    return lines(
        "Host CPU of QEMU, cores",
        "Host CPU that QEMU uses during the workload.",
        [
            query(
                _some(series(m.HOST_CPU, component="qemu", **CASE)),
                legend="{{configuration}} ({{storage}}, {{node}})",
            )
        ],
        unit="none",
        right=False,
    )
