"""Trends: results over time."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, timeseries

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
INTRO: Final = (
    "**How did results develop?** Each value is held until the next run; a purple line "
    f"marks a change of software. The panels show the {MAX_SERIES} configurations with "
    "the highest latest value; select others above."
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
    widest, *others = _charts()
    built = built.with_panel(widest.grid_pos(place(0, 0, 24, 10)))
    for index, one in enumerate(others):
        built = built.with_panel(
            one.grid_pos(place(12 * (index % 2), 10 + index // 2 * 10, 12, 10))
        )
    return built.with_panel(intro(INTRO, y=40))


def _some(expression: str) -> str:
    """Keep the same series over the whole range: the highest at its end."""
    return _described(f"{expression} and topk({MAX_SERIES}, {expression} @ end())")


def _charts() -> list[timeseries.Panel]:
    """Return the charts, the widest first."""
    p99, p50 = (series(m.LATENCY_PERCENTILE, percentile=one, **RESULT) for one in ("99", "50"))
    iops, bandwidth, longest = (
        series(one, **RESULT) for one in (m.IOPS, m.BANDWIDTH, m.LATENCY_MAX)
    )
    cpu = series(m.HOST_CPU, component="qemu", **CASE)
    mean = f"avg_over_time({iops}[$__range] @ end())"
    relative = f"{iops} / ({mean} > 0) and topk({MAX_SERIES}, {iops} @ end())"
    low = "Logarithmic. Lower is better."
    stall = (
        "Slowest operation (longest stall) of each run, logarithmic. It often rises before a mean."
    )
    own = "100% is a configuration's own mean over the time range."
    return [
        lines("IOPS", "Mean of each run.", {LEGEND: _some(iops)}, unit="iops"),
        *(
            lines(title, text, {LEGEND: value}, unit=unit, log=unit == "s", right=False)
            for title, text, value, unit in (
                ("IOPS relative to their mean", own, _described(relative), "percentunit"),
                ("Completion latency, p99", low, _some(p99), "s"),
                ("Bandwidth", "Mean of each run, in SI units.", _some(bandwidth), "Bps"),
                ("Maximum latency", stall, _some(longest), "s"),
                ("Completion latency, median", low, _some(p50), "s"),
            )
        ),
        lines(
            "Host CPU of QEMU, cores",
            "Host CPU that QEMU uses during the workload.",
            {LEGEND.replace(", {{direction}}", ""): _some(cpu)},
            unit="none",
            right=False,
        ),
    ]


def _described(expression: str) -> str:
    return with_descriptions(f"({expression})", workload=False)
