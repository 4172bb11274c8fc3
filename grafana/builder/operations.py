"""Operations: is the measuring itself all right?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    stat,
    statetimeline,
    table,
    timeseries,
)

from builder.bars import ranking
from builder.looks import SAME, WORSE, alarm_steps, steps, values
from builder.panels import intro, lines, names, number, timeline, verdict
from builder.parts import base, environment_changes, node_variable, place, query
from builder.promql import counted, recorded, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    BUILD_INFO,
    COLLECTOR_DURATION,
    COLLECTOR_SUCCESS,
    CONFIG_RELOAD_SUCCESS,
    CURRENT_RUN,
    CYCLE_EXPECTED_END,
    CYCLE_PROGRESS,
    DATABASE_SIZE,
    MOVED_BYTES,
    NEXT_RUN,
    QUEUE_LENGTH,
    RESULTS,
    RUN_ATTEMPT_TIMESTAMP,
    RUN_DURATION,
    RUN_SUCCESS,
    RUNS,
    SCHEDULER_PROGRESS,
    SCHEDULER_STATE,
)

NODE: Final = {"node": "$node"}
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"
JOB: Final = 'job="pvebench"'
INTRO: Final = (
    "**Is the measuring itself all right?** What the scheduler does, what fails and why, what is "
    "overdue, how much is written (drives wear), and what the exporter costs. The exporter's own "
    "page has the evidence of each failure."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Operations", "pvebench-operations", "Scheduler, failures, wear, exporter.", since="24h"
        )
        .annotation(environment_changes())
        .with_variable(node_variable())
        .with_panel(_doing().grid_pos(place(0, 0, 5, 4)))
        .with_panel(_progress().grid_pos(place(5, 0, 3, 4)))
        .with_panel(_left().grid_pos(place(8, 0, 3, 4)))
        .with_panel(_end().grid_pos(place(11, 0, 4, 4)))
        .with_panel(_failing().grid_pos(place(15, 0, 3, 4)))
        .with_panel(_overdue().grid_pos(place(18, 0, 3, 4)))
        .with_panel(_reload().grid_pos(place(21, 0, 3, 4)))
        .with_panel(_states().grid_pos(place(0, 4, 16, 8)))
        .with_panel(_steps().grid_pos(place(16, 4, 8, 8)))
        .with_panel(_outcomes().grid_pos(place(0, 12, 8, 8)))
        .with_panel(_failures().grid_pos(place(8, 12, 16, 8)))
        .with_panel(_durations().grid_pos(place(0, 20, 12, 9)))
        .with_panel(_late().grid_pos(place(12, 20, 12, 9)))
        .with_panel(_written().grid_pos(place(0, 29, 12, 8)))
        .with_panel(_forecast().grid_pos(place(12, 29, 12, 8)))
        .with_panel(_exporter().grid_pos(place(0, 37, 8, 8)))
        .with_panel(_collectors().grid_pos(place(8, 37, 8, 8)))
        .with_panel(_memory().grid_pos(place(16, 37, 8, 8)))
        .with_panel(_facts().grid_pos(place(0, 45, 24, 5)))
        .with_row(_host())
        .with_panel(intro(INTRO, y=51))
    )


def _doing() -> stat.Panel:
    panel = names(
        "Runs now",
        "The case that each node measures.",
        f"max by (node, title) ({series(CURRENT_RUN, **NODE)})",
        "{{node}}: {{title}}",
    )
    return panel.no_value("nothing runs")


def _progress() -> stat.Panel:
    return number(
        "Cycle done",
        "Share of the present cycle.",
        f"avg({series(CYCLE_PROGRESS, **NODE)})",
        unit="percentunit",
        decimals=0,
        missing="idle",
    )


def _left() -> stat.Panel:
    return number(
        "Cases left",
        "In the present cycle.",
        f"sum({series(QUEUE_LENGTH, **NODE)})",
        missing="idle",
    )


def _end() -> stat.Panel:
    waits = f"min({series(NEXT_RUN, **NODE)}) * 1000"
    return number(
        "Cycle ends, or the next begins",
        "Estimate from the plan and the runs so far.",
        f"max({series(CYCLE_EXPECTED_END, **NODE)}) * 1000 or {waits}",
        unit="dateTimeFromNow",
        missing="unknown",
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
    words = values({"0": ("REFUSED", WORSE), "1": ("in force", SAME)})
    return verdict(panel.mappings(words), steps(WORSE, (1, SAME)))


def _states() -> statetimeline.Panel:
    words = values({"0": ("no", "transparent"), "1": ("yes", "blue")})
    return timeline(
        "What the scheduler does",
        "One bar for each state it was in.",
        f"max by (node, state) ({series(SCHEDULER_STATE, **NODE)})",
        "{{node}} {{state}}",
        words,
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
    return ranking(
        "Runs by outcome",
        "Since the first run. Only `ok` is published without a reason.",
        f"sort_desc(sum by (outcome) ({series(RUNS, **NODE)}))",
        unit="none",
        legend="{{outcome}}",
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
    )


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


def _exporter() -> timeseries.Panel:
    return lines(
        "Scrapes",
        "Duration of a scrape, and samples in it.",
        [
            query(f"scrape_duration_seconds{{{JOB}}}", legend="seconds {{instance}}"),
            query(
                f"scrape_samples_scraped{{{JOB}}} / 1e6",
                legend="million samples {{instance}}",
                ref="B",
            ),
        ],
        unit="none",
        linked=False,
        right=False,
        zero=True,
    )


def _collectors() -> timeseries.Panel:
    return lines(
        "Parts of the page",
        "How long each took to make; 0 where it failed.",
        [
            query(
                f"{series(COLLECTOR_DURATION)} * {series(COLLECTOR_SUCCESS)}",
                legend="{{collector}}",
            )
        ],
        unit="s",
        linked=False,
        right=False,
        zero=True,
    )


def _memory() -> timeseries.Panel:
    return lines(
        "Memory of the exporter, size of its database",
        "Resident memory; bytes on disk.",
        [
            query(f"process_resident_memory_bytes{{{JOB}}}", legend="memory {{instance}}"),
            query(series(DATABASE_SIZE), legend="database {{instance}}", ref="B"),
        ],
        unit="bytes",
        linked=False,
        right=False,
        zero=True,
    )


def _facts() -> table.Panel:
    return rows(
        "Exporters",
        "Version of each, runs in its database.",
        ("instance", "version", "python_version"),
        (
            Column(
                title="runs",
                expression=f"{series(BUILD_INFO)} * on (instance) group_left () {series(RESULTS)}",
                unit="short",
            ),
        ),
        linked=False,
    )


def _host() -> dashboard.Row:
    busy = 'rate(node_cpu_seconds_total{mode!="idle"}[$__rate_interval])'
    disk = "rate(node_disk_io_time_seconds_total[$__rate_interval])"
    cpu = lines(
        "Host CPU busy",
        "Cores in use, from node_exporter.",
        [query(f"sum by (instance) ({busy})", legend="{{instance}}")],
        unit="none",
        linked=False,
        right=False,
        zero=True,
    ).grid_pos(place(0, 52, 12, 8))
    disks = lines(
        "Disks busy",
        "Share of time with I/O under way, from node_exporter.",
        [query(disk, legend="{{instance}} {{device}}")],
        unit="percentunit",
        linked=False,
        right=False,
        zero=True,
    ).grid_pos(place(12, 52, 12, 8))
    row = dashboard.Row("Host (node_exporter)").collapsed(True).grid_pos(place(0, 50, 24, 1))
    return row.with_panel(cpu).with_panel(disks)
