"""Compare A with B: two configurations of any nodes, storages and times."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, timeseries

from builder.bars import changes_bars
from builder.looks import prop
from builder.panels import intro, lines, number, signed
from builder.parts import (
    base,
    changes,
    environment_changes,
    label_variable,
    place,
    query,
    query_variable,
)
from builder.promql import HELD, series, with_descriptions
from builder.tables import Column, facts, rows
from pvebench.metrics import catalog as m
from pvebench.model.disk import Bus

KEYS: Final = "workload, direction"
BUSES: Final = f"(?:{'|'.join(Bus)})"
INTRO: Final = (
    "**How does B differ from A?** Compares two combinations of node, storage, configuration and "
    "time, by workload. **Positive: B is better**: more IOPS, lower latency, less CPU. *Noise* is "
    "the variation within the latest run of A plus that of B, at least 2%. It doesn't include "
    "differences between runs: for significance, see *Configuration matrix*. Colors don't rate: "
    "blue is B, purple is A."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    built = base(
        "Compare A with B",
        "pvebench-compare",
        "Compares two combinations of node, storage, configuration and time, by workload.",
        since="7d",
    ).annotation(environment_changes(node="$node_a|$node_b"))
    built = built.annotation(changes(node="$node_a|$node_b"))
    for side in ("a", "b"):
        # B defaults to another node, if any, so that comparing two nodes takes no click.
        other = side == "b"
        built = (
            built.with_variable(_node(side, descending=other))
            .with_variable(_storage(side))
            .with_variable(_configuration(side))
            .with_variable(_when(side))
        )
    return (
        built.with_panel(
            _mean("Throughput", _ratio(m.IOPS), "is faster").grid_pos(place(0, 0, 4, 4))
        )
        .with_panel(
            _mean(
                "Latency p99", _inverse(m.LATENCY_PERCENTILE, percentile="99"), "has lower latency"
            ).grid_pos(place(4, 0, 4, 4))
        )
        .with_panel(_cpu().grid_pos(place(8, 0, 4, 4)))
        .with_panel(_count("B faster", ">").grid_pos(place(12, 0, 4, 4)))
        .with_panel(_within_noise().grid_pos(place(16, 0, 4, 4)))
        .with_panel(_count("B slower", "<").grid_pos(place(20, 0, 4, 4)))
        .with_panel(_table().grid_pos(place(0, 4, 24, 11)))
        .with_panel(_differences().grid_pos(place(0, 15, 12, 12)))
        .with_panel(_definition("a").grid_pos(place(12, 15, 6, 12)))
        .with_panel(_definition("b").grid_pos(place(18, 15, 6, 12)))
        .with_panel(_overlay().grid_pos(place(0, 27, 24, 10)))
        .with_panel(intro(INTRO, y=37))
    )


def _node(side: str, *, descending: bool) -> dashboard.QueryVariable:
    return label_variable(f"node_{side}", f"{side.upper()}: node", of="node", descending=descending)


def _storage(side: str) -> dashboard.QueryVariable:
    among = f'node=~"$node_{side}"'
    return label_variable(f"storage_{side}", f"{side.upper()}: storage", of="storage", among=among)


def _configuration(side: str) -> dashboard.QueryVariable:
    """Return a configuration variable; its value is the scenario without the storage."""
    here = series(m.SCENARIO_INFO, node=f"$node_{side}", storage=f"$storage_{side}")
    if side == "b":
        a = {"node": "$node_a", "storage": "$storage_a", "scenario": "${storage_a}.${a}"}
        of_a = series(m.SCENARIO_INFO, **a)
        # Default: A's configuration on another node or storage; otherwise another one first.
        same = f"({here} and on (configuration) {of_a})"
        itself = f"({here} and on (node, storage, configuration) {of_a})"
        here = f"(0 * ({same} unless {itself}) or 2 * {itself} or {here})"
    rest = f'label_replace({here}, "rest", "$1", "scenario", ".+?\\\\.({BUSES}\\\\..+)")'
    named = f'label_join({rest}, "shown", "  ·  ", "configuration", "rest")'
    text = f"query_result(sort(max by (rest, shown) ({named})))"
    return (
        query_variable(side, f"{side.upper()}: configuration", text)
        .regex('/rest="(?<value>[^"]+)".*shown="(?<text>[^"]+)"/')
        .multi(False)
        .include_all(False)
    )


def _when(side: str) -> dashboard.QueryVariable:
    """Return a time variable: now, or the end of an environment period."""
    ends = f"{series(m.ENVIRONMENT_END, node=f'$node_{side}')} @ {HELD} < time() - 86400"
    ended = f'count_values by (environment) ("moment", {ends})'
    named = f'label_join({ended}, "shown", "", "environment")'
    # The text of `$held`, so that "now" is the last answer of an exporter that stopped.
    current = f'label_replace(2 * vector(1), "moment", "{HELD}", "", "")'
    now = f'label_replace({current}, "shown", "now", "", "")'
    text = f"query_result(sort_desc(max by (moment, shown) ({named} or {now})))"
    return (
        query_variable(f"when_{side}", f"{side.upper()}: end of", text)
        .regex('/moment="(?<value>[^"]+)",shown="(?<text>[^"]+)"/')
        .multi(False)
        .include_all(False)
    )


def _of(side: str, metric: m.Metric, when: str = "", **more: str) -> str:
    """Return a metric of one side by workload; `when` replaces the selected time."""
    selected = series(
        metric, node=f"$node_{side}", scenario=f"${{storage_{side}}}.${{{side}}}", **more
    )
    keys = KEYS if "direction" in metric.labels else "workload"
    return f"max by ({keys}) ({selected}{when or f' @ $when_{side}'})"


def _ratio(metric: m.Metric, **more: str) -> str:
    """Return B / A - 1, for metrics for which more is better."""
    return f"({_of('b', metric, **more)} / ({_of('a', metric, **more)} > 0) - 1)"


def _inverse(metric: m.Metric, **more: str) -> str:
    """Return A / B - 1, for metrics for which less is better."""
    return f"({_of('a', metric, **more)} / ({_of('b', metric, **more)} > 0) - 1)"


def _noise() -> str:
    """Return the summed variation within the runs of both sides, at least 2%."""
    variation = f"({_of('a', m.VARIATION)} + {_of('b', m.VARIATION)})"
    return f"clamp_min({variation}, 0.02)"


def _mean(metric: str, ratio: str, meaning: str) -> stat.Panel:
    return _neutral(
        signed(
            f"{metric}, %",
            f"B relative to A, geometric mean over all common workloads. Positive: B {meaning}.",
            f"(exp(avg(ln(1 + {ratio}))) - 1)",
            missing="no common workloads",
        )
    )


def _neutral(panel: stat.Panel) -> stat.Panel:
    blue = [prop("color", {"mode": "fixed", "fixedColor": "blue"})]
    purple = [prop("color", {"mode": "fixed", "fixedColor": "purple"})]
    return panel.override_by_query("A", blue).override_by_query("B", purple)


def _cpu() -> stat.Panel:
    def cost(side: str) -> str:
        total = _of(side, m.HOST_CPU, component="total")
        return f"{total} / sum by (workload) ({_of(side, m.IOPS)} > 0)"

    return _neutral(
        signed(
            "CPU cost, %",
            "Host CPU per operation, B relative to A, geometric mean. Positive: B costs less.",
            f"(exp(avg(ln(({cost('a')}) / ({cost('b')})))) - 1)",
            missing="no common workloads",
        )
    )


def _count(title: str, sign: str) -> stat.Panel:
    ratio = _ratio(m.IOPS)
    limit = _noise() if sign == ">" else f"-1 * {_noise()}"
    return number(
        title,
        f"Workloads in which B is {title.removeprefix('B ')} by more than noise.",
        f"count({ratio} {sign} {limit}) or 0 * count({ratio})",
        missing="no common workloads",
    )


def _within_noise() -> stat.Panel:
    ratio = _ratio(m.IOPS)
    return number(
        "Within noise",
        "Workloads in which A and B differ by no more than noise.",
        f"count(abs({ratio}) <= {_noise()}) or 0 * count({ratio})",
        missing="no common workloads",
    )


def _table() -> table.Panel:
    p99 = {"percentile": "99"}
    return rows(
        "Results by workload",
        "Latest successful runs at the selected times. Positive: B is better.",
        ("description", "direction", "workload"),
        (
            Column(title="A IOPS", expression=_of("a", m.IOPS), unit="iops"),
            Column(title="B IOPS", expression=_of("b", m.IOPS), unit="iops"),
            Column(title="B vs A", expression=_ratio(m.IOPS), change=True, neutral=True),
            Column(title="noise ±", expression=_noise(), unit="percentunit", decimals=1),
            Column(
                title="A p99",
                expression=_of("a", m.LATENCY_PERCENTILE, **p99),
                unit="s",
                decimals=2,
            ),
            Column(
                title="B p99",
                expression=_of("b", m.LATENCY_PERCENTILE, **p99),
                unit="s",
                decimals=2,
            ),
            Column(
                title="B vs A (p99)",
                expression=_inverse(m.LATENCY_PERCENTILE, **p99),
                change=True,
                neutral=True,
            ),
            Column(title="named", expression=_named()),
        ),
        sort="B vs A",
        linked=False,
        hidden=("named", "workload"),
        missing="no common workloads",
    ).override_by_name("named", [prop("custom.hidden", True)])


def _named() -> str:
    """Return the workloads of both sides with their descriptions; the values have no meaning."""
    both = series(m.IOPS, node="$node_a|$node_b", scenario="${storage_a}.${a}|${storage_b}.${b}")
    return with_descriptions(f"(max by (job, instance, {KEYS}) ({both}))", scenario="")


def _differences() -> bargauge.Panel:
    return changes_bars(
        "B relative to A, IOPS",
        "Reads and writes on one scale. Positive: B is faster.",
        f"({_ratio(m.IOPS)} * on ({KEYS}) group_left (description) (0 * {_named()} + 1))",
        "{{description}} ({{direction}})",
        described=False,
        neutral=True,
        missing="no differences between common workloads",
    ).min(0)


def _definition(side: str) -> table.Panel:
    return facts(
        f"Configuration {side.upper()}",
        "All options of the disk and its VM.",
        series(m.SCENARIO_INFO, node=f"$node_{side}", scenario=f"${{storage_{side}}}.${{{side}}}"),
    )


def _overlay() -> timeseries.Panel:
    return lines(
        "IOPS over time, A solid and B dashed",
        "Each value is held until the next run.",
        [
            query(_of("a", m.IOPS, " "), legend="A {{workload}} {{direction}}", ref="A"),
            query(_of("b", m.IOPS, " "), legend="B {{workload}} {{direction}}", ref="B"),
        ],
        unit="iops",
        log=True,
        linked=False,
    ).override_by_query("B", [prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})])
