"""Regressions: open changes and their cases."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, statetimeline, table
from grafana_foundation_sdk.models import dashboard as models

from builder.bars import CASE_LEGEND, changes_bars
from builder.changes import change_log, open_changes
from builder.charts import FEW_POINTS, timeline
from builder.looks import NEUTRAL, WORSE, alarm_steps, steps
from builder.panels import FIRST_VERDICT, intro, number, verdict
from builder.parts import (
    base,
    custom_variable,
    label_variable,
    node_variable,
    place,
    query_variable,
    storage_variable,
)
from builder.promql import (
    CASE_KEYS,
    RESULT_KEYS,
    SAME_CASE,
    changes_of,
    coded,
    confirmed,
    count_or_zero,
    factors,
    gains,
    series,
    with_descriptions,
)
from builder.tables import Column, age_column, noise_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f

SELECTED: Final = {"node": "$node", "storage": "$storage", "metric": "$metric"}
KEYS: Final = f"{RESULT_KEYS}, metric"
NAME_PIXELS: Final = 620
"""Width of a full metric name: by default, Grafana limits names to 40% of the panel."""
CONFIRMED: Final = "confirmed, suddenly or gradually"
COUNTS: Final = (
    ("Slower", CONFIRMED, "== -2", WORSE),
    ("Possibly slower", "more runs needed", "== -1", "orange"),
    ("Unchanged", "larger changes ruled out", "== 0", NEUTRAL),
    ("Faster", CONFIRMED, "== 2", "semi-dark-blue"),
)
"""Title, meaning, condition of the state and color of each count."""
INTRO: Final = (
    "**What got slower, when, and how certain is it?** The first table lists each open change "
    "once; the second one its cases, sorted by change relative to noise. *Slower* is confirmed by "
    "further runs, *possibly slower* needs more. To make the current level the new baseline, run "
    "`pvebench baseline accept`; choose cases with `--only` or `--all`."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    throughput, less = _bars()
    states = {"confirmed": "-2", "confirmed and possible": "-1", "all": "2"}
    built = (
        base(
            "Regressions",
            "pvebench-regressions",
            "Open changes and their cases, for triage.",
            change="$change",
        )
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(label_variable("metric", "Metric", multi=True, metric=m.CHANGE_STATE))
        .with_variable(_change())
        .with_variable(custom_variable("worst", "Show", states))
        .with_panel(open_changes("$node").grid_pos(place(0, 0, 24, 5)))
        .with_panel(_inconclusive().grid_pos(place(16, 5, 4, 4)))
        .with_panel(_implausible().grid_pos(place(20, 5, 4, 4)))
        .with_panel(_list().grid_pos(place(0, 9, 24, 12)))
        .with_panel(_history().grid_pos(place(0, 21, 24, 11)))
        .with_panel(throughput.grid_pos(place(0, 32, 12, 9)))
        .with_panel(less.grid_pos(place(12, 32, 12, 9)))
        .with_panel(change_log("$node").grid_pos(place(0, 41, 24, 9)))
        .with_panel(intro(INTRO, y=50))
    )
    for index, count in enumerate(COUNTS):
        built = built.with_panel(_count(*count).grid_pos(place(4 * index, 5, 4, 4)))
    return built


def _change() -> dashboard.QueryVariable:
    """Return the variable of the change whose cases are listed: All, or that of a link."""
    variable = query_variable("change", "Change", f"query_result({changes_of('$node')})")
    # A full sentence would move the other variables to the next line.
    variable = variable.regex('/change="(?<value>[^"]+)".*summary="(?<text>[^"]{1,40})/')
    all_option = models.VariableOption(text="All", value="$__all", selected=True)
    return variable.multi(False).include_all(True).all_value(".*").current(all_option)


def _of_change(limit: str = "", *, end: bool = False) -> str:
    """Return the states of the selected change's metrics; for All, of all metrics.

    Args:
        limit: condition of the states, which keeps the query cheap.
        end: read the states at the end of the time range.
    """
    moment = " @ end()" if end else ""
    # The metric has no label `change`: All matches the missing label, an ID does not.
    every = series(m.RUN_TIMESTAMP, node="$node").replace("}", ',change=~"$change"}')
    cases = f"({series(m.CHANGE_CASE, change='$change', node='$node')}{moment} or {every}{moment})"
    return f"({series(m.CHANGE_STATE, **SELECTED)}{moment}{limit} and on ({SAME_CASE}) {cases})"


def _count(title: str, meaning: str, condition: str, color: str) -> stat.Panel:
    states = series(m.CHANGE_STATE, **SELECTED)
    panel = number(
        title,
        f"Metrics of cases: {meaning}. The Overview counts cases.",
        count_or_zero(f"{states} {condition}", states),
        missing="no baseline yet",
    )
    return verdict(panel, steps(NEUTRAL, (1, color)))


def _inconclusive() -> stat.Panel:
    return number(
        "Inconclusive",
        "Metrics of cases: too few runs or too much noise to rule out a change of 10% (longest "
        f"stall: about 80%); {FIRST_VERDICT}.",
        f"sum({series(m.VERDICT_CASES, node='$node', storage='$storage', state='inconclusive')}) "
        f"or 0 * sum({series(m.VERDICT_CASES, node='$node', storage='$storage')})",
        missing="no verdict yet",
    )


def _implausible() -> stat.Panel:
    panel = number(
        "Implausible",
        "Improvements that software can't explain: over 25% for durable writes, over 100% for "
        "other I/O. Maybe syncs are skipped.",
        f"sum({series(m.IMPLAUSIBLE_GAIN, **SELECTED)})",
        missing="no baseline yet",
    )
    return verdict(panel, alarm_steps())


def _list() -> table.Panel:
    change, noise = series(m.CHANGE, **SELECTED), series(m.CHANGE_THRESHOLD, **SELECTED)
    shown = coded(gains(**SELECTED), factors(**SELECTED))
    worse = _of_change(" <= $worst")
    clear = f"abs({change} and {worse}) / ({noise} > 0)"
    # Throughput, latency and cost of a case change together: show the most significant metric.
    clearest = f"topk by ({CASE_KEYS}) (1, max by ({KEYS}) ({clear}))"
    info = f"max by (job, instance, {KEYS}) ({worse}) and on ({KEYS}) {clearest}"

    def of(metric: str) -> str:
        return f"max by ({KEYS}) ({metric} and on ({KEYS}) {clearest})"

    def of_case(metric: str) -> str:
        return f"max by ({CASE_KEYS}) ({metric} and on ({CASE_KEYS}) {worse})"

    iops = series(f.IOPS.metric, node="$node", storage="$storage")
    course = f"{iops} and on ({SAME_CASE}) {_of_change(' <= $worst', end=True)}"
    course = f"sum by ({CASE_KEYS}) ({course})"
    age = f"time() - {of_case(series(m.RUN_TIMESTAMP, node='$node'))}"
    return rows(
        "Cases",
        "One row per case, with its most significant metric, sorted by change relative to noise. "
        "Latency and CPU: ×1.67 is 1.67 times as much. The trend is that of its IOPS. Click a "
        "configuration to see its case.",
        (
            "description",
            "configuration",
            "node",
            "storage",
            "direction",
            "metric",
            "scenario",
            "workload",
        ),
        (
            Column("verdict", with_descriptions(f"({info})"), state=True),
            Column("change", of(shown), change=True, coded=True, trend=course),
            noise_column(of(noise)),
            Column("× noise", clearest, decimals=1, wide=76),
            age_column(age),
        ),
        sort="× noise",
        hidden=("direction",),
        present=worse,
        missing="no regressions; some results may be inconclusive",
    )


def _history() -> statetimeline.Panel:
    states = series(m.CHANGE_STATE, **SELECTED)
    return timeline(
        "Verdict history",
        "The 20 worst metrics of the selected change, by current state.",
        with_descriptions(f"({states} and bottomk(20, {_of_change(end=True)}))"),
        f"{{{{metric}}}}: {CASE_LEGEND}",
        points=FEW_POINTS,
        present=_of_change(),
    ).axis_width(NAME_PIXELS)


def _bars() -> tuple[bargauge.Panel, bargauge.Panel]:
    """Return the bars of throughput, and of what is better when less."""
    throughput = changes_bars(
        "Throughput, largest changes",
        "The cases with the largest significant changes, relative to the baseline.",
        confirmed(gains(**SELECTED), **SELECTED),
    )
    return throughput, changes_bars(
        "Latency and CPU, largest changes",
        "Relative to the baseline: ×2 is twice as much. Less is better.",
        confirmed(factors(**SELECTED), **SELECTED),
        f"{{{{metric}}}}: {CASE_LEGEND}",
        factor=True,
    )
