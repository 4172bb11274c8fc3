"""Before/after upgrade: comparison of two environments, and the cases of open changes."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from builder import promql as q
from builder import stat_panels as p
from builder.charts import FEW_POINTS, levels, timeline
from builder.looks import BETTER, NEUTRAL, WORSE, rated
from builder.parts import base, custom_variable, node_variable, query_variable, storage_variable
from builder.tables import RESULT_LABELS, Column, age_column, noise_column, rows
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = f"job, instance, {q.CASE_KEYS}"
KEYS: Final = f"{CASE}, direction"
JUDGED_KEYS: Final = f"{q.RESULT_KEYS}, metric"
NOISE: Final = "$noise"
SIDES: Final = ("before", "after")
TWO_MOMENTS: Final = " and on () (vector($before) != $after)"
"""Condition that keeps an environment from being compared with itself."""
NO_SIDES: Final = "no upgrade to compare yet"
NAME_PIXELS: Final = 620
"""Width of a full metric name: by default, Grafana limits names to 40% of the panel."""
INTRO: Final = (
    "**Did the upgrade change performance, and which cases got slower?** Compares *Before* with "
    "*After* (by default now) on all selected nodes. Each side is the median of a window. A "
    "*significant* change exceeds the noise of the verdict. ×1.67 is 1.67 times the latency or the "
    "CPU per I/O, where less is better. *Cases of open changes* compares with the baseline; to "
    "make the current level the new baseline, run `pvebench baseline accept`."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    windows = {"3 days": "3d", "1 day": "1d", "7 days": "7d"}
    limits = {"5%": "0.05", "2%": "0.02", "10%": "0.10", "nothing": "0"}
    board = base(
        "Before/after upgrade",
        "pvebench-upgrades",
        "Compares two environments, and lists the cases of open changes.",
        node_variable(),
        storage_variable(),
        _change(),
        _moment("before", "Before: end of", newest=False),
        _moment("after", "After: end of", newest=True),
        custom_variable("window", "Window", windows),
        custom_variable("noise", "Hide below", limits),
        since="90d",
        change="$change",
    )
    return p.stacked(
        board,
        p.status(),
        (4, (9, _compared()), (15, _mean())),
        (9, (13, _trend()), (11, _environments())),
        (p.fit(8), _cases_of_changes()),
        (p.fit(10), _cases()),
        p.section("Verdicts by metric", (4, _counts()), (11, _history())),
        p.intro(INTRO),
    )


def _moment(name: str, title: str, *, newest: bool) -> dashboard.QueryVariable:
    """Return a variable of times; it always has a value, since queries need one."""
    ends = q.series(m.ENVIRONMENT_END, node="$node")
    latest = f"max by (node) ({ends})"
    if not newest:
        # A single environment is compared with itself, which avoids an error.
        only = f"({ends} and on (node) count by (node) ({ends}) == 1)"
        ends = f"(({ends} < on (node) group_left () {latest}) or {only})"
    named = f'label_join({ends}, "shown", ": ", "node", "environment")'
    fallback = q.label("shown", "now", "vector(time())")
    text = f"query_result(sort_desc(max by (shown) ({named} or on () {fallback})))"
    variable = query_variable(name, title, text)
    variable = variable.regex('/shown="(?<text>[^"]+)"\\} (?<value>[0-9.e+]+) /')
    return variable.multi(False).include_all(False)


def _change() -> dashboard.QueryVariable:
    """Return the variable of the change whose cases are listed: All, or that of a link."""
    variable = query_variable("change", "Change", f"query_result({q.changes_of('$node')})")
    # A full sentence would move the other variables to the next line.
    variable = variable.regex('/change="(?<value>[^"]+)".*summary="(?<text>[^"]{1,40})/')
    all_option = models.VariableOption(text="All", value="$__all", selected=True)
    return variable.multi(False).include_all(True).all_value(".*").current(all_option)


def _window(selector: str, moment: str) -> str:
    """Return the values of a window, one per hour: values are held longer, and samples cost."""
    return f"({selector})[$window:1h] @ ${moment}"


def _ratio() -> str:
    """Return after / before - 1 of the throughput."""
    return f"{_factor(q.series(f.IOPS.metric, **HERE))} - 1"


def _median(values: str, moment: str, by: str) -> str:
    return f"max by ({by}) (quantile_over_time(0.5, {_window(values, moment)}) > 0)"


def _factor(values: str, by: str = KEYS) -> str:
    """Return after / before."""
    return f"{_median(values, 'after', by)} / {_median(values, 'before', by)}"


def _noise() -> str:
    """Return the noise of the verdicts, where both windows have several runs."""
    now = f"{q.series(m.CHANGE_THRESHOLD, metric='throughput', **HERE)} @ {q.HELD}"
    runs = (f"changes({_window(q.series(m.RUN_TIMESTAMP, **HERE), one)})" for one in SIDES)
    several = " and ".join(f"(max by ({CASE}) ({one}) > 0)" for one in runs)
    return f"(max by ({KEYS}) ({now}) and on ({CASE}) ({several}))"


def _compared() -> p.Panel:
    return p.counts(
        "Compared cases",
        "Cases with results on both sides, and those whose throughput changed by *Hide below*.",
        {
            "compared": (f"count({_ratio()}){TWO_MOMENTS}", NEUTRAL),
            "slower": (f"sum({_ratio()} < bool -{NOISE}){TWO_MOMENTS}", WORSE),
            "faster": (f"sum({_ratio()} > bool {NOISE}){TWO_MOMENTS}", BETTER),
        },
        missing=NO_SIDES,
    )


def _mean() -> p.Panel:
    text = "Geometric mean over the compared cases of each storage."
    change = f"((exp(avg by (node, storage) (ln(1 + {_ratio()}))) - 1){TWO_MOMENTS})"
    name = "{{storage}}, {{node}}"
    return p.signed("Throughput change, %", text, change, legend=name, missing=NO_SIDES)


def _environments() -> p.Panel:
    keys = "node, environment, pve_version, kernel_version, qemu_version"
    begin, end = (
        f"max by ({keys}) ({q.series(metric, node='$node')})"
        for metric in (m.ENVIRONMENT_START, m.ENVIRONMENT_END)
    )
    lasted = f"{end} - {begin} > 0"
    return rows(
        "Environments",
        "Software of each node, with the start and end of its results.",
        ("node", "pve_version", "kernel_version", "qemu_version"),
        (
            Column("from", f"{begin} * 1000", unit="time:YYYY-MM-DD", wide=110),
            Column("to", f"{end} * 1000", unit="time:YYYY-MM-DD", wide=110),
            Column("measured for", lasted, unit="dtdurations", decimals=0, wide=130),
        ),
        sort="from",
        hidden=("environment",),
        missing="none before the first run",
    )


def _cases() -> p.Panel:
    def large(expression: str, by: str = KEYS) -> str:
        return f"{expression} and on ({by}) (abs({_ratio()}) >= {NOISE})"

    iops = q.series(f.IOPS.metric, **HERE)
    before, after = (large(_median(iops, one, KEYS)) for one in SIDES)
    p99 = _factor(q.series(f.CLAT_PERCENTILE.metric, percentile="99", **HERE))
    cost = _factor(q.cpu_per_io(**HERE), CASE)
    change = q.with_descriptions(f"({large(_ratio())})")
    significant = f"(abs({_ratio()}) >= {NOISE}) > bool {_noise()}"
    return rows(
        "Changed cases",
        "Median IOPS of both sides, the change, the noise of the verdict, and the significance. "
        "The last two are empty without a verdict, or if a side has a single run; select a longer "
        "window then. p99 and CPU per I/O: after / before, less is better. *Hide below: nothing* "
        "lists all cases. Click a configuration to see its case.",
        RESULT_LABELS,
        (
            # On a narrow screen, the table ends here.
            Column("change", change, change=True),
            Column("before", before, unit="iops"),
            Column("after", after, unit="iops"),
            noise_column(large(_noise())),
            Column("significance", significant, wide=150),
            Column("p99", large(q.coded("", p99)), change=True, coded=True),
            Column("CPU per I/O", large(q.coded("", cost), CASE), change=True, coded=True),
        ),
        sort="change",
        descending=False,
        present=large(_ratio()),
        missing="no changes above the limit",
        styles={
            "significance": rated({"1": ("significant", NEUTRAL), "0": ("within noise", NEUTRAL)})
        },
    )


def _trend() -> p.Panel:
    text = "Geometric mean over each storage's cases; 100% is the level at the end of *Before*."
    title = "Throughput relative to the previous environment"
    before = f"{q.series(f.IOPS.metric, **HERE)} @ $before"
    return levels(title, text, HERE, before, condition=TWO_MOMENTS, missing=NO_SIDES)


# --- Open changes, relative to the baseline.


def _selected(*, end: bool = False) -> str:
    """Return the states of the selected change's cases; for All, also those that may be slower."""
    moment = " @ end()" if end else ""
    states = f"{q.series(m.CHANGE_STATE, **HERE)}{moment}"
    cases = f"{q.series(m.CHANGE_CASE, change='$change', node='$node')}{moment}"
    # The metric has no label `change`: All matches the missing label, an ID does not.
    every = q.series(m.RUN_TIMESTAMP, node="$node").replace("}", ',change=~"$change"}')
    slower = f"({states} < 0 and on ({q.SAME_CASE}) {every}{moment})"
    return f"(({states} and on ({q.SAME_CASE}) {cases}) or {slower})"


def _cases_of_changes() -> p.Panel:
    change, noise = q.series(m.CHANGE, **HERE), q.series(m.CHANGE_THRESHOLD, **HERE)
    clear = f"max by ({JUDGED_KEYS}) (abs({change} and {_selected()}) / ({noise} > 0))"
    # Throughput, latency and cost of a case change together: show the most significant metric.
    clearest = f"topk by ({q.CASE_KEYS}) (1, {clear})"

    def of(metric: str, by: str = JUDGED_KEYS) -> str:
        return f"max by ({by}) ({metric} and on ({JUDGED_KEYS}) {clearest})"

    state = q.with_descriptions(f"({of(_selected(), f'job, instance, {JUDGED_KEYS}')})")
    shown = of(q.coded(q.gains(**HERE), q.factors(**HERE)))
    runs = f"{q.series(m.RUN_TIMESTAMP, node='$node')} and on ({q.CASE_KEYS}) {_selected()}"
    iops = f"{q.series(f.IOPS.metric, **HERE)} and on ({q.SAME_CASE}) {_selected(end=True)}"
    trend = f"sum by ({q.CASE_KEYS}) ({iops})"
    return rows(
        "Cases of open changes",
        "One row per case, with its most significant metric, sorted by change relative to noise. "
        "*Change* above selects one change. Latency and CPU: ×1.67 is 1.67 times as much. The "
        "trend is that of its IOPS. Click a configuration to see its case.",
        (*RESULT_LABELS, "metric"),
        (
            Column("verdict", state, state=True),
            Column("change", shown, change=True, coded=True, trend=trend),
            noise_column(of(noise)),
            Column("× noise", clearest, decimals=1, wide=76),
            age_column(f"time() - max by ({q.CASE_KEYS}) ({runs})"),
        ),
        sort="× noise",
        hidden=("direction",),
        present=_selected(),
        missing="no regressions; some results may be inconclusive",
    )


def _counts() -> p.Panel:
    states = q.series(m.CHANGE_STATE, **HERE)
    unknown = q.series(m.VERDICT_CASES, state="inconclusive", **HERE)
    known = {"slower": -2, "possibly slower": -1, "unchanged": 0, "faster": 2}
    colors = (WORSE, "orange", NEUTRAL, BETTER)
    numbers = {
        name: (q.count_or_zero(f"{states} == {state}", states), color)
        for (name, state), color in zip(known.items(), colors, strict=True)
    }
    numbers["inconclusive"] = (f"sum({unknown}) or 0 * count({states})", NEUTRAL)
    numbers["implausible"] = (f"sum({q.series(m.IMPLAUSIBLE_GAIN, **HERE)})", WORSE)
    return p.counts(
        "Metrics by verdict",
        "Metrics of cases; the Overview counts cases. Slower and faster: confirmed. Possibly: more "
        "runs needed. Unchanged: larger changes ruled out. Inconclusive: too few runs or too much "
        f"noise to rule out 10% (longest stall: about 80%); {p.FIRST_VERDICT}. Implausible: an "
        "improvement that software can't explain; maybe syncs are skipped.",
        numbers,
        missing="no baseline yet",
    )


def _history() -> p.Panel:
    states = q.series(m.CHANGE_STATE, **HERE)
    return timeline(
        "Verdict history",
        "The 20 worst metrics of the selected change, by current state.",
        q.with_descriptions(f"({states} and bottomk(20, {_selected(end=True)}))"),
        "{{metric}}: {{configuration}}, {{description}} ({{storage}}, {{node}})",
        points=FEW_POINTS,
        present=_selected(),
    ).axis_width(NAME_PIXELS)
