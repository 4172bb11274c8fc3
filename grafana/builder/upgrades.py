"""Before/after upgrade: comparison of two environments, and the cases of open changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from builder import panels as p
from builder import promql as q
from builder.bars import CASE_LEGEND, changes_bars
from builder.charts import FEW_POINTS, levels, timeline
from builder.looks import BETTER, NEUTRAL, WORSE, rated
from builder.parts import base, custom_variable, node_variable, query_variable, storage_variable
from builder.tables import RESULT_LABELS, Column, age_column, noise_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = f"job, instance, {q.CASE_KEYS}"
KEYS: Final = f"{CASE}, direction"
JUDGED_KEYS: Final = f"{q.RESULT_KEYS}, metric"
NOISE: Final = "$noise"
NOTHING: Final = "now"
SIDES: Final = ("before", "after")
TWO_MOMENTS: Final = " and on () (vector($before) != $after)"
"""Condition that keeps an environment from being compared with itself."""
NO_SIDES: Final = "no upgrade to compare yet"
NO_CHANGES: Final = "no significant changes to show"
"""Text of empty bars; does not claim "unchanged", since there may have been no comparison."""
NAME_PIXELS: Final = 620
"""Width of a full metric name: by default, Grafana limits names to 40% of the panel."""
INTRO: Final = (
    "**Did the upgrade change performance, and which cases got slower?** Compares *Before* with "
    "*After* (by default the end of the current environment: now) on all selected nodes. Each "
    "side is the median of a window, which limits the influence of single runs. A *significant* "
    "change exceeds the noise of the verdict. ×1.67 is 1.67 times the latency or the CPU per I/O, "
    "where less is better. *Cases of open changes* compares with the baseline instead; to make "
    "the current level the new baseline, run `pvebench baseline accept`."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    latency, cpu = _factors()
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
        (9, (14, _trend()), (10, _environments())),
        (p.fit(8), _cases_of_changes()),
        (p.fit(10), _cases()),
        (10, latency, cpu),
        p.section("Verdicts by metric", (4, _counts()), (11, _history()), (9, *_bars())),
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
    fallback = q.label("shown", NOTHING, "vector(time())")
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


def _side(selector: str, moment: str) -> str:
    return f"quantile_over_time(0.5, {_window(selector, moment)})"


def _ratio() -> str:
    """Return after / before - 1 of the throughput."""
    return f"{_factor(q.series(f.IOPS.metric, **HERE))} - 1"


def _factor(values: str, by: str = KEYS) -> str:
    """Return after / before."""
    before = f"max by ({by}) ({_side(values, 'before')} > 0)"
    after = f"max by ({by}) ({_side(values, 'after')} > 0)"
    return f"{after} / {before}"


def _noise() -> str:
    """Return the noise of the verdicts, where both windows have several runs."""
    now = f"{q.series(m.CHANGE_THRESHOLD, metric='throughput', **HERE)} @ {q.HELD}"
    runs = (f"changes({_window(q.series(m.RUN_TIMESTAMP, **HERE), one)})" for one in SIDES)
    several = " and ".join(f"(max by ({CASE}) ({one}) > 0)" for one in runs)
    return f"(max by ({KEYS}) ({now}) and on ({CASE}) ({several}))"


def _compared() -> p.Panel:
    return p.counts(
        "Compared cases",
        "Cases with results on both sides, and those whose throughput changed by more than *Hide "
        "below*.",
        {
            "compared": (f"count({_ratio()}){TWO_MOMENTS}", NEUTRAL),
            "slower": (f"sum({_ratio()} < bool -{NOISE}){TWO_MOMENTS}", WORSE),
            "faster": (f"sum({_ratio()} > bool {NOISE}){TWO_MOMENTS}", BETTER),
        },
        missing=NO_SIDES,
    )


def _mean() -> p.Panel:
    return p.signed(
        "Throughput change, %",
        "Geometric mean over the compared cases of each storage.",
        f"((exp(avg by (node, storage) (ln(1 + {_ratio()}))) - 1){TWO_MOMENTS})",
        legend="{{storage}}, {{node}}",
        missing=NO_SIDES,
    )


def _environments() -> p.Panel:
    keys = "node, environment, pve_version, kernel_version, qemu_version"
    begin, end = (
        f"max by ({keys}) ({q.series(metric, node='$node')})"
        for metric in (m.ENVIRONMENT_START, m.ENVIRONMENT_END)
    )
    return rows(
        "Environments",
        "Software of each node, with the start and end of its results.",
        ("node", "pve_version", "kernel_version", "qemu_version"),
        (
            Column("from", f"{begin} * 1000", unit="dateTimeAsIso", wide=160),
            Column("to", f"{end} * 1000", unit="dateTimeAsIso", wide=160),
            Column(
                "measured for", f"{end} - {begin} > 0", unit="dtdurations", decimals=1, wide=190
            ),
        ),
        sort="from",
        hidden=("environment",),
        missing="none before the first run",
    )


def _cases() -> p.Panel:
    large = f"(abs({_ratio()}) >= {NOISE})"
    iops = q.series(f.IOPS.metric, **HERE)
    before, after = (
        f"max by ({KEYS}) ({_side(iops, one)}) and on ({KEYS}) {large}" for one in SIDES
    )
    return rows(
        "Changed cases",
        "Median IOPS of both sides, the change, the noise of the verdict, and the significance. "
        "The last two are empty without a verdict, or if a side has a single run; select a longer "
        "window then. Click a configuration to see its case.",
        RESULT_LABELS,
        (
            # On a narrow screen, the table ends here.
            Column(
                "change", q.with_descriptions(f"({_ratio()} and on ({KEYS}) {large})"), change=True
            ),
            Column("before", before, unit="iops"),
            Column("after", after, unit="iops"),
            noise_column(f"{_noise()} and on ({KEYS}) {large}"),
            Column("significance", f"{large} > bool {_noise()}", wide=150),
        ),
        sort="change",
        descending=False,
        present=large,
        missing="no changes above the limit",
    ).override_by_name(
        "significance", rated({"1": ("significant", NEUTRAL), "0": ("within noise", NEUTRAL)})
    )


def _factors() -> Iterator[p.Panel]:
    """Yield the bars of p99 and of the CPU time per I/O."""
    p99 = _factor(q.series(f.CLAT_PERCENTILE.metric, percentile="99", **HERE))
    text = "After / before: ×1.67 is 1.67 times as much. Less is better."
    for title, factor in (
        ("Latency (p99), largest changes", p99),
        ("CPU per I/O, largest changes", _factor(q.cpu_per_io(**HERE), CASE)),
    ):
        yield changes_bars(title, text, factor, limit=NOISE, factor=True, missing=NO_CHANGES)


def _trend() -> p.Panel:
    return levels(
        "Throughput relative to the previous environment",
        "Geometric mean over each storage's cases; 100% is the level at the end of *Before*.",
        HERE,
        f"{q.series(f.IOPS.metric, **HERE)} @ $before",
        condition=TWO_MOMENTS,
        missing=NO_SIDES,
    )


# --- Open changes, relative to the baseline.


def _selected(*, end: bool = False) -> str:
    """Return the states of the selected change's cases; for All, also those that may be slower.

    Args:
        end: read the states at the end of the time range.
    """
    moment = " @ end()" if end else ""
    states = f"{q.series(m.CHANGE_STATE, **HERE)}{moment}"
    cases = f"{q.series(m.CHANGE_CASE, change='$change', node='$node')}{moment}"
    # The metric has no label `change`: All matches the missing label, an ID does not.
    every = q.series(m.RUN_TIMESTAMP, node="$node").replace("}", ',change=~"$change"}')
    slower = f"({states} < 0 and on ({q.SAME_CASE}) {every}{moment})"
    return f"(({states} and on ({q.SAME_CASE}) {cases}) or {slower})"


def _cases_of_changes() -> p.Panel:
    change, noise = q.series(m.CHANGE, **HERE), q.series(m.CHANGE_THRESHOLD, **HERE)
    clear = f"abs({change} and {_selected()}) / ({noise} > 0)"
    # Throughput, latency and cost of a case change together: show the most significant metric.
    clearest = f"topk by ({q.CASE_KEYS}) (1, max by ({JUDGED_KEYS}) ({clear}))"
    info = (
        f"max by (job, instance, {JUDGED_KEYS}) ({_selected()}) and on ({JUDGED_KEYS}) {clearest}"
    )

    def of(metric: str) -> str:
        return f"max by ({JUDGED_KEYS}) ({metric} and on ({JUDGED_KEYS}) {clearest})"

    runs = f"{q.series(m.RUN_TIMESTAMP, node='$node')} and on ({q.CASE_KEYS}) {_selected()}"
    iops = q.series(f.IOPS.metric, **HERE)
    course = f"{iops} and on ({q.SAME_CASE}) {_selected(end=True)}"
    coded = q.coded(q.gains(**HERE), q.factors(**HERE))
    return rows(
        "Cases of open changes",
        "One row per case, with its most significant metric, sorted by change relative to noise. "
        "*Change* above selects one change. Latency and CPU: ×1.67 is 1.67 times as much. The "
        "trend is that of its IOPS. Click a configuration to see its case.",
        (*RESULT_LABELS, "metric"),
        (
            Column("verdict", q.with_descriptions(f"({info})"), state=True),
            Column(
                "change",
                of(coded),
                change=True,
                coded=True,
                trend=f"sum by ({q.CASE_KEYS}) ({course})",
            ),
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
    return p.counts(
        "Metrics by verdict",
        "Metrics of cases; the Overview counts cases. Slower and faster: confirmed. Possibly: more "
        "runs needed. Unchanged: larger changes ruled out. Inconclusive: too few runs or too much "
        f"noise to rule out 10% (longest stall: about 80%); {p.FIRST_VERDICT}. Implausible: an "
        "improvement that software can't explain; maybe syncs are skipped.",
        {
            "slower": (q.count_or_zero(f"{states} == -2", states), WORSE),
            "possibly slower": (q.count_or_zero(f"{states} == -1", states), "orange"),
            "unchanged": (q.count_or_zero(f"{states} == 0", states), NEUTRAL),
            "faster": (q.count_or_zero(f"{states} == 2", states), BETTER),
            "inconclusive": (f"sum({unknown}) or 0 * count({states})", NEUTRAL),
            "implausible": (f"sum({q.series(m.IMPLAUSIBLE_GAIN, **HERE)})", WORSE),
        },
        missing="no baseline yet",
    )


def _history() -> p.Panel:
    states = q.series(m.CHANGE_STATE, **HERE)
    return timeline(
        "Verdict history",
        "The 20 worst metrics of the selected change, by current state.",
        q.with_descriptions(f"({states} and bottomk(20, {_selected(end=True)}))"),
        f"{{{{metric}}}}: {CASE_LEGEND}",
        points=FEW_POINTS,
        present=_selected(),
    ).axis_width(NAME_PIXELS)


def _bars() -> tuple[p.Panel, p.Panel]:
    """Return the bars of throughput, and of what is better when less."""
    text = "The cases with the largest significant changes, relative to the baseline"
    return changes_bars(
        "Throughput, largest changes", f"{text}.", q.confirmed(q.gains(**HERE), **HERE)
    ), changes_bars(
        "Latency and CPU, largest changes",
        f"{text}: ×2 is twice as much. Less is better.",
        q.confirmed(q.factors(**HERE), **HERE),
        f"{{{{metric}}}}: {CASE_LEGEND}",
        factor=True,
    )
