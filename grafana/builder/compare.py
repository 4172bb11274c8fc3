"""Compare A with B: two configurations of any nodes and storages, and all, over time."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, timeseries
from grafana_foundation_sdk.models import dashboard as models

from builder import panels as p
from builder.charts import FEW_POINTS, in_own_unit, lines
from builder.looks import UNSEEN, plain, prop
from builder.parts import base, instant, label_variable, query, query_variable, workload_variable
from builder.promql import MAX_SERIES, coded, highest, in_own, label, series, with_descriptions
from builder.results import results
from builder.tables import Column, noise_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

KEYS: Final = "workload, direction"
P99: Final = {"percentile": "99"}
BOTH: Final = {
    "node": "$node_a|$node_b",
    "storage": "$storage_a|$storage_b",
    "workload": "$workload",
}
LEGEND: Final = "{{description}}: {{configuration}} ({{storage}}, {{node}})"
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
    "verdict it is unknown. Colors don't rate: A is purple, B is blue. The last row has the trends "
    "of all configurations of both storages."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    # B defaults to another node, if any, so that comparing two nodes takes no click.
    sides = (
        variable
        for side in "ab"
        for variable in (_node(side), _storage(side), _configuration(side))
    )
    board = base(
        "Compare A with B",
        "pvebench-compare",
        "Compares two combinations of node, storage and configuration over time.",
        *sides,
        _workloads(),
        node="$node_a|$node_b",
        scenario="$a|$b",
    )
    charts = ((7, _throughput(), _latency(), _cpu()),)
    return p.stacked(
        board,
        p.status(),
        (5, (14, _sentence()), (10, _settings())),
        (p.fit(9), _table()),
        p.Section("$workload", charts, collapsed=False, repeat="workload"),
        p.section("Trends of all configurations", (12, _configurations()), *_trends()),
        p.intro(INTRO),
    )


def _node(side: str) -> dashboard.QueryVariable:
    other = side == "b"
    return label_variable(f"node_{side}", f"{side.upper()}: node", of="node", descending=other)


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


def _sentence() -> p.Panel:
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
    panel = p.names(
        "B against A", "Geometric mean of the throughput.", _ratio(), "", missing=NOTHING
    )
    return panel.text(common.VizTextDisplayOptions().value_size(22)).targets(
        [*targets, instant(f"vector(1) unless on () {_ratio()}", legend=NOTHING, ref="Z")]
    )


def _settings() -> p.Panel:
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
        hidden=("Value #A", "Value #B"),
        present=unlike(", ".join(SETTINGS), "a", "b"),
        missing="no setting differs",
    )


def _table() -> p.Panel:
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
    chart = lines(title, description, targets, unit=unit, zero=True, points=FEW_POINTS)
    for ref in sides:
        look = [prop("color", plain(COLORS[ref])), prop("custom.lineWidth", 2)]
        chart = chart.override_by_query(ref, look)
    return chart


def _throughput() -> p.Panel:
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


def _latency() -> p.Panel:
    sides = {side.upper(): _of(side, f.CLAT_PERCENTILE.metric, **P99) for side in "ab"}
    return _chart("Latency, p99", "99% of operations are faster. Lower is better.", sides, "s")


def _cpu() -> p.Panel:
    sides = {side.upper(): _cost(side) for side in "ab"}
    return _chart("CPU per I/O", "Host CPU time of one operation. Lower is better.", sides, "s")


# --- All configurations of both storages.


def _configurations() -> p.Panel:
    text = "Latest values with their trend; the throughput also relative to its mean in the range."
    titles = ("to mean", "bandwidth", "p99", "CPU per I/O")
    return results("All configurations", text, BOTH, *titles, named=True)


def _trends() -> tuple[p.Line, ...]:
    low = "Logarithmic. Lower is better."
    charts: tuple[p.Panel, ...] = tuple(
        lines(
            title,
            f"{text} The {MAX_SERIES} highest; select a workload above.",
            {LEGEND: highest(series(metric, **BOTH, **more), workload=True)},
            unit=unit,
            log=unit == "s",
            linked=True,
        )
        for title, text, metric, more, unit in (
            ("IOPS", "Mean of each run.", f.IOPS.metric, {}, "iops"),
            ("Completion latency, p99", low, f.CLAT_PERCENTILE.metric, P99, "s"),
            ("Maximum latency", f"Longest stall of each run. {low}", f.CLAT_MAX.metric, {}, "s"),
            (
                "QEMU's host CPU, cores",
                "During the workload.",
                f.HOST_CPU.metric,
                {"component": "qemu"},
                "none",
            ),
        )
    )
    return (10, *charts[:2]), (10, *charts[2:])
