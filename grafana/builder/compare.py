"""Compare A with B: two configurations side by side."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import barchart, bargauge, dashboard, stat, table, timeseries

from builder.bars import bars, changes_bars
from builder.looks import BETTER, SAME, WORSE, prop, steps
from builder.panels import intro, lines, number, verdict
from builder.parts import (
    base,
    environment_changes,
    label_variable,
    place,
    query,
    table_query,
    transformation,
)
from builder.promql import series
from builder.tables import Column, facts, rows
from pvebench.metrics.catalog import (
    HOST_CPU,
    IOPS,
    LATENCY_PERCENTILE,
    SCENARIO_INFO,
    VARIATION,
    Metric,
)

KEYS: Final = "workload, direction"
INTRO: Final = (
    "**What does B give that A does not?** Two scenarios, on the same node or on two, workload by "
    "workload. **Plus: B is better.** A difference counts when it is larger than the steadiness of "
    "both (the variation within their runs); else the two are the same. A is solid, B dashed."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("Compare A with B", "pvebench-compare", "Two configurations, workload by workload.")
        .annotation(environment_changes(node="$node_a|$node_b"))
        .with_variable(label_variable("node_a", "A: node", of="node"))
        .with_variable(label_variable("a", "A: scenario", of="scenario", among='node=~"$node_a"'))
        .with_variable(label_variable("node_b", "B: node", of="node"))
        .with_variable(
            label_variable(
                "b", "B: scenario", of="scenario", among='node=~"$node_b"', descending=True
            )
        )
        .with_panel(intro(INTRO))
        .with_panel(_mean("throughput", _ratio(IOPS)).grid_pos(place(0, 3, 4, 4)))
        .with_panel(
            _mean("latency (p99)", _inverse(LATENCY_PERCENTILE, percentile="99")).grid_pos(
                place(4, 3, 4, 4)
            )
        )
        .with_panel(_cpu().grid_pos(place(8, 3, 4, 4)))
        .with_panel(_count("B faster", ">", BETTER).grid_pos(place(12, 3, 4, 4)))
        .with_panel(_same().grid_pos(place(16, 3, 4, 4)))
        .with_panel(_count("B slower", "<", WORSE).grid_pos(place(20, 3, 4, 4)))
        .with_panel(_table().grid_pos(place(0, 7, 14, 11)))
        .with_panel(_differences().grid_pos(place(14, 7, 10, 11)))
        .with_panel(_side_by_side().grid_pos(place(0, 18, 12, 9)))
        .with_panel(_settings("a").grid_pos(place(12, 18, 6, 9)))
        .with_panel(_settings("b").grid_pos(place(18, 18, 6, 9)))
        .with_panel(_overlay().grid_pos(place(0, 27, 24, 10)))
    )


def _of(side: str, metric: Metric, **more: str) -> str:
    chosen = series(metric, node=f"$node_{side}", scenario=f"${side}", **more)
    keys = KEYS if "direction" in metric.labels else "workload"
    return f"max by ({keys}) ({chosen})"


def _ratio(metric: Metric, **more: str) -> str:
    """Return B over A less 1: plus where more is better."""
    return f"({_of('b', metric, **more)} / ({_of('a', metric, **more)} > 0) - 1)"


def _inverse(metric: Metric, **more: str) -> str:
    """Return A over B less 1: plus where less is better."""
    return f"({_of('a', metric, **more)} / ({_of('b', metric, **more)} > 0) - 1)"


def _noise() -> str:
    """Return how much a workload's two sides swing within their runs; at least 2 %."""
    swing = f"({_of('a', VARIATION)} + {_of('b', VARIATION)})"
    return f"clamp_min({swing}, 0.02)"


def _mean(what: str, ratio: str) -> stat.Panel:
    panel = number(
        f"B against A: {what}",
        "Geometric mean over all workloads that both have; plus: B is better.",
        f"exp(avg(ln(1 + {ratio}))) - 1",
        unit="percentunit",
        decimals=1,
        missing="nothing in common",
    )
    return verdict(panel, steps(WORSE, (-0.03, SAME), (0.03, BETTER)))


def _cpu() -> stat.Panel:
    def cost(side: str) -> str:
        return (
            f"{_of(side, HOST_CPU, component='total')} / sum by (workload) ({_of(side, IOPS)} > 0)"
        )

    panel = number(
        "B against A: CPU cost",
        "Host CPU for each operation, geometric mean; plus: B costs less.",
        f"exp(avg(ln(({cost('a')}) / ({cost('b')})))) - 1",
        unit="percentunit",
        decimals=1,
        missing="nothing in common",
    )
    return verdict(panel, steps(WORSE, (-0.03, SAME), (0.03, BETTER)))


def _count(title: str, sign: str, colour: str) -> stat.Panel:
    ratio = _ratio(IOPS)
    limit = _noise() if sign == ">" else f"-1 * {_noise()}"
    panel = number(
        title,
        "Workloads whose difference is larger than the steadiness of both.",
        f"count({ratio} {sign} {limit}) or 0 * count({ratio})",
        missing="nothing in common",
    )
    return verdict(panel, steps(SAME, (1, colour)))


def _same() -> stat.Panel:
    ratio = _ratio(IOPS)
    return number(
        "Same",
        "Workloads whose difference is within the steadiness of both.",
        f"count(abs({ratio}) <= {_noise()}) or 0 * count({ratio})",
        missing="nothing in common",
    )


def _table() -> table.Panel:
    p99 = {"percentile": "99"}
    return rows(
        "Workload by workload",
        "Last good runs. Plus: B is better.",
        ("workload", "direction"),
        (
            Column(title="A IOPS", expression=_of("a", IOPS), unit="iops"),
            Column(title="B IOPS", expression=_of("b", IOPS), unit="iops"),
            Column(title="B vs A", expression=_ratio(IOPS), unit="percentunit", change=True),
            Column(title="noise", expression=_noise(), unit="percentunit", decimals=1),
            Column(
                title="A p99", expression=_of("a", LATENCY_PERCENTILE, **p99), unit="s", decimals=2
            ),
            Column(
                title="B p99", expression=_of("b", LATENCY_PERCENTILE, **p99), unit="s", decimals=2
            ),
            Column(
                title="B vs A (p99)",
                expression=_inverse(LATENCY_PERCENTILE, **p99),
                unit="percentunit",
                change=True,
            ),
        ),
        sort="B vs A",
        linked=False,
        missing="nothing in common",
    ).override_by_name("workload", [prop("custom.width", 190)])


def _differences() -> bargauge.Panel:
    return changes_bars(
        "B against A, IOPS", "Better: B is faster.", _ratio(IOPS), "{{workload}} {{direction}}"
    )


def _side_by_side() -> barchart.Panel:
    def named(side: str) -> str:
        text = f'label_join({_of(side, IOPS)}, "case", " ", "workload", "direction")'
        return f"max by (case) ({text})"

    return bars(
        "IOPS side by side",
        "A left, B right.",
        [table_query(named("a")), table_query(named("b"), ref="B")],
        unit="short",
        x="case",
        transformations=[
            transformation("merge"),
            transformation(
                "organize",
                excludeByName={"Time": True},
                renameByName={"Value #A": "A", "Value #B": "B"},
            ),
        ],
    )


def _settings(side: str) -> table.Panel:
    return facts(
        f"Settings of {side.upper()}",
        "Every option of the disk and the VM around it.",
        series(SCENARIO_INFO, node=f"$node_{side}", scenario=f"${side}"),
    )


def _overlay() -> timeseries.Panel:
    return lines(
        "IOPS over time, A solid and B dashed",
        "Held values.",
        [
            query(_of("a", IOPS), legend="A {{workload}} {{direction}}", ref="A"),
            query(_of("b", IOPS), legend="B {{workload}} {{direction}}", ref="B"),
        ],
        unit="iops",
        log=True,
        linked=False,
    ).override_by_query("B", [prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})])
