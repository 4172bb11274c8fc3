"""Compare A with B: two configurations of any nodes and storages, and all, over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from grafana_foundation_sdk.builders import dashboard, timeseries
from grafana_foundation_sdk.models import dashboard as models

from builder import stat_panels as p
from builder.charts import FEW_POINTS, in_own_unit, lines
from builder.looks import UNSEEN, plain, prop
from builder.parts import base, instants, label_variable, query_variable, workload_variable
from builder.promql import MAX_SERIES, coded, highest, in_own, label, series, with_descriptions
from builder.results import results
from builder.tables import HIDDEN, Column, noise_column, rows
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric

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
    sides = (one for side in "ab" for one in (*_place(side), _configuration(side)))
    among = 'node=~"$node_a|$node_b",scenario=~"$a|$b"'
    every = models.VariableOption(text="All", value="$__all", selected=True)
    board = base(
        "Compare A with B",
        "pvebench-compare",
        "Compares two combinations of node, storage and configuration over time.",
        *sides,
        workload_variable(multi=True, among=among).current(every),
        node="$node_a|$node_b",
        scenario="$a|$b",
    )
    cpu = _chart("CPU per I/O", "Host CPU time of one operation. Lower is better.", _cost, "s")
    charts = ((7, _throughput(), _latency(), cpu),)
    return p.stacked(
        board,
        p.status(),
        (5, (14, _sentence()), (10, _settings())),
        (p.fit(9), _table()),
        p.Section("$workload", charts, collapsed=False, repeat="workload"),
        p.section("Trends of all configurations", (12, _configurations()), *_trends()),
        p.intro(INTRO),
    )


def _place(side: str) -> Iterator[dashboard.QueryVariable]:
    """Yield the variables of node and storage."""
    name, among = side.upper(), f'node=~"$node_{side}"'
    last = side == "b"
    yield label_variable(f"node_{side}", f"{name}: node", of="node", descending=last)
    yield label_variable(f"storage_{side}", f"{name}: storage", of="storage", among=among)


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
    variable = query_variable(side, f"{side.upper()}: configuration", text)
    variable = variable.regex('/scenario="(?<value>[^"]+)".*shown="(?<text>[^"]+)"/')
    return variable.multi(False).include_all(False)


def _options(side: str) -> str:
    return series(m.SCENARIO_INFO, node=f"$node_{side}", scenario=f"${side}")


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


def _noise() -> str:
    """Return the noise of both verdicts, as a ratio."""
    a, b = (_of(side, m.CHANGE_THRESHOLD, metric="throughput") for side in "ab")
    return f"sqrt({a} ^ 2 + {b} ^ 2)"


def _sentence() -> p.Panel:
    """Return the sentence: its numbers become labels."""
    beyond, unknown = ", in $1 of them by more than noise", "; noise is unknown yet"
    mean = f"avg(ln(1 + {_ratio()}))"
    sentences = []
    for sign, word in (("<", "slower"), (">=", "faster")):
        some = f"({_ratio()} {sign} 0)"
        clear = f"count(abs({some}) > {_noise()}) or 0 * count({_noise()})"
        clear = f'label_replace({_counted("clear", clear)}, "clear", "{beyond}", "clear", "(.+)")'
        joined = [
            _counted("percent", f"round(100 * abs(exp({mean}) - 1)) and on () ({mean} {sign} 0)"),
            f"on () group_left (n) {_counted('n', f'count({some})')}",
            f"on () group_left (all) {_counted('all', f'count({_ratio()})')}",
            f"on () group_left (clear) ({clear} or on () {label('clear', unknown)})",
        ]
        text = f"B is {{{{percent}}}}% {word} than A: {word} in {{{{n}}}} of {{{{all}}}} results"
        sentences.append((text + "{{clear}}", " * ".join(joined)))
    sentences.append((NOTHING, f"vector(1) unless on () {_ratio()}"))
    panel = p.names("B against A", "Geometric mean of the throughput.", "", "", missing=NOTHING)
    return panel.text(p.font(22)).targets([*instants(sentences, "ABZ")])


def _counted(name: str, value: str) -> str:
    return f'count_values("{name}", {value})'


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
    def differing(title: str, coded_: str) -> Column:
        return Column(title, coded_, change=True, coded=True, neutral=True)

    iops_a, iops_b = (_of(side, f.IOPS.metric) for side in "ab")
    p99_a, p99_b = (_of(side, f.CLAT_PERCENTILE.metric, **P99) for side in "ab")
    both = series(f.IOPS.metric, node="$node_a|$node_b", scenario="$a|$b", workload="$workload")
    # The workloads of both sides with their descriptions; the values have no meaning.
    named = with_descriptions(f"(max by (job, instance, {KEYS}) ({both}))", scenario="")
    cost = f"{_cost('b')} / {_cost('a')} * on (workload) group_right () (0 * {iops_a} + 1)"
    return rows(
        "Results by workload",
        "Latest successful runs. The charts below show the same over time.",
        ("description", "direction", "workload"),
        (
            Column("A IOPS", iops_a, unit="iops"),
            Column("B IOPS", iops_b, unit="iops"),
            differing("B vs A", coded(_ratio())),
            noise_column(_noise()),
            Column("A p99", p99_a, unit="s"),
            Column("B p99", p99_b, unit="s"),
            differing("p99 B vs A", coded("", f"({p99_b} > 0) / ({p99_a} > 0)")),
            differing("CPU per I/O B vs A", coded("", cost)),
            Column("named", named),
        ),
        sort="B vs A",
        hidden=("named", "workload"),
        missing=NOTHING,
        styles={"named": HIDDEN},
    )


def _chart(
    title: str, text: str, of: Callable[[str], str], unit: str, *, edge: str = ""
) -> timeseries.Panel:
    """Return a chart of both sides; `of`: query of a side."""
    targets = {f"{side.upper()} {{{{direction}}}}{edge}": of(side) for side in "ab"}
    chart = lines(title, text, targets, unit=unit, zero=True, points=FEW_POINTS)
    for ref, color in COLORS.items():
        chart = chart.override_by_query(
            ref, [prop("color", plain(color)), prop("custom.lineWidth", 2)]
        )
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

    text = "I/O operations below blocks of 64 KiB, otherwise bytes, with the noise of the verdict."
    chart = _chart("Throughput", text, of, "none", edge="{{edge}}")
    chart = chart.override_by_regexp("/ (upper|lower)$/", UNSEEN)
    for name in (f"{side} {direction}" for side in COLORS for direction in ("read", "write")):
        band = [prop("custom.fillBelowTo", f"{name} lower"), prop("custom.fillOpacity", 25)]
        chart = chart.override_by_name(f"{name} upper", band)
    return in_own_unit(chart)


def _latency() -> p.Panel:
    def of(side: str) -> str:
        return _of(side, f.CLAT_PERCENTILE.metric, **P99)

    return _chart("Latency, p99", "99% of operations are faster. Lower is better.", of, "s")


# --- All configurations of both storages.


def _configurations() -> p.Panel:
    text = "Latest values with their trend; the throughput also relative to its mean in the range."
    titles = ("to mean", "bandwidth", "p99", "CPU per I/O")
    return results("All configurations", text, BOTH, *titles, named=True)


def _trends() -> tuple[p.Line, ...]:
    stall, qemu = "Longest stall of each run.", {"component": "qemu"}
    iops, p99, longest, cpu = (
        lines(
            title,
            f"{text} The {MAX_SERIES} highest; select a workload above.",
            {LEGEND: highest(series(metric, **BOTH, **more))},
            unit=unit,
            log=unit == "s",
            linked=True,
        )
        for title, text, metric, more, unit in (
            ("IOPS", "Mean of each run.", f.IOPS.metric, {}, "iops"),
            ("Completion latency, p99", "Of each run.", f.CLAT_PERCENTILE.metric, P99, "s"),
            ("Maximum latency", stall, f.CLAT_MAX.metric, {}, "s"),
            ("QEMU's host CPU, cores", "During the workload.", f.HOST_CPU.metric, qemu, "none"),
        )
    )
    return (10, iops, p99), (10, longest, cpu)
