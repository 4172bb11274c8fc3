"""Operations: health of the benchmark itself, and effects of operations under load."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard

from builder import promql as q
from builder import stat_panels as p
from builder.charts import lines, timeline
from builder.looks import NEUTRAL, UNKNOWN, WORSE, prop, rated, steps, values
from builder.parts import FALLBACK_REF, base, instant, instants, node_variable
from builder.results import outcomes
from builder.tables import CASE_LABELS, HIDDEN, Column, rows, width
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric

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


def _of(metric: Metric, by: str = "node", **matchers: str) -> str:
    return q.max_by(by, metric, **NODE, **matchers)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    gaps, phases, recovery, lost = _under_load()
    about = "Scheduler, failures, drive wear, exporter; effects of backups and snapshots."
    where = {"scenario": ""}
    return p.stacked(
        base("Operations", "pvebench-operations", about, node_variable(), since="24h", **where),
        p.status(),
        (p.fit(4), _doing()),
        (4, (8, _waits()), p.newest(**NODE), p.failing(**NODE), p.stale(**NODE), _reload()),
        (7, _states()),
        (p.fit(7), (6, outcomes(NODE)), (18, _failures())),
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
    def case(label: str, metric: Metric) -> str:
        """Return cases by node, with their workload and storage as one label."""
        cases = q.series(metric, **NODE)
        joined = f'label_join({cases}, "{label}", " on ", "title", "storage")'
        return f"max by (node, {label}) ({joined})"

    busy = q.series(m.SCHEDULER_STATE, **NODE, state="reconfiguring|warmup|running|collecting")
    step = f"time() - {q.series(m.SCHEDULER_PROGRESS, **NODE)}"
    stuck = f"max by (node) (({step} > {STUCK_SECONDS}) and on (node) ({busy} == 1))"
    cycle_end = f"({_of(m.CYCLE_EXPECTED_END)} > time()) * 1000"
    coming = f"1000 * {case('next', m.NEXT_RUN)}"
    colors = rated({str(code): (text, color) for code, text, color in DOING.values()})
    dash = prop("mappings", values({}, nothing=("–", NEUTRAL)))  # a dash
    wide = prop("custom.minWidth", 290)
    return rows(
        "Node status",
        "Running and next case, progress and estimated end of the cycle (from the plan and "
        "earlier runs).",
        ("node", "running", "next"),
        (
            Column("activity", f"max by (node) ({_state()})", wide=190),
            Column("stalled", stuck, unit="dtdurations", decimals=0, wide=120),
            Column("case", case("running", m.CURRENT_RUN)),
            Column("progress", _of(m.CYCLE_PROGRESS), unit="percentunit", decimals=0),
            Column("cases left", _of(m.QUEUE_LENGTH)),
            Column("cycle ends", cycle_end, unit="dateTimeFromNow", wide=120),
            Column("next run", coming, unit="dateTimeFromNow", wide=120),
        ),
        missing="no exporter responds; run pvebench doctor",
        styles={
            "activity": colors,
            "stalled": [prop("displayName", "STALLED"), prop("thresholds", steps(WORSE)), dash],
            "case": HIDDEN,
            "running": [wide],
            "next": [prop("displayName", "next case"), wide],
        },
    )


def _state() -> str:
    """Return the state of each node as its number in `DOING`."""
    return " or ".join(
        f"{code} * ({q.series(m.SCHEDULER_STATE, **NODE, state=name)} == 1)"
        for name, (code, _, _) in DOING.items()
    )


def _waits() -> p.Panel:
    nothing = f"{q.if_empty(q.series(m.HOLD, **NODE))} unless on () {q.silent()}"
    reasons = (
        (f"{{{{node}}}}: {text}", f"count by (node) ({q.series(m.HOLD, **NODE, reason=reason)})")
        for reason, text in HOLDS.items()
    )
    panel = p.names("Waiting for", "Reason why the next run of a node has not started.", "", "")
    return panel.text(p.font(20)).targets(
        [
            *instants(reasons),
            instant(nothing, legend="nothing", ref=FALLBACK_REF),
            instant(q.silent_since(), legend="unknown since {{time}}", ref="G"),
        ]
    )


def _reload() -> p.Panel:
    loaded, text = f"min({q.series(m.CONFIG_RELOAD_SUCCESS)})", "State of the last reload."
    return p.good_or_bad("Settings", text, loaded, ("loaded", "REJECTED", "fixed"))


def _states() -> p.Panel:
    states = {str(code): (text, color) for code, text, color in DOING.values()}
    # Otherwise the legend names a time before the first state as an empty panel.
    mappings = values(states, nothing=("not recorded", UNKNOWN))
    state, none = f"max by (node) ({_state()})", "none in this time range"
    text = "One row per node."
    return timeline("Scheduler state", text, state, "{{node}}", mappings, missing=none)


def _failures() -> p.Panel:
    failed = f"on ({q.CASE_KEYS}) max by ({q.CASE_KEYS}) ({q.series(m.RUN_SUCCESS, **NODE)} == 0)"
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
            Column("latest run", f"{tried} and {failed}", unit="dtdurations"),
            Column("failures", f"{failures} and {failed}"),
            Column("stale, intervals", late, decimals=1),
        ),
        sort="latest run",
        descending=False,
        hidden=("storage",),  # the scenario begins with it
        missing="no failing and no stale cases",
        styles={"workload": [width(190)]},
    )


def _writes() -> p.Panel:
    begun = f"min by (node) ({q.series(m.ENVIRONMENT_START, **NODE)})"
    written = q.series(m.MOVED_BYTES, direction="write", **NODE)
    by = "node, storage"
    # `increase` omits the first value of a counter. Prometheus may be younger than the history.
    before = f"({written} offset 1d or 0 * {written} and on (node) ({begun} > time() - 86400))"
    # Without the service's count, those of measured runs.
    day = f"{_of(m.DAY_WRITTEN, by)} or max by ({by}) ({written} - {before})"
    mean = f"86400 * max by ({by}) ({written}) / on (node) group_left () (time() - {begun} > 86400)"
    expected = _of(m.DAY_PLANNED, by)
    year = f"365 * ({expected} or {day} or {mean})"
    return rows(
        "Writes by storage",
        "Bytes written to test disks: last 24 hours, expected per day and year, write budget. "
        "Compare the year with the drive's rated TBW per year.",
        ("storage", "node"),
        (
            Column("last 24 h", day, unit="decbytes", wide=110),
            Column("expected per day", expected, unit="decbytes", wide=150),
            Column("per year", year, unit="decbytes", wide=110),
            Column("budget per day", _of(m.WRITE_BUDGET, by), unit="decbytes", wide=140),
            Column("used", _of(m.BUDGET_USED, by), unit="percentunit", decimals=0, wide=90),
        ),
        sort="per year",
        present=f"({day} or {written})",
        missing="nothing written yet",
    )


def _wear() -> p.Panel:
    text = "Used share of the rated endurance, and the share that pvebench uses per year."
    shares = {"used": m.DRIVE_WEAR, "per year": m.YEAR_WEAR}
    series = {f"{{{{node}}}}/{{{{storage}}}} {k}": q.series(v, **NODE) for k, v in shares.items()}
    none = "no drive reports its wear"
    return lines("Drive wear", text, series, unit="percentunit", zero=True, missing=none)


# --- Effects of operations under load.

LEGEND: Final = "{{operation}}, {{description}}: {{configuration}} ({{storage}}, {{node}})"
NONE: Final = "no workload with `during` has run yet"


def _named(expression: str) -> str:
    """Add the operation and its limits as a label; they end the workload's slug."""
    return f'label_replace({expression}, "operation", "$1", "workload", ".*-during-(.*)")'


def _column(title: str, metric: Metric, unit: str, **matchers: str) -> Column:
    return Column(title, _of(metric, q.CASE_KEYS, **matchers), unit=unit)


def _described(metric: Metric) -> str:
    return q.with_descriptions(f"({_of(metric, f'job, instance, {q.CASE_KEYS}')})")


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
            {legend: _named(q.highest(q.series(metric, **NODE)))},
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
    columns = (
        Column("fairness", _described(fairness), decimals=3),
        Column("all VMs", f"sum by ({q.CASE_KEYS}) ({rate})", unit="iops"),
        _column("slowest VM", f.VMS_SLOWEST.metric, "iops"),
        _column("boot", f.VMS_BOOT_TIME.metric, "s"),
    )
    text = "Totals of all VMs, Jain's index of their rates (1: equal), slowest VM, boot storm."
    title, none = "Several VMs at the same time", "no workload with `vms` has run yet"
    return rows(title, text, CASE_LABELS, columns, sort="fairness", descending=False, missing=none)


# --- Cost of measuring: exporter, scrapes and database.

JOB: Final = 'job="pvebench"'


def _own_cost() -> tuple[p.Panel, ...]:
    scrapes = {
        "seconds {{instance}}": f"scrape_duration_seconds{{{JOB}}}",
        "million samples {{instance}}": f"scrape_samples_scraped{{{JOB}}} / 1e6",
    }
    sizes = {
        "memory {{instance}}": f"process_resident_memory_bytes{{{JOB}}}",
        "database {{instance}}": q.series(m.DATABASE_SIZE),
    }
    seconds = f"{q.series(m.COLLECTOR_DURATION)} * {q.series(m.COLLECTOR_SUCCESS)}"
    runs = f"{q.series(m.BUILD_INFO)} * on (instance) group_left () {q.series(m.RESULTS)}"
    count = (Column("runs", runs),)
    labels = ("instance", "version", "python_version")
    once, memory = "Duration of each; 0 if it failed.", "Exporter memory and database size"
    return (
        lines("Scrapes", "Duration and number of samples.", scrapes, unit="none", zero=True),
        lines("Metric collectors", once, {"{{collector}}": seconds}, unit="s", zero=True),
        lines(memory, "Resident memory, size on disk.", sizes, unit="bytes", zero=True),
        rows("Exporters", "Version, and number of runs in the database.", labels, count),
    )
