"""Regressions: what is worse, since when, how sure is that?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, statetimeline, table

from builder.bars import changes_bars, ranking
from builder.looks import SAME, WORSE, alarm_steps, steps
from builder.panels import intro, number, timeline, verdict
from builder.parts import (
    base,
    custom_variable,
    environment_changes,
    label_variable,
    node_variable,
    place,
    storage_variable,
)
from builder.promql import counted, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    BASELINE_RUNS,
    CHANGE,
    CHANGE_STATE,
    CHANGE_THRESHOLD,
    REGRESSION,
    RUN_TIMESTAMP,
    SUSPICIOUS_GAIN,
)

FIGURE: Final = {"node": "$node", "storage": "$storage", "metric": "$metric"}
KEYS: Final = "node, scenario, workload, direction, metric"
INTRO: Final = (
    "**What is worse, since when, how sure is that?** Every figure is compared with its own "
    "baseline. *Slower* is confirmed by further runs, *maybe slower* waits for them. Sorted by how "
    "many times a change is larger than the figure's own noise. Found the reason, and it stays? "
    "`pvebench baseline accept` makes the present level the new baseline."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    states = {"confirmed": "-2", "confirmed and maybe": "-1", "all": "2"}
    return (
        base("Regressions", "pvebench-regressions", "What is worse than its baseline, to triage.")
        .annotation(environment_changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(label_variable("metric", "Figure", multi=True, metric=CHANGE_STATE))
        .with_variable(custom_variable("worst", "Show", states))
        .with_panel(_count("Slower", "== -2", WORSE).grid_pos(place(0, 0, 4, 4)))
        .with_panel(_count("Maybe slower", "== -1", "orange").grid_pos(place(4, 0, 4, 4)))
        .with_panel(_count("Same", "== 0", SAME).grid_pos(place(8, 0, 4, 4)))
        .with_panel(_count("Faster", "== 2", "semi-dark-blue").grid_pos(place(12, 0, 4, 4)))
        .with_panel(_open().grid_pos(place(16, 0, 4, 4)))
        .with_panel(_suspicious().grid_pos(place(20, 0, 4, 4)))
        .with_panel(_list().grid_pos(place(0, 4, 24, 12)))
        .with_panel(_history().grid_pos(place(0, 16, 16, 12)))
        .with_panel(_where().grid_pos(place(16, 16, 8, 6)))
        .with_panel(_what().grid_pos(place(16, 22, 8, 6)))
        .with_panel(_gains().grid_pos(place(0, 28, 12, 9)))
        .with_panel(_worst().grid_pos(place(12, 28, 12, 9)))
        .with_panel(intro(INTRO, y=37))
    )


def _count(title: str, condition: str, colour: str) -> stat.Panel:
    every = series(CHANGE_STATE, **FIGURE)
    panel = number(
        f"Figures {title.lower()}",
        f"Figures whose verdict is {title.lower()}.",
        counted(f"{every} {condition}", every),
        missing="no baseline yet",
    )
    return verdict(panel, steps(SAME, (1, colour)))


def _open() -> stat.Panel:
    panel = number(
        "Not accepted",
        "Confirmed and not acknowledged: these are alerted on.",
        f"sum({series(REGRESSION, **FIGURE)})",
        missing="no baseline yet",
    )
    return verdict(panel, alarm_steps())


def _suspicious() -> stat.Panel:
    panel = number(
        "Too fast to be true",
        "Gains beyond what the device can give, such as syncs that are ignored.",
        f"sum({series(SUSPICIOUS_GAIN, **FIGURE)})",
        missing="no baseline yet",
    )
    return verdict(panel, alarm_steps())


def _list() -> table.Panel:
    chosen = f"max by ({KEYS}) ({series(CHANGE_STATE, **FIGURE)} <= $worst)"
    change, noise = series(CHANGE, **FIGURE), series(CHANGE_THRESHOLD, **FIGURE)
    here = f"and on ({KEYS}) {chosen}"
    case = "node, scenario, workload"
    runs = f"max by ({case}) ({series(BASELINE_RUNS, node='$node')})"
    age = f"max by ({case}) (time() - {series(RUN_TIMESTAMP, node='$node')})"
    return rows(
        "Figures",
        "Sorted by change over noise. Plus is better.",
        ("scenario", "workload", "direction", "metric"),
        (
            Column(title="verdict", expression=chosen, words=True),
            Column(
                title="change",
                expression=f"max by ({KEYS}) ({change}) {here}",
                unit="percentunit",
                change=True,
            ),
            Column(
                title="noise",
                expression=f"max by ({KEYS}) ({noise}) {here}",
                unit="percentunit",
                decimals=1,
            ),
            Column(
                title="× noise",
                expression=f"max by ({KEYS}) (abs({change}) / ({noise} > 0)) {here}",
                decimals=1,
            ),
            Column(
                title="runs before", expression=f"0 * {chosen} + on ({case}) group_left () {runs}"
            ),
            Column(
                title="age",
                unit="dtdurations",
                decimals=0,
                expression=f"0 * {chosen} + on ({case}) group_left () {age}",
            ),
        ),
        sort="× noise",
        missing="nothing is worse",
    )


def _history() -> statetimeline.Panel:
    worse = f"{series(CHANGE_STATE, **FIGURE)}"
    return timeline(
        "Verdicts over time",
        "The 20 figures with the worst verdict now.",
        f"{worse} and bottomk(20, {worse} @ end())",
        "{{scenario}} {{workload}} {{direction}} {{metric}}",
    )


def _where() -> bargauge.Panel:
    return ranking(
        "By storage",
        "Slower figures of each storage.",
        f"sort_desc(count by (node, storage) ({series(CHANGE_STATE, **FIGURE)} == -2) "
        f"or 0 * count by (node, storage) ({series(CHANGE_STATE, **FIGURE)}))",
        unit="none",
        legend="{{node}}/{{storage}}",
    )


def _what() -> bargauge.Panel:
    return ranking(
        "By figure",
        "Slower figures by what was judged.",
        f"sort_desc(count by (metric) ({series(CHANGE_STATE, **FIGURE)} == -2) "
        f"or 0 * count by (metric) ({series(CHANGE_STATE, **FIGURE)}))",
        unit="none",
        legend="{{metric}}",
    )


def _gains() -> bargauge.Panel:
    return changes_bars(
        "Largest gains",
        "The ten figures that gained most.",
        series(CHANGE, **FIGURE),
        "{{scenario}} {{workload}} {{metric}}",
        worse=0,
    )


def _worst() -> bargauge.Panel:
    return changes_bars(
        "Largest losses",
        "The ten figures that lost most.",
        series(CHANGE, **FIGURE),
        "{{scenario}} {{workload}} {{metric}}",
        better=0,
    )
