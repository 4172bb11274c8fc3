"""Compare A with B: two configurations side by side."""

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
from builder.promql import in_words, series
from builder.tables import Column, facts, rows
from pvebench.metrics.catalog import (
    ENVIRONMENT_END,
    HOST_CPU,
    IOPS,
    LATENCY_PERCENTILE,
    SCENARIO_INFO,
    VARIATION,
    Metric,
)
from pvebench.model.disk import Bus

KEYS: Final = "workload, direction"
BUSES: Final = f"(?:{'|'.join(Bus)})"
INTRO: Final = (
    "**What does B give that A does not?** Any two of node, storage, setting and moment, workload "
    "by workload. **Plus: B gives more** (IOPS), or needs less (latency, CPU). A difference counts "
    "when it is larger than the steadiness of both (the variation within their runs). Neither side "
    "is the better one by itself, so the colours are neutral: blue is B, purple is A."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    built = base(
        "Compare A with B",
        "pvebench-compare",
        "Any two of node, storage, setting and moment, workload by workload.",
        since="7d",
    ).annotation(environment_changes(node="$node_a|$node_b"))
    built = built.annotation(changes(node="$node_a|$node_b"))
    for side in ("a", "b"):
        # B is another node where there is one, so that two nodes are compared without a click.
        other = side == "b"
        built = (
            built.with_variable(_node(side, descending=other))
            .with_variable(_storage(side))
            .with_variable(_setting(side))
            .with_variable(_when(side))
        )
    return (
        built.with_panel(_mean("Throughput", _ratio(IOPS)).grid_pos(place(0, 0, 4, 4)))
        .with_panel(
            _mean("Latency p99", _inverse(LATENCY_PERCENTILE, percentile="99")).grid_pos(
                place(4, 0, 4, 4)
            )
        )
        .with_panel(_cpu().grid_pos(place(8, 0, 4, 4)))
        .with_panel(_count("B gives more", ">").grid_pos(place(12, 0, 4, 4)))
        .with_panel(_same().grid_pos(place(16, 0, 4, 4)))
        .with_panel(_count("B gives less", "<").grid_pos(place(20, 0, 4, 4)))
        .with_panel(_table().grid_pos(place(0, 4, 24, 11)))
        .with_panel(_differences().grid_pos(place(0, 15, 12, 12)))
        .with_panel(_settings("a").grid_pos(place(12, 15, 6, 12)))
        .with_panel(_settings("b").grid_pos(place(18, 15, 6, 12)))
        .with_panel(_overlay().grid_pos(place(0, 27, 24, 10)))
        .with_panel(intro(INTRO, y=37))
    )


def _node(side: str, *, descending: bool) -> dashboard.QueryVariable:
    return label_variable(f"node_{side}", f"{side.upper()}: node", of="node", descending=descending)


def _storage(side: str) -> dashboard.QueryVariable:
    among = f'node=~"$node_{side}"'
    return label_variable(f"storage_{side}", f"{side.upper()}: storage", of="storage", among=among)


def _setting(side: str) -> dashboard.QueryVariable:
    """Return the variable of a setting: words to read, the slug behind the storage as its value."""
    here = series(SCENARIO_INFO, node=f"$node_{side}", storage=f"$storage_{side}")
    if side == "b":
        a = {"node": "$node_a", "storage": "$storage_a", "scenario": "${storage_a}.${a}"}
        of_a = series(SCENARIO_INFO, **a)
        # A's own setting where node or storage differ; of the same disk, any other one first.
        equal = f"({here} and on (configuration) {of_a})"
        itself = f"({here} and on (node, storage, configuration) {of_a})"
        here = f"(0 * ({equal} unless {itself}) or 2 * {itself} or {here})"
    rest = f'label_replace({here}, "rest", "$1", "scenario", ".+?\\\\.({BUSES}\\\\..+)")'
    named = f'label_join({rest}, "shown", "  ·  ", "configuration", "rest")'
    text = f"query_result(sort(max by (rest, shown) ({named})))"
    return (
        query_variable(side, f"{side.upper()}: setting", text)
        .regex('/rest="(?<value>[^"]+)".*shown="(?<text>[^"]+)"/')
        .multi(False)
        .include_all(False)
    )


def _when(side: str) -> dashboard.QueryVariable:
    """Return the variable of a moment: now, or the end of an episode."""
    ends = series(ENVIRONMENT_END, node=f"$node_{side}")
    named = f'label_join({ends} < time() - 86400, "shown", "", "environment")'
    now = 'label_replace(vector(time()), "shown", "now", "", "")'
    text = f"query_result(sort_desc(max by (shown) ({named} or {now})))"
    return (
        query_variable(f"when_{side}", f"{side.upper()}: end of", text)
        .regex('/shown="(?<text>[^"]+)"\\} (?<value>[0-9.e+]+) /')
        .multi(False)
        .include_all(False)
    )


def _of(side: str, metric: Metric, when: str = "", **more: str) -> str:
    """Return a metric of one side by workload, at its moment; `when`: what else stands for that."""
    chosen = series(
        metric, node=f"$node_{side}", scenario=f"${{storage_{side}}}.${{{side}}}", **more
    )
    keys = KEYS if "direction" in metric.labels else "workload"
    return f"max by ({keys}) ({chosen}{when or f' @ $when_{side}'})"


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
    return _neutral(
        signed(
            f"{what}, %",
            "B against A, geometric mean over all workloads that both have; plus: B gives more "
            "or needs less.",
            f"(exp(avg(ln(1 + {ratio}))) - 1)",
            missing="nothing in common",
        )
    )


def _neutral(panel: stat.Panel) -> stat.Panel:
    colour = [prop("color", {"mode": "fixed", "fixedColor": "blue"})]
    other = [prop("color", {"mode": "fixed", "fixedColor": "purple"})]
    return panel.override_by_query("A", colour).override_by_query("B", other)


def _cpu() -> stat.Panel:
    def cost(side: str) -> str:
        return (
            f"{_of(side, HOST_CPU, component='total')} / sum by (workload) ({_of(side, IOPS)} > 0)"
        )

    return _neutral(
        signed(
            "CPU cost, %",
            "B against A: host CPU for each operation, geometric mean; plus: B costs less.",
            f"(exp(avg(ln(({cost('a')}) / ({cost('b')})))) - 1)",
            missing="nothing in common",
        )
    )


def _count(title: str, sign: str) -> stat.Panel:
    ratio = _ratio(IOPS)
    limit = _noise() if sign == ">" else f"-1 * {_noise()}"
    return number(
        title,
        "Workloads whose difference is larger than the steadiness of both.",
        f"count({ratio} {sign} {limit}) or 0 * count({ratio})",
        missing="nothing in common",
    )


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
        "Last good runs at the moments chosen. Plus: B gives more, or needs less.",
        ("description", "direction", "workload"),
        (
            Column(title="A IOPS", expression=_of("a", IOPS), unit="iops"),
            Column(title="B IOPS", expression=_of("b", IOPS), unit="iops"),
            Column(title="B to A", expression=_ratio(IOPS), change=True, neutral=True),
            Column(title="noise ±", expression=_noise(), unit="percentunit", decimals=1),
            Column(
                title="A p99", expression=_of("a", LATENCY_PERCENTILE, **p99), unit="s", decimals=2
            ),
            Column(
                title="B p99", expression=_of("b", LATENCY_PERCENTILE, **p99), unit="s", decimals=2
            ),
            Column(
                title="B to A (p99)",
                expression=_inverse(LATENCY_PERCENTILE, **p99),
                change=True,
                neutral=True,
            ),
            Column(title="named", expression=_named()),
        ),
        sort="B to A",
        linked=False,
        hidden=("named", "workload"),
        missing="nothing in common",
    ).override_by_name("named", [prop("custom.hidden", True)])


def _named() -> str:
    """Return the workloads of both sides with their words; the values are of no use."""
    both = series(IOPS, node="$node_a|$node_b", scenario="${storage_a}.${a}|${storage_b}.${b}")
    return in_words(f"(max by (job, instance, {KEYS}) ({both}))", scenario="")


def _differences() -> bargauge.Panel:
    return changes_bars(
        "B against A, IOPS",
        "Bars on one scale for both directions; plus: B gives more.",
        f"({_ratio(IOPS)} * on ({KEYS}) group_left (description) (0 * {_named()} + 1))",
        "{{description}} ({{direction}})",
        words=False,
        neutral=True,
        missing="none among the workloads that both have",
    ).min(0)


def _settings(side: str) -> table.Panel:
    return facts(
        f"Settings of {side.upper()}",
        "Every option of the disk and the VM around it.",
        series(SCENARIO_INFO, node=f"$node_{side}", scenario=f"${{storage_{side}}}.${{{side}}}"),
    )


def _overlay() -> timeseries.Panel:
    return lines(
        "IOPS over time, A solid and B dashed",
        "Held values.",
        [
            query(_of("a", IOPS, " "), legend="A {{workload}} {{direction}}", ref="A"),
            query(_of("b", IOPS, " "), legend="B {{workload}} {{direction}}", ref="B"),
        ],
        unit="iops",
        log=True,
        linked=False,
    ).override_by_query("B", [prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})])
