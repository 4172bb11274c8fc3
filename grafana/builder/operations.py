"""Operations: is the measuring itself all right?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import BarGaugeNamePlacement

from builder.bars import ranking
from builder.looks import SAME, WORSE, alarm_steps, prop, steps, values
from builder.own_cost import exporters, host, memory_and_database, page_parts, scrapes
from builder.panels import FEW_POINTS, intro, lines, names, number, timeline, verdict
from builder.parts import (
    STANDS_IN,
    base,
    changes,
    environment_changes,
    instant,
    node_variable,
    place,
    query,
)
from builder.promql import counted, none_of, recorded, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    CONFIG_RELOAD_SUCCESS,
    CURRENT_RUN,
    CYCLE_EXPECTED_END,
    CYCLE_PROGRESS,
    HOLD,
    MOVED_BYTES,
    NEXT_RUN,
    QUEUE_LENGTH,
    RUN_ATTEMPT_TIMESTAMP,
    RUN_DURATION,
    RUN_SUCCESS,
    RUN_TIMESTAMP,
    RUNS,
    SCHEDULER_PROGRESS,
    SCHEDULER_STATE,
)

NODE: Final = {"node": "$node"}
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"
INTRO: Final = (
    "**Is the measuring itself all right?** What the scheduler does, what fails and why, what is "
    "overdue, how much is written (drives wear), and what the exporter costs. The exporter's own "
    "page has the evidence of each failure."
)


DOING: Final = {
    "idle": (1, "waits for its next run", SAME),
    "reconfiguring": (2, "switches the disk", "blue"),
    "warmup": (3, "warms up", "blue"),
    "running": (4, "measures", "blue"),
    "collecting": (5, "cools down", "blue"),
    "paused": (6, "PAUSED: nothing is measured", "orange"),
    "error": (7, "ERROR: tries again later", "dark-orange"),
}
"""State of the scheduler -> (number for it in a cell, words, colour)."""
HOLDS: Final = {
    "paused": "is PAUSED: pvebench resume goes on",
    "quiet_hours": "waits for the end of the quiet hours",
    "busy": "waits: a backup, migration or scrub runs",
    "load": "waits: the host is too busy",
    "turn": "waits for its turn on a shared storage",
}
"""Reason -> what is said after the node's name."""
STUCK_SECONDS: Final = 1800


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Operations", "pvebench-operations", "Scheduler, failures, wear, exporter.", since="24h"
        )
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_panel(_doing().grid_pos(place(0, 0, 24, 6)))
        .with_panel(_waits().grid_pos(place(0, 6, 9, 4)))
        .with_panel(_newest().grid_pos(place(9, 6, 4, 4)))
        .with_panel(_failing().grid_pos(place(13, 6, 4, 4)))
        .with_panel(_overdue().grid_pos(place(17, 6, 4, 4)))
        .with_panel(_reload().grid_pos(place(21, 6, 3, 4)))
        .with_panel(_states().grid_pos(place(0, 10, 16, 11)))
        .with_panel(_steps().grid_pos(place(16, 10, 8, 11)))
        .with_panel(_outcomes().grid_pos(place(0, 21, 8, 8)))
        .with_panel(_failures().grid_pos(place(8, 21, 16, 8)))
        .with_panel(_durations().grid_pos(place(0, 29, 10, 9)))
        .with_panel(_late().grid_pos(place(10, 29, 14, 9)))
        .with_panel(_written().grid_pos(place(0, 38, 12, 9)))
        .with_panel(_forecast().grid_pos(place(12, 38, 12, 9)))
        .with_panel(scrapes().grid_pos(place(0, 47, 8, 8)))
        .with_panel(page_parts().grid_pos(place(8, 47, 8, 8)))
        .with_panel(memory_and_database().grid_pos(place(16, 47, 8, 8)))
        .with_panel(exporters().grid_pos(place(0, 55, 24, 5)))
        .with_row(host())
        .with_panel(intro(INTRO, y=61))
    )


def _doing() -> table.Panel:
    state = " or ".join(
        f"{code} * ({series(SCHEDULER_STATE, **NODE, state=name)} == 1)"
        for name, (code, _, _) in DOING.items()
    )
    step = f"time() - {series(SCHEDULER_PROGRESS, **NODE)}"
    busy = series(SCHEDULER_STATE, **NODE, state="reconfiguring|warmup|running|collecting")
    stuck = f"({step} > {STUCK_SECONDS}) and on (node) ({busy} == 1)"
    ends = f"max by (node) ({series(CYCLE_EXPECTED_END, **NODE)} > time()) * 1000"
    return (
        rows(
            "What each node does",
            "In words; the case that runs; how far the cycle is, when it ends or the next run "
            "begins (an estimate from the plan and the runs so far), when the last step was made.",
            ("node",),
            (
                Column(title="does", expression=f"max by (node) ({state})", wide=230),
                Column(
                    title="for longer than half an hour",
                    expression=f"max by (node) ({stuck})",
                    unit="dtdurations",
                    decimals=0,
                    wide=210,
                ),
                Column(
                    title="case", expression=f"max by (node, title) ({series(CURRENT_RUN, **NODE)})"
                ),
                Column(
                    title="cycle done",
                    expression=f"max by (node) ({series(CYCLE_PROGRESS, **NODE)})",
                    unit="percentunit",
                    decimals=0,
                ),
                Column(
                    title="cases left", expression=f"max by (node) ({series(QUEUE_LENGTH, **NODE)})"
                ),
                Column(title="cycle ends", expression=ends, unit="dateTimeFromNow", wide=140),
                Column(
                    title="next run",
                    expression=f"max by (node) ({series(NEXT_RUN, **NODE)}) * 1000",
                    unit="dateTimeFromNow",
                    wide=140,
                ),
                Column(
                    title="last step",
                    expression=f"max by (node) ({step})",
                    unit="dtdurations",
                    decimals=0,
                    wide=140,
                ),
            ),
            linked=False,
            missing="no exporter answers: is it running? pvebench selftest says where it stops",
        )
        .override_by_name(
            "does",
            [
                prop(
                    "mappings", values({str(code): (text, c) for code, text, c in DOING.values()})
                ),
                prop("custom.displayMode", "color-text"),
            ],
        )
        .override_by_name(
            "for longer than half an hour",
            [
                prop("displayName", "STUCK: no step for"),
                prop("custom.displayMode", "color-text"),
                prop("color", {"mode": "fixed", "fixedColor": WORSE}),
                prop("mappings", values({}, nothing=("–", SAME))),  # a dash
            ],
        )
        .override_by_name("case", [prop("custom.hidden", True)])
        .override_by_name("title", [prop("displayName", "case")])
    )


def _waits() -> stat.Panel:
    every = series(HOLD, **NODE)
    targets = [
        instant(
            f"count by (node) ({series(HOLD, **NODE, reason=reason)})",
            legend=f"{{{{node}}}} {words}",
            ref=chr(ord("A") + index),
        )
        for index, (reason, words) in enumerate(HOLDS.items())
    ]
    nothing = instant(none_of(every), legend="nothing: neither paused nor waiting", ref=STANDS_IN)
    return names(
        "What holds the next case", "Who paused it, or what the next run waits for.", "", ""
    ).targets([*targets, nothing])


def _newest() -> stat.Panel:
    return number(
        "Newest result",
        "When the last good run ended.",
        f"max({series(RUN_TIMESTAMP, **NODE)}) * 1000",
        unit="dateTimeFromNow",
        missing="none yet",
    )


def _failing() -> stat.Panel:
    every = series(RUN_SUCCESS, **NODE)
    panel = number(
        "Failing cases",
        "Last attempt not good.",
        counted(f"{every} == 0", every),
        missing="never run",
    )
    return verdict(panel, alarm_steps())


def _overdue() -> stat.Panel:
    every = recorded(OVERDUE, **NODE)
    panel = number(
        "Stale cases",
        "Older than two and a half intervals.",
        counted(f"{every} > 2.5", every),
        missing="never run",
    )
    return verdict(panel, alarm_steps())


def _reload() -> stat.Panel:
    panel = number(
        "Settings",
        "Whether those on disk are in force.",
        f"min({series(CONFIG_RELOAD_SUCCESS)})",
        missing="fixed",
    )
    words = values({"0": ("REFUSED", WORSE), "1": ("in force", SAME)}, nothing=("fixed", SAME))
    return verdict(panel.mappings(words), steps(WORSE, (1, SAME)))


def _states() -> statetimeline.Panel:
    words = values({"0": ("no", "transparent"), "1": ("yes", "blue")})
    return timeline(
        "What the scheduler does",
        "One bar for each state it was in.",
        f"max by (node, state) ({series(SCHEDULER_STATE, **NODE)})",
        "{{node}} {{state}}",
        words,
        missing="nothing to draw yet",
    )


def _steps() -> timeseries.Panel:
    return lines(
        "Time since the last step",
        "A step of minutes is a long run; half an hour in the middle of a run is a stall.",
        [query(f"time() - {series(SCHEDULER_PROGRESS, **NODE)}", legend="{{node}}")],
        unit="s",
        linked=False,
        right=False,
        zero=True,
    )


def _outcomes() -> bargauge.Panel:
    built = ranking(
        "Runs by outcome",
        "Since the first run. Only `ok` is published without a reason.",
        f"sort_desc(sum by (outcome) ({series(RUNS, **NODE)}))",
        unit="none",
        legend="{{outcome}}",
    )
    # Short names, seven of them: beside their bars, in a size that fits.
    return (
        built.name_placement(BarGaugeNamePlacement.LEFT)
        .text(common.VizTextDisplayOptions())
        .min_viz_height(16)
    )


def _failures() -> table.Panel:
    keys = "node, storage, scenario, workload"
    failed = f"max by ({keys}) ({series(RUN_SUCCESS, **NODE)} == 0)"
    tried = f"max by ({keys}) (time() - {series(RUN_ATTEMPT_TIMESTAMP, **NODE)})"
    bad = f"sum by ({keys}) ({series(RUNS, outcome='failed|invalid', **NODE)})"
    return rows(
        "Cases that fail now",
        "The exporter's page leads from each to its evidence.",
        ("node", "storage", "scenario", "workload"),
        (
            Column(title="good runs in a row", expression=failed),
            Column(title="failures so far", expression=f"{bad} and on ({keys}) {failed}"),
            Column(
                title="last try",
                expression=f"{tried} and on ({keys}) {failed}",
                unit="dtdurations",
                decimals=0,
            ),
        ),
        sort="last try",
        descending=False,
        hidden=("storage",),  # the scenario begins with it
        missing="no case fails",
    )


def _durations() -> timeseries.Panel:
    return lines(
        "Duration of runs",
        "Median and longest over the cases of a node.",
        [
            query(
                f"quantile by (node) (0.5, {series(RUN_DURATION, **NODE)})",
                legend="{{node}} median",
            ),
            query(
                f"max by (node) ({series(RUN_DURATION, **NODE)})",
                legend="{{node}} longest",
                ref="B",
            ),
        ],
        unit="s",
        linked=False,
        right=False,
        zero=True,
        points=FEW_POINTS,
    )


def _late() -> table.Panel:
    keys = "node, storage, scenario, workload"
    return rows(
        "Most overdue cases",
        "Age of the last good run in intervals of its schedule.",
        ("node", "storage", "scenario", "workload"),
        (
            Column(
                title="intervals",
                decimals=1,
                gauge=True,
                expression=f"max by ({keys}) (topk(10, {recorded(OVERDUE, **NODE)}))",
            ),
        ),
        sort="intervals",
        hidden=("storage",),
    ).override_by_name("workload", [prop("custom.width", 190)])


def _written() -> timeseries.Panel:
    written = series(MOVED_BYTES, direction="write", **NODE)
    return lines(
        "Written in 24 hours",
        "By workloads, in measured windows; fills and ramps come on top. Drives wear by it.",
        [query(f"increase({written}[1d])", legend="{{node}}/{{storage}}")],
        unit="decbytes",
        linked=False,
        right=False,
        zero=True,
    )


def _forecast() -> timeseries.Panel:
    written = series(MOVED_BYTES, direction="write", **NODE)
    return lines(
        "Written in a year at this pace",
        "The last 24 hours times 365: compare it with the drive's TBW.",
        [query(f"365 * increase({written}[1d])", legend="{{node}}/{{storage}}")],
        unit="decbytes",
        linked=False,
        right=False,
        zero=True,
    )
