"""Regressions: what is worse, since when, how sure is that?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, statetimeline, table
from grafana_foundation_sdk.models import dashboard as models

from builder.bars import changes_bars
from builder.looks import SAME, WORSE, alarm_steps, steps
from builder.panels import FEW_POINTS, FIRST_VERDICT, intro, number, open_changes, timeline, verdict
from builder.parts import (
    base,
    changes,
    custom_variable,
    environment_changes,
    label_variable,
    node_variable,
    place,
    query_variable,
    storage_variable,
)
from builder.promql import SAME_CASE, changes_of, counted, in_words, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    BASELINE_RUNS,
    CHANGE,
    CHANGE_CASE,
    CHANGE_STATE,
    CHANGE_THRESHOLD,
    IMPLAUSIBLE_GAIN,
    RUN_TIMESTAMP,
    VERDICT_CASES,
)

FIGURE: Final = {"node": "$node", "storage": "$storage", "metric": "$metric"}
KEYS: Final = "node, storage, scenario, workload, direction, metric"
CASE: Final = "node, storage, scenario, workload"
NAME_PIXELS: Final = 620
"""Of a figure's whole name: by itself Grafana leaves names four tenths of a panel at most."""
INTRO: Final = (
    "**What is worse, since when, how sure is that?** On top each change, told once. Below "
    "the cases that show it, a row each, sorted by how many times a figure is larger than its own "
    "noise; *slower* is confirmed by further runs, *maybe slower* waits for them. Found the "
    "reason, and it stays? `pvebench baseline accept` makes the present level the new baseline."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    states = {"confirmed": "-2", "confirmed and maybe": "-1", "all": "2"}
    return (
        base("Regressions", "pvebench-regressions", "What is worse than its baseline, to triage.")
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(label_variable("metric", "Figure", multi=True, metric=CHANGE_STATE))
        .with_variable(_change())
        .with_variable(custom_variable("worst", "Show", states))
        .with_panel(open_changes("$node").grid_pos(place(0, 0, 24, 7)))
        .with_panel(_count("Slower", "== -2", WORSE).grid_pos(place(0, 7, 4, 4)))
        .with_panel(_count("Maybe slower", "== -1", "orange").grid_pos(place(4, 7, 4, 4)))
        .with_panel(_count("Same", "== 0", SAME).grid_pos(place(8, 7, 4, 4)))
        .with_panel(_count("Faster", "== 2", "semi-dark-blue").grid_pos(place(12, 7, 4, 4)))
        .with_panel(_unknown().grid_pos(place(16, 7, 4, 4)))
        .with_panel(_implausible().grid_pos(place(20, 7, 4, 4)))
        .with_panel(_list().grid_pos(place(0, 11, 24, 12)))
        .with_panel(_history().grid_pos(place(0, 23, 24, 11)))
        .with_panel(_worst().grid_pos(place(0, 34, 12, 9)))
        .with_panel(_gains().grid_pos(place(12, 34, 12, 9)))
        .with_panel(intro(INTRO, y=43))
    )


def _change() -> dashboard.QueryVariable:
    """Return the variable of the change whose cases are listed: All, or the one of a link."""
    built = query_variable("change", "Change", f"query_result({changes_of('$node')})")
    # Its whole sentence would push the other variables off the line.
    built = built.regex('/change="(?<value>[^"]+)".*summary="(?<text>[^"]{1,40})/')
    every = models.VariableOption(text="All", value="$__all", selected=True)
    return built.multi(False).include_all(True).all_value(".*").current(every)


def _of_change(*, end: bool = False) -> str:
    """Return the verdicts on the figures of the change that is chosen; of all, all of them.

    Args:
        end: those at the end of the time range.
    """
    moment = " @ end()" if end else ""
    every = series(CHANGE_STATE, **FIGURE)
    # It has no label of that name: "All" matches what is not there, a change's name does not.
    free = every.replace("}", ',change=~"$change"}')
    cases = f"{series(CHANGE_CASE, change='$change', node='$node')}{moment}"
    return f"({free}{moment} or {every}{moment} and on ({SAME_CASE}) {cases})"


def _count(title: str, condition: str, colour: str) -> stat.Panel:
    every = series(CHANGE_STATE, **FIGURE)
    panel = number(
        f"Figures {title.lower()}",
        f"Figures whose verdict is {title.lower()}.",
        counted(f"{every} {condition}", every),
        missing="no baseline yet",
    )
    return verdict(panel, steps(SAME, (1, colour)))


def _unknown() -> stat.Panel:
    return number(
        "Cannot be told",
        f"Too few runs, or they vary too much: {FIRST_VERDICT}, if they are steady.",
        f"sum({series(VERDICT_CASES, node='$node', storage='$storage', state='inconclusive')}) "
        f"or 0 * sum({series(VERDICT_CASES, node='$node', storage='$storage')})",
        missing="nothing judged yet",
    )


def _implausible() -> stat.Panel:
    panel = number(
        "Too fast to be true",
        "Gains beyond what the device can give, such as syncs that are ignored.",
        f"sum({series(IMPLAUSIBLE_GAIN, **FIGURE)})",
        missing="no baseline yet",
    )
    return verdict(panel, alarm_steps())


def _list() -> table.Panel:
    change, noise = series(CHANGE, **FIGURE), series(CHANGE_THRESHOLD, **FIGURE)
    # What is shown is chosen first: the few that are worse, before anything is worked out.
    worse = f"({_of_change()} <= $worst)"
    clear = f"abs({change} and {worse}) / ({noise} > 0)"
    # A case's throughput, latency and cost move together: the clearest figure stands for it.
    one = f"topk by ({CASE}) (1, max by ({KEYS}) ({clear}))"
    info = f"max by (job, instance, {KEYS}) ({worse}) and on ({KEYS}) {one}"

    def of(figure: str) -> str:
        return f"max by ({KEYS}) ({figure} and on ({KEYS}) {one})"

    def of_case(figure: str) -> str:
        return f"max by ({CASE}) ({figure} and on ({CASE}) {worse})"

    runs = of_case(series(BASELINE_RUNS, node="$node"))
    age = f"time() - {of_case(series(RUN_TIMESTAMP, node='$node'))}"
    return rows(
        "Cases",
        "A row each, with the figure that is clearest. Sorted by change over noise. Plus is "
        "better. A click on the setting leads to the case.",
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
            Column(title="verdict", expression=in_words(f"({info})"), words=True),
            Column(title="change", expression=of(change), change=True),
            Column(title="noise ±", expression=of(noise), unit="percentunit", decimals=1),
            Column(title="× noise", expression=one, decimals=1),
            Column(title="runs before", expression=runs),
            Column(title="age", unit="dtdurations", decimals=0, expression=age),
        ),
        sort="× noise",
        hidden=("direction",),
        there=worse,
        missing="nothing is worse among what can be told",
    )


def _history() -> statetimeline.Panel:
    every = series(CHANGE_STATE, **FIGURE)
    return timeline(
        "Verdicts over time",
        "The 20 figures with the worst verdict now, of the change that is chosen.",
        in_words(f"({every} and bottomk(20, {_of_change(end=True)}))"),
        "{{metric}}: {{configuration}}, {{description}} ({{storage}}, {{node}})",
        points=FEW_POINTS,
    ).axis_width(NAME_PIXELS)


def _gains() -> bargauge.Panel:
    return changes_bars(
        "Largest gains",
        "The five figures that gained most.",
        series(CHANGE, **FIGURE),
        "{{metric}}: {{configuration}}, {{description}} ({{storage}}, {{node}})",
        worse=0,
    )


def _worst() -> bargauge.Panel:
    return changes_bars(
        "Largest losses",
        "The five figures that lost most.",
        series(CHANGE, **FIGURE),
        "{{metric}}: {{configuration}}, {{description}} ({{storage}}, {{node}})",
        better=0,
    )
