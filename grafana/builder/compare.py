"""Compare A with B: two configurations of any nodes and storages, over time."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as models

from builder.charts import FEW_POINTS, in_own_unit, lines
from builder.looks import MINUS, UNSEEN, plain, prop
from builder.panels import intro, names, number
from builder.parts import (
    base,
    instant,
    label_variable,
    place,
    query,
    query_variable,
    workload_variable,
)
from builder.promql import coded, in_own, label, minus, plus, series, with_descriptions
from builder.tables import Column, noise_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

KEYS: Final = "workload, direction"
P99: Final = {"percentile": "99"}
NOTHING: Final = "no common workloads"
COLORS: Final = {"A": "purple", "B": "blue"}
EDGES: Final = {" upper": "1", " lower": "-1"}
"""Name after a side's -> sign of the noise."""
SETTINGS: Final = [
    name for name in m.SCENARIO_INFO.labels if name not in {"scenario", "configuration", "disk"}
]
"""Labels that are one setting each."""
INTRO: Final = (
    "**How does B differ from A?** Compares two combinations of node, storage and configuration, "
    "by workload and over time. Throughput differs in percent; ×1.67 is 1.67 times the latency or "
    "the CPU per I/O of A, where less is better. *Noise* is that of both verdicts; without a "
    "verdict it is unknown. Colors don't rate: A is purple, B is blue."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    built = base(
        "Compare A with B",
        "pvebench-compare",
        "Compares two combinations of node, storage and configuration over time.",
        node="$node_a|$node_b",
        scenario="$a|$b",
    )
    for side in ("a", "b"):
        # B defaults to another node, if any, so that comparing two nodes takes no click.
        built = (
            built.with_variable(_node(side, descending=side == "b"))
            .with_variable(_storage(side))
            .with_variable(_configuration(side))
        )
    return (
        built.with_variable(_workloads())
        .with_panel(_sentence().grid_pos(place(0, 0, 14, 6)))
        .with_panel(_settings().grid_pos(place(14, 0, 10, 6)))
        .with_panel(_table().grid_pos(place(0, 6, 24, 9)))
        .with_row(dashboard.Row("$workload").repeat("workload").grid_pos(place(0, 15, 24, 1)))
        .with_panel(_throughput().grid_pos(place(0, 16, 8, 7)))
        .with_panel(_latency().grid_pos(place(8, 16, 6, 7)))
        .with_panel(_cpu().grid_pos(place(14, 16, 6, 7)))
        .with_panel(_difference().grid_pos(place(20, 16, 4, 7)))
        .with_row(dashboard.Row("About").grid_pos(place(0, 23, 24, 1)))
        .with_panel(intro(INTRO, y=24))
    )


def _node(side: str, *, descending: bool) -> dashboard.QueryVariable:
    return label_variable(f"node_{side}", f"{side.upper()}: node", of="node", descending=descending)


def _storage(side: str) -> dashboard.QueryVariable:
    among = f'node=~"$node_{side}"'
    return label_variable(f"storage_{side}", f"{side.upper()}: storage", of="storage", among=among)


def _configuration(side: str) -> dashboard.QueryVariable:
    """Return a configuration variable; its value is the scenario."""
    here = series(m.SCENARIO_INFO, node=f"$node_{side}", storage=f"$storage_{side}")
    if side == "b":
        of_a = _options("a")
        # Default: A's configuration on another node or storage; otherwise another one first.
        same = f"({here} and on (configuration) {of_a})"
        itself = f"({here} and on (node, storage, configuration) {of_a})"
        here = f"(0 * ({same} unless {itself}) or 2 * {itself} or {here})"
    named = f'label_join({here}, "shown", "  ·  ", "configuration", "scenario")'
    text = f"query_result(sort(max by (scenario, shown) ({named})))"
    return (
        query_variable(side, f"{side.upper()}: configuration", text)
        .regex('/scenario="(?<value>[^"]+)".*shown="(?<text>[^"]+)"/')
        .multi(False)
        .include_all(False)
    )


def _options(side: str) -> str:
    return series(m.SCENARIO_INFO, node=f"$node_{side}", scenario=f"${side}")


def _workloads() -> dashboard.QueryVariable:
    """Return the variable of the workloads, for each of which the charts repeat."""
    among = 'node=~"$node_a|$node_b",scenario=~"$a|$b"'
    every = models.VariableOption(text="All", value="$__all", selected=True)
    return workload_variable(multi=True, among=among).current(every)


def _result(side: str, metric: Metric, /, **more: str) -> str:
    """Return a metric of one side, with the workloads that the variable selects."""
    return series(metric, node=f"$node_{side}", scenario=f"${side}", workload="$workload", **more)


def _of(side: str, metric: Metric, /, **more: str) -> str:
    """Return a metric of one side by workload."""
    return f"max by ({KEYS}) ({_result(side, metric, **more)})"


def _cost(side: str) -> str:
    """Return the CPU time per I/O of one side by workload, in seconds of one core."""
    # Not the recorded ratio: imports of the past have no recorded series.
    cores = f"max by (workload) ({_result(side, f.HOST_CPU.metric, component='total')})"
    return f"({cores} / (sum by (workload) ({_result(side, f.IOPS.metric)}) > 0))"


def _ratio() -> str:
    """Return B / A - 1 of the throughput."""
    return f"({_of('b', f.IOPS.metric)} / ({_of('a', f.IOPS.metric)} > 0) - 1)"


def _p99() -> str:
    """Return B / A of the p99 latency."""
    sides = (_of(side, f.CLAT_PERCENTILE.metric, **P99) for side in "ba")
    return " / ".join(f"({side} > 0)" for side in sides)


def _noise() -> str:
    """Return the noise of both verdicts, as a ratio."""
    a, b = (_of(side, m.CHANGE_THRESHOLD, metric="throughput") for side in "ab")
    return f"sqrt({a} ^ 2 + {b} ^ 2)"


def _sentence() -> stat.Panel:
    """Return the sentence: its numbers become labels."""
    targets = []
    for ref, sign, word in (("A", "<", "slower"), ("B", ">=", "faster")):
        some = f"({_ratio()} {sign} 0)"
        mean = f"abs(exp(avg(ln(1 + {_ratio()}))) - 1)"
        counts = {
            "percent": f"round(100 * {mean}) and on () (avg(ln(1 + {_ratio()})) {sign} 0)",
            "n": f"count({some})",
            "all": f"count({_ratio()})",
            "clear": f"count(abs({some}) > {_noise()}) or 0 * count({_noise()})",
        }
        first, *others = (f'count_values("{name}", {one})' for name, one in counts.items())
        labels = list(counts)[1:]
        beyond, unknown = ", in $1 of them by more than noise", "; noise is unknown yet"
        others[-1] = (
            f'(label_replace({others[-1]}, "clear", "{beyond}", "clear", "(.+)") '
            f"or on () {label('clear', unknown)})"
        )
        joined = "".join(
            f" * on () group_left ({label}) {one}"
            for label, one in zip(labels, others, strict=True)
        )
        text = f"B is {{{{percent}}}}% {word} than A: {word} in {{{{n}}}} of {{{{all}}}} results"
        targets.append(instant(first + joined, legend=text + "{{clear}}", ref=ref))
    panel = names("B against A", "Geometric mean of the throughput.", _ratio(), "", missing=NOTHING)
    return panel.text(common.VizTextDisplayOptions().value_size(22)).targets(
        [*targets, instant(f"vector(1) unless on () {_ratio()}", legend=NOTHING, ref="Z")]
    )


def _settings() -> table.Panel:
    """Return the settings in which both sides differ."""

    def unlike(names: str, one: str, other: str) -> str:
        return f"({_options(one)} unless on ({names}) {_options(other)})"

    def of(*sides: str) -> str:
        name = sides[0].upper()
        settings = (
            f'label_replace({unlike(one, *sides)}, "{name}", "$1", "{one}", "(.*)")'
            f" * on () group_left (setting) {label('setting', one)}"
            for one in SETTINGS
        )
        return f"max by (setting, {name}) ({' or '.join(settings)})"

    return rows(
        "Settings that differ",
        "All other settings of both sides are the same.",
        ("setting", "A", "B"),
        (Column("of A", of("a", "b")), Column("of B", of("b", "a"))),
        sort="setting",
        descending=False,
        linked=False,
        hidden=("Value #A", "Value #B"),
        present=unlike(", ".join(SETTINGS), "a", "b"),
        missing="no setting differs",
    )


def _table() -> table.Panel:
    cost = f"{_cost('b')} / {_cost('a')}"
    columns = [
        Column(f"{side.upper()} {title}", _of(side, metric, **more), unit=unit)
        for title, metric, unit, more in (
            ("IOPS", f.IOPS.metric, "iops", {}),
            ("p99", f.CLAT_PERCENTILE.metric, "s", P99),
        )
        for side in "ab"
    ]
    changed = (
        ("B vs A", coded(_ratio())),
        ("p99 B vs A", coded("", _p99())),
        (
            "CPU per I/O B vs A",
            coded("", f"{cost} * on (workload) group_right () (0 * {_of('a', f.IOPS.metric)} + 1)"),
        ),
    )
    return rows(
        "Results by workload",
        "Latest successful runs. The charts below show the same over time.",
        ("description", "direction", "workload"),
        (
            *columns[:2],
            *(
                Column(title, one, change=True, coded=True, neutral=True)
                for title, one in changed[:1]
            ),
            noise_column(_noise()),
            *columns[2:],
            *(
                Column(title, one, change=True, coded=True, neutral=True)
                for title, one in changed[1:]
            ),
            Column("named", _named()),
        ),
        sort="B vs A",
        linked=False,
        hidden=("named", "workload"),
        missing=NOTHING,
    ).override_by_name("named", [prop("custom.hidden", True)])


def _named() -> str:
    """Return the workloads of both sides with their descriptions; the values have no meaning."""
    both = series(f.IOPS.metric, node="$node_a|$node_b", scenario="$a|$b", workload="$workload")
    return with_descriptions(f"(max by (job, instance, {KEYS}) ({both}))", scenario="")


def _chart(
    title: str, description: str, sides: dict[str, str], unit: str, *, edge: str = ""
) -> timeseries.Panel:
    """Return a chart of both sides; `sides`: letter of the side -> query."""
    targets = [
        query(one, legend=f"{ref} {{{{direction}}}}{edge}", ref=ref) for ref, one in sides.items()
    ]
    chart = lines(
        title,
        description,
        targets,
        unit=unit,
        linked=False,
        right=False,
        zero=True,
        points=FEW_POINTS,
    )
    for ref in sides:
        look = [prop("color", plain(COLORS[ref])), prop("custom.lineWidth", 2)]
        chart = chart.override_by_query(ref, look)
    return chart


def _throughput() -> timeseries.Panel:
    def of(side: str) -> str:
        value = in_own(_of(side, f.IOPS.metric), _of(side, f.BANDWIDTH.metric))
        noise = _of(side, m.CHANGE_THRESHOLD, metric="throughput")
        # Signs on constants, so that each metric is read once.
        one = f"group by ({KEYS}) ({series(m.WORKLOAD_INFO, workload='$workload')} @ end())"
        signs = " or ".join(label("edge", name, f"{sign} * {one}") for name, sign in EDGES.items())
        joined = f"on ({KEYS}) group_right ()"
        return f"{value} * {joined} (1 + {noise} * {joined} ({signs}) or {one})"

    chart = _chart(
        "Throughput",
        "I/O operations below blocks of 64 KiB, otherwise bytes, with the noise of the verdict.",
        {side.upper(): of(side) for side in "ab"},
        "none",
        edge="{{edge}}",
    ).override_by_regexp("/ (upper|lower)$/", UNSEEN)
    for name in (f"{side} {direction}" for side in COLORS for direction in ("read", "write")):
        band = [prop("custom.fillBelowTo", f"{name} lower"), prop("custom.fillOpacity", 25)]
        chart = chart.override_by_name(f"{name} upper", band)
    return in_own_unit(chart)


def _latency() -> timeseries.Panel:
    sides = {side.upper(): _of(side, f.CLAT_PERCENTILE.metric, **P99) for side in "ab"}
    return _chart("Latency, p99", "99% of operations are faster. Lower is better.", sides, "s")


def _cpu() -> timeseries.Panel:
    sides = {side.upper(): _cost(side) for side in "ab"}
    return _chart("CPU per I/O", "Host CPU time of one operation. Lower is better.", sides, "s")


def _difference() -> stat.Panel:
    panel = number(
        "B vs A",
        "Latest results: throughput in percent, latency and CPU as a factor.",
        "",
        missing=NOTHING,
        decimals=1,
    ).targets(
        [
            instant(plus(_ratio()), legend="{{direction}}, %"),
            instant(minus(_ratio()), legend="{{direction}}, %", ref="B"),
            instant(_p99(), legend="p99, {{direction}}", ref="C"),
            instant(f"{_cost('b')} / {_cost('a')}", legend="CPU per I/O", ref="D"),
        ]
    )
    signs = {"A": "+", "B": MINUS, "C": "×", "D": "×"}
    panel = panel.text(common.VizTextDisplayOptions().value_size(24).title_size(13))
    for ref, sign in signs.items():
        looks = [prop("unit", f"prefix:{sign}"), prop("decimals", 2 if sign == "×" else 1)]
        panel = panel.override_by_query(ref, looks)
    return panel
