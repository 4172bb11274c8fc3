"""Operations: health of the benchmark itself."""

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
from builder.charts import chart, timeline
from builder.looks import NEUTRAL, UNKNOWN, WORSE, prop, rated, steps, values
from builder.own_cost import own_cost
from builder.panels import OVERDUE, failing, good_or_bad, intro, names, newest, stale
from builder.parts import FALLBACK_REF, base, instant, node_variable, place
from builder.promql import CASE_KEYS, if_empty, recorded, series, silent, silent_since
from builder.tables import Column, rows
from pvebench.metrics import catalog as m

NODE: Final = {"node": "$node"}
INTRO: Final = (
    "**Does the benchmark work?** Scheduler state, failures, overdue cases, writes (which wear "
    "drives) and the cost of the exporter. The web UI has the evidence of each failure."
)


DOING: Final = {
    "idle": (1, "waiting for the next run", NEUTRAL),
    "reconfiguring": (2, "switching the disk", "blue"),
    "warmup": (3, "warming up", "blue"),
    "running": (4, "measuring", "blue"),
    "collecting": (5, "collecting results", "blue"),
    "paused": (6, "PAUSED", "orange"),
    "error": (7, "ERROR, retrying later", "dark-orange"),
}
"""State of the scheduler -> (number in a cell, text, color)."""
HOLDS: Final = {
    "paused": "PAUSED, run pvebench resume",
    "quiet_hours": "waiting for the end of quiet hours",
    "busy": "waiting for a backup, migration or scrub",
    "load": "waiting for a lower host load",
    "turn": "waiting for its turn on a shared storage",
}
"""Reason -> text after the node's name."""
STUCK_SECONDS: Final = 1800
BEGUN: Final = f"min by (node) ({series(m.ENVIRONMENT_START, **NODE)})"
"""Unix time of the first result of each node."""


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Operations",
            "pvebench-operations",
            "Scheduler, failures, drive wear, exporter.",
            since="24h",
            node="",
        )
        .with_variable(node_variable())
        .with_panel(_doing().grid_pos(place(0, 0, 24, 7)))
        .with_panel(_waits().grid_pos(place(0, 7, 8, 4)))
        .with_panel(newest(**NODE).grid_pos(place(8, 7, 4, 4)))
        .with_panel(failing(**NODE).grid_pos(place(12, 7, 4, 4)))
        .with_panel(stale(**NODE).grid_pos(place(16, 7, 4, 4)))
        .with_panel(_reload().grid_pos(place(20, 7, 4, 4)))
        .with_panel(_states().grid_pos(place(0, 11, 24, 7)))
        .with_panel(_outcomes().grid_pos(place(0, 18, 8, 10)))
        .with_panel(_failures().grid_pos(place(8, 18, 16, 5)))
        .with_panel(_late().grid_pos(place(8, 23, 16, 5)))
        .with_panel(_writes().grid_pos(place(0, 28, 16, 8)))
        .with_panel(_wear().grid_pos(place(16, 28, 8, 8)))
        .with_row(own_cost(36))
        .with_row(dashboard.Row("About").grid_pos(place(0, 37, 24, 1)))
        .with_panel(intro(INTRO, y=38))
    )


def _doing() -> table.Panel:
    step = f"time() - {series(m.SCHEDULER_PROGRESS, **NODE)}"
    busy = series(m.SCHEDULER_STATE, **NODE, state="reconfiguring|warmup|running|collecting")
    stuck = f"({step} > {STUCK_SECONDS}) and on (node) ({busy} == 1)"
    cycle_end = f"max by (node) ({series(m.CYCLE_EXPECTED_END, **NODE)} > time()) * 1000"
    return (
        rows(
            "Node status",
            "Running and next case, progress and estimated end of the cycle (from the plan and "
            "earlier runs).",
            ("node", "running", "next"),
            (
                Column("activity", f"max by (node) ({_state()})", wide=190),
                Column(
                    "stalled", f"max by (node) ({stuck})", unit="dtdurations", decimals=0, wide=120
                ),
                Column("case", _named("running", series(m.CURRENT_RUN, **NODE))),
                Column(
                    "progress",
                    f"max by (node) ({series(m.CYCLE_PROGRESS, **NODE)})",
                    unit="percentunit",
                    decimals=0,
                ),
                Column("cases left", f"max by (node) ({series(m.QUEUE_LENGTH, **NODE)})"),
                Column("cycle ends", cycle_end, unit="dateTimeFromNow", wide=120),
                Column(
                    "next run",
                    f"1000 * {_named('next', series(m.NEXT_RUN, **NODE))}",
                    unit="dateTimeFromNow",
                    wide=120,
                ),
            ),
            linked=False,
            missing="no exporter responds; run pvebench selftest",
        )
        .override_by_name(
            "activity", rated({str(code): (text, color) for code, text, color in DOING.values()})
        )
        .override_by_name(
            "stalled",
            [
                prop("displayName", "STALLED"),
                prop("thresholds", steps(WORSE)),
                prop("mappings", values({}, nothing=("–", NEUTRAL))),  # a dash
            ],
        )
        .override_by_name("case", [prop("custom.hidden", True)])
        .override_by_name("running", [prop("custom.minWidth", 290)])
        .override_by_name("next", [prop("displayName", "next case"), prop("custom.minWidth", 290)])
    )


def _named(label: str, cases: str) -> str:
    """Return cases by node, with their workload and storage as one label."""
    return f'max by (node, {label}) (label_join({cases}, "{label}", " on ", "title", "storage"))'


def _state() -> str:
    """Return the state of each node as its number in `DOING`."""
    return " or ".join(
        f"{code} * ({series(m.SCHEDULER_STATE, **NODE, state=name)} == 1)"
        for name, (code, _, _) in DOING.items()
    )


def _waits() -> stat.Panel:
    holds = series(m.HOLD, **NODE)
    targets = [
        instant(
            f"count by (node) ({series(m.HOLD, **NODE, reason=reason)})",
            legend=f"{{{{node}}}}: {text}",
            ref=chr(ord("A") + index),
        )
        for index, (reason, text) in enumerate(HOLDS.items())
    ]
    nothing = f"{if_empty(holds)} unless on () {silent()}"
    targets += [
        instant(nothing, legend="nothing", ref=FALLBACK_REF),
        instant(silent_since(), legend="unknown since {{time}}", ref="G"),
    ]
    panel = names("Waiting for", "Reason why the next run of a node has not started.", "", "")
    return panel.targets([*targets]).text(common.VizTextDisplayOptions().value_size(20))


def _reload() -> stat.Panel:
    loaded, text = (
        f"min({series(m.CONFIG_RELOAD_SUCCESS)})",
        "State of the last configuration reload.",
    )
    return good_or_bad("Settings", text, loaded, good="loaded", bad="REJECTED", missing="fixed")


def _states() -> statetimeline.Panel:
    states = {str(code): (text, color) for code, text, color in DOING.values()}
    # Otherwise the legend names a time before the first state as an empty panel.
    mappings = values(states, nothing=("not recorded", UNKNOWN))
    return timeline(
        "Scheduler state",
        "One row per node.",
        f"max by (node) ({_state()})",
        "{{node}}",
        mappings,
        missing="none in this time range",
    )


def _outcomes() -> bargauge.Panel:
    panel = ranking(
        "Runs by outcome",
        "Since the first run. Only `ok` has no reason.",
        f"sort_desc(sum by (outcome) ({series(m.RUNS, **NODE)}))",
        unit="none",
        legend="{{outcome}}",
    )
    # Seven short names fit next to their bars.
    return (
        panel.name_placement(BarGaugeNamePlacement.LEFT)
        .text(common.VizTextDisplayOptions())
        .min_viz_height(16)
    )


def _failures() -> table.Panel:
    failed = f"max by ({CASE_KEYS}) ({series(m.RUN_SUCCESS, **NODE)} == 0)"
    tried = f"max by ({CASE_KEYS}) (time() - {series(m.RUN_ATTEMPT_TIMESTAMP, **NODE)})"
    failures = f"sum by ({CASE_KEYS}) ({series(m.RUNS, outcome='failed|invalid', **NODE)})"
    return rows(
        "Failing cases",
        "Cases whose last run failed. The web UI has the evidence of each.",
        ("node", "storage", "scenario", "workload"),
        (
            Column("latest run", f"{tried} and on ({CASE_KEYS}) {failed}", unit="dtdurations"),
            Column("failures", f"{failures} and on ({CASE_KEYS}) {failed}"),
        ),
        sort="latest run",
        descending=False,
        hidden=("storage",),  # the scenario begins with it
        missing="no failing cases",
    )


def _late() -> table.Panel:
    return rows(
        "Stale cases",
        "No successful run for 2.5 intervals: age of the latest one, in intervals.",
        ("node", "storage", "scenario", "workload"),
        (
            Column(
                "intervals",
                f"max by ({CASE_KEYS}) (topk(10, {recorded(OVERDUE, **NODE)} > 2.5))",
                decimals=1,
            ),
        ),
        sort="intervals",
        hidden=("storage",),
        missing="no stale cases",
    ).override_by_name("workload", [prop("custom.width", 190)])


def _day_written() -> str:
    """Return the bytes written in a day; without the service's count, those of measured runs."""
    moved = series(m.MOVED_BYTES, direction="write", **NODE)
    # `increase` omits the first value of a counter. Prometheus may be younger than the history.
    young = f"({BEGUN} > time() - 86400)"
    day = f"({moved} - ({moved} offset 1d or 0 * {moved} and on (node) {young}))"
    counts = (series(m.DAY_WRITTEN, **NODE), day)
    return " or ".join(f"max by (node, storage) ({count})" for count in counts)


def _writes() -> table.Panel:
    expected = f"max by (node, storage) ({series(m.DAY_PLANNED, **NODE)})"
    moved = f"max by (node, storage) ({series(m.MOVED_BYTES, direction='write', **NODE)})"
    mean = f"86400 * {moved} / on (node) group_left () (time() - {BEGUN} > 86400)"
    budget, used = (
        f"max by (node, storage) ({series(metric, **NODE)})"
        for metric in (m.WRITE_BUDGET, m.BUDGET_USED)
    )
    return rows(
        "Writes by storage",
        "Bytes written to test disks: last 24 hours, expected per day and year, write budget. "
        "Compare the year with the drive's rated TBW per year.",
        ("storage", "node"),
        (
            Column("last 24 h", _day_written(), unit="decbytes", wide=110),
            Column("expected per day", expected, unit="decbytes", wide=150),
            Column(
                "per year",
                f"365 * ({expected} or {_day_written()} or {mean})",
                unit="decbytes",
                wide=110,
            ),
            Column("budget per day", budget, unit="decbytes", wide=140),
            Column("used", used, unit="percentunit", decimals=0, wide=90),
        ),
        sort="per year",
        linked=False,
        present=f"({_day_written()} or {moved})",
        missing="nothing written yet",
    )


def _wear() -> timeseries.Panel:
    where = "{{node}}/{{storage}}"
    return chart(
        "Drive wear",
        "Used share of the rated endurance, and the share that pvebench uses per year, where "
        "drives report it.",
        {
            f"{where} used": series(m.DRIVE_WEAR, **NODE),
            f"{where} per year": series(m.YEAR_WEAR, **NODE),
        },
        "percentunit",
        missing="no drive reports its wear",
    )
