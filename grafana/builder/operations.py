"""Operations: health of the benchmark itself, and effects of operations under load."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard
from grafana_foundation_sdk.models.common import BarGaugeNamePlacement

from builder import panels as p
from builder import promql as q
from builder.bars import ranking
from builder.charts import chart, lines, timeline
from builder.looks import NEUTRAL, UNKNOWN, WORSE, prop, rated, steps, values
from builder.parts import FALLBACK_REF, base, instant, node_variable
from builder.tables import CASE_LABELS, Column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

NODE: Final = {"node": "$node"}
INTRO: Final = (
    "**Does the benchmark work?** Scheduler state, failures, overdue cases, writes (which wear "
    "drives) and the cost of the exporter. The web UI has the evidence of each failure. *Under "
    "load* shows what a guest notices of a backup, a move or a snapshot: the gap is the "
    "longest time without completed I/O, timed outside the guest, whose clock can stand meanwhile."
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
BEGUN: Final = f"min by (node) ({q.series(m.ENVIRONMENT_START, **NODE)})"
"""Unix time of the first result of each node."""


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    gaps, phases, recovery, lost = _under_load()
    about = "Scheduler, failures, drive wear, exporter; effects of backups and snapshots."
    where = {"scenario": ".*"}
    return p.stacked(
        base("Operations", "pvebench-operations", about, node_variable(), since="24h", **where),
        p.status(),
        (p.fit(4), _doing()),
        (4, (8, _waits()), p.newest(**NODE), p.failing(**NODE), p.stale(**NODE), _reload()),
        (7, _states()),
        (10, (8, _outcomes()), (16, _failures())),
        (p.fit(5), (16, _writes()), (8, _wear())),
        p.section(
            "Under load: backups, moves, snapshots, several VMs",
            (p.fit(8), _effects()),
            (10, gaps, phases),
            (10, recovery, lost),
            (5, _together()),
        ),
        p.section("Cost of pvebench", (8, *_own_cost())),
        p.intro(INTRO),
    )


def _doing() -> p.Panel:
    step = f"time() - {q.series(m.SCHEDULER_PROGRESS, **NODE)}"
    busy = q.series(m.SCHEDULER_STATE, **NODE, state="reconfiguring|warmup|running|collecting")
    stuck = f"({step} > {STUCK_SECONDS}) and on (node) ({busy} == 1)"
    cycle_end = f"max by (node) ({q.series(m.CYCLE_EXPECTED_END, **NODE)} > time()) * 1000"
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
                Column("case", _upcoming("running", q.series(m.CURRENT_RUN, **NODE))),
                Column(
                    "progress",
                    f"max by (node) ({q.series(m.CYCLE_PROGRESS, **NODE)})",
                    unit="percentunit",
                    decimals=0,
                ),
                Column("cases left", f"max by (node) ({q.series(m.QUEUE_LENGTH, **NODE)})"),
                Column("cycle ends", cycle_end, unit="dateTimeFromNow", wide=120),
                Column(
                    "next run",
                    f"1000 * {_upcoming('next', q.series(m.NEXT_RUN, **NODE))}",
                    unit="dateTimeFromNow",
                    wide=120,
                ),
            ),
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


def _upcoming(label: str, cases: str) -> str:
    """Return cases by node, with their workload and storage as one label."""
    return f'max by (node, {label}) (label_join({cases}, "{label}", " on ", "title", "storage"))'


def _state() -> str:
    """Return the state of each node as its number in `DOING`."""
    return " or ".join(
        f"{code} * ({q.series(m.SCHEDULER_STATE, **NODE, state=name)} == 1)"
        for name, (code, _, _) in DOING.items()
    )


def _waits() -> p.Panel:
    holds = q.series(m.HOLD, **NODE)
    targets = [
        instant(
            f"count by (node) ({q.series(m.HOLD, **NODE, reason=reason)})",
            legend=f"{{{{node}}}}: {text}",
            ref=chr(ord("A") + index),
        )
        for index, (reason, text) in enumerate(HOLDS.items())
    ]
    nothing = f"{q.if_empty(holds)} unless on () {q.silent()}"
    targets += [
        instant(nothing, legend="nothing", ref=FALLBACK_REF),
        instant(q.silent_since(), legend="unknown since {{time}}", ref="G"),
    ]
    panel = p.names("Waiting for", "Reason why the next run of a node has not started.", "", "")
    return panel.targets([*targets]).text(common.VizTextDisplayOptions().value_size(20))


def _reload() -> p.Panel:
    loaded, text = f"min({q.series(m.CONFIG_RELOAD_SUCCESS)})", "State of the last reload."
    return p.good_or_bad("Settings", text, loaded, ("loaded", "REJECTED", "fixed"))


def _states() -> p.Panel:
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


def _outcomes() -> p.Panel:
    panel = ranking(
        "Runs by outcome",
        "Since the first run. Only `ok` has no reason.",
        f"sort_desc(sum by (outcome) ({q.series(m.RUNS, **NODE)}))",
        unit="none",
        legend="{{outcome}}",
    )
    # Seven short names fit next to their bars.
    return (
        panel.name_placement(BarGaugeNamePlacement.LEFT)
        .text(common.VizTextDisplayOptions())
        .min_viz_height(16)
    )


def _failures() -> p.Panel:
    failed = f"max by ({q.CASE_KEYS}) ({q.series(m.RUN_SUCCESS, **NODE)} == 0)"
    tried = f"max by ({q.CASE_KEYS}) (time() - {q.series(m.RUN_ATTEMPT_TIMESTAMP, **NODE)})"
    failures = f"sum by ({q.CASE_KEYS}) ({q.series(m.RUNS, outcome='failed|invalid', **NODE)})"
    late = f"max by ({q.CASE_KEYS}) (topk(10, {q.recorded(p.OVERDUE, **NODE)} > 2.5))"
    return rows(
        "Failing and stale cases",
        "Cases whose last run failed: its age, and the number of failures. Cases without a "
        "successful run for 2.5 intervals: age of the latest one, in intervals. The web UI has the "
        "evidence of each failure.",
        ("node", "storage", "scenario", "workload"),
        (
            Column("latest run", f"{tried} and on ({q.CASE_KEYS}) {failed}", unit="dtdurations"),
            Column("failures", f"{failures} and on ({q.CASE_KEYS}) {failed}"),
            Column("stale, intervals", late, decimals=1),
        ),
        sort="latest run",
        descending=False,
        hidden=("storage",),  # the scenario begins with it
        missing="no failing and no stale cases",
    ).override_by_name("workload", [prop("custom.width", 190)])


def _day_written() -> str:
    """Return the bytes written in a day; without the service's count, those of measured runs."""
    moved = q.series(m.MOVED_BYTES, direction="write", **NODE)
    # `increase` omits the first value of a counter. Prometheus may be younger than the history.
    young = f"({BEGUN} > time() - 86400)"
    day = f"({moved} - ({moved} offset 1d or 0 * {moved} and on (node) {young}))"
    counts = (q.series(m.DAY_WRITTEN, **NODE), day)
    return " or ".join(f"max by (node, storage) ({count})" for count in counts)


def _writes() -> p.Panel:
    expected = f"max by (node, storage) ({q.series(m.DAY_PLANNED, **NODE)})"
    moved = f"max by (node, storage) ({q.series(m.MOVED_BYTES, direction='write', **NODE)})"
    mean = f"86400 * {moved} / on (node) group_left () (time() - {BEGUN} > 86400)"
    budget, used = (
        f"max by (node, storage) ({q.series(metric, **NODE)})"
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
        present=f"({_day_written()} or {moved})",
        missing="nothing written yet",
    )


def _wear() -> p.Panel:
    where = "{{node}}/{{storage}}"
    return chart(
        "Drive wear",
        "Used share of the rated endurance, and the share that pvebench uses per year, where "
        "drives report it.",
        {
            f"{where} used": q.series(m.DRIVE_WEAR, **NODE),
            f"{where} per year": q.series(m.YEAR_WEAR, **NODE),
        },
        "percentunit",
        missing="no drive reports its wear",
    )


# --- Effects of operations under load.

LEGEND: Final = "{{operation}}, {{description}}: {{configuration}} ({{storage}}, {{node}})"
NONE: Final = "no workload with `during` has run yet"


def _named(expression: str) -> str:
    """Add the operation and its limits as a label; they end the workload's slug."""
    return f'label_replace({expression}, "operation", "$1", "workload", ".*-during-(.*)")'


def _column(title: str, metric: Metric, unit: str, **matchers: str) -> Column:
    expression = f"max by ({q.CASE_KEYS}) ({q.series(metric, **NODE, **matchers)})"
    return Column(title=title, expression=expression, unit=unit)


def _described(metric: Metric) -> str:
    return q.with_descriptions(
        f"(max by (job, instance, {q.CASE_KEYS}) ({q.series(metric, **NODE)}))"
    )


def _effects() -> p.Panel:
    return rows(
        "Effect of each operation",
        "Latest successful runs. A gap can be longer by the resolution in the last column. Compare "
        "*backup* with *backup-fleecing*.",
        ("operation", *CASE_LABELS),
        (
            Column("gap", _named(_described(f.OPERATION_GAP.metric)), unit="s"),
            _column("p99 before", f.OPERATION_P99.metric, "s", phase="before"),
            _column("p99 during", f.OPERATION_P99.metric, "s", phase="during"),
            _column("lost I/O", f.OPERATION_LOST.metric, "short"),
            _column("recovery", f.OPERATION_RECOVERY.metric, "s"),
            _column("duration", f.OPERATION_TIME.metric, "s"),
            _column("size", f.OPERATION_BYTES.metric, "bytes"),
            _column("resolution", f.OPERATION_RESOLUTION.metric, "s"),
        ),
        sort="gap",
        hidden=("scenario",),
        missing=NONE,
    )


def _under_load() -> list[p.Panel]:
    log = "the ten longest, logarithmic. Lower is better."
    phases = f"{{{{phase}}}}, {LEGEND}"
    gap = f"Longest time without completed I/O; {log}"
    p99 = f"Completion latency as QEMU sees it; {log} Driver qemu only."
    recovery = "Time from the dip to three seconds at 80% of the rate before. Lower is better."
    lost = "Operations that the rate before would have completed. Lower is better."
    return [
        lines(
            title,
            text,
            {legend: _named(q.highest(q.series(metric, **NODE), workload=True))},
            unit=unit,
            log=log in text,
            linked=True,
            missing=NONE,
        )
        for title, text, metric, legend, unit in (
            ("Longest gap", gap, f.OPERATION_GAP.metric, LEGEND, "s"),
            ("p99 before, during and after", p99, f.OPERATION_P99.metric, phases, "s"),
            ("Recovery", recovery, f.OPERATION_RECOVERY.metric, LEGEND, "s"),
            ("Lost I/O", lost, f.OPERATION_LOST.metric, LEGEND, "short"),
        )
    ]


def _together() -> p.Panel:
    fairness = f.VMS_FAIRNESS.metric
    rate = f"{q.series(f.IOPS.metric, **NODE)} and on ({q.CASE_KEYS}) {q.series(fairness, **NODE)}"
    return rows(
        "Several VMs at the same time",
        "Totals of all VMs, Jain's index of their rates (1: equal), slowest VM, boot storm.",
        CASE_LABELS,
        (
            Column("fairness", _described(fairness), decimals=3),
            Column("all VMs", f"sum by ({q.CASE_KEYS}) ({rate})", unit="iops"),
            _column("slowest VM", f.VMS_SLOWEST.metric, "iops"),
            _column("boot", f.VMS_BOOT_TIME.metric, "s"),
        ),
        sort="fairness",
        descending=False,
        hidden=("scenario",),
        missing="no workload with `vms` has run yet",
    )


# --- Cost of measuring: exporter, scrapes and database.

JOB: Final = 'job="pvebench"'


def _own_cost() -> tuple[p.Panel, ...]:
    collectors = f"{q.series(m.COLLECTOR_DURATION)} * {q.series(m.COLLECTOR_SUCCESS)}"
    scrapes = {
        "seconds {{instance}}": f"scrape_duration_seconds{{{JOB}}}",
        "million samples {{instance}}": f"scrape_samples_scraped{{{JOB}}} / 1e6",
    }
    sizes = {
        "memory {{instance}}": f"process_resident_memory_bytes{{{JOB}}}",
        "database {{instance}}": q.series(m.DATABASE_SIZE),
    }
    once = "Duration of each collector; 0 if it failed."
    runs = f"{q.series(m.BUILD_INFO)} * on (instance) group_left () {q.series(m.RESULTS)}"
    memory = "Exporter memory and database size"
    return (
        chart("Scrapes", "Duration and number of samples of a scrape.", scrapes, "none"),
        chart("Metric collectors", once, {"{{collector}}": collectors}, "s"),
        chart(memory, "Resident memory and size on disk.", sizes, "bytes"),
        rows(
            "Exporters",
            "Version, and number of runs in the database.",
            ("instance", "version", "python_version"),
            (Column("runs", runs, unit="short"),),
        ),
    )
