"""Operations under load: what a guest notices of backups, moves, snapshots and other VMs."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table, timeseries

from builder.charts import lines
from builder.panels import intro
from builder.parts import base, node_variable, place, storage_variable, workload_variable
from builder.promql import highest, series, with_descriptions
from builder.tables import Column, rows
from pvebench.model import figures as f
from pvebench.model.metric import Metric

CASE: Final = {"node": "$node", "storage": "$storage", "workload": "$workload"}
KEYS: Final = "node, storage, scenario, workload"
COLUMNS: Final = ("description", "configuration", "storage", "node", "scenario", "workload")
LEGEND: Final = "{{operation}}, {{description}}: {{configuration}} ({{storage}}, {{node}})"
NONE: Final = "no workload with `during` has run yet"
ALONE: Final = "no workload with `vms` has run yet"
INTRO: Final = (
    "**What does a guest notice of a backup, a move or a snapshot?** The gap is the longest time "
    "without completed I/O, timed outside the guest, whose clock can stand meanwhile. Compare "
    "*backup* with *backup-fleecing*. Purple lines mark software updates."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    gaps, phases, recovery, lost = _charts()
    return (
        base("Operations under load", "pvebench-under-load", "Effects of backups and snapshots.")
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable(multi=True))
        .with_panel(_table().grid_pos(place(0, 0, 24, 11)))
        .with_panel(gaps.grid_pos(place(0, 11, 12, 11)))
        .with_panel(phases.grid_pos(place(12, 11, 12, 11)))
        .with_panel(recovery.grid_pos(place(0, 22, 12, 10)))
        .with_panel(lost.grid_pos(place(12, 22, 12, 10)))
        .with_panel(_together().grid_pos(place(0, 32, 24, 5)))
        .with_panel(intro(INTRO, y=37))
    )


def _named(expression: str) -> str:
    """Add the operation and its limits as a label; they end the workload's slug."""
    return f'label_replace({expression}, "operation", "$1", "workload", ".*-during-(.*)")'


def _column(title: str, metric: Metric, unit: str, **matchers: str) -> Column:
    expression = f"max by ({KEYS}) ({series(metric, **CASE, **matchers)})"
    return Column(title=title, expression=expression, unit=unit)


def _table() -> table.Panel:
    named = f"(max by (job, instance, {KEYS}) ({series(f.OPERATION_GAP.metric, **CASE)}))"
    return rows(
        "Effect of each operation",
        "Latest successful runs. A gap can be longer by the resolution in the last column.",
        ("operation", *COLUMNS),
        (
            Column(title="gap", expression=_named(with_descriptions(named)), unit="s"),
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


def _charts() -> list[timeseries.Panel]:
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
            {legend: _named(highest(series(metric, **CASE), workload=True))},
            unit=unit,
            log=log in text,
            right=False,
            missing=NONE,
        )
        for title, text, metric, legend, unit in (
            ("Longest gap", gap, f.OPERATION_GAP.metric, LEGEND, "s"),
            ("p99 before, during and after", p99, f.OPERATION_P99.metric, phases, "s"),
            ("Recovery", recovery, f.OPERATION_RECOVERY.metric, LEGEND, "s"),
            ("Lost I/O", lost, f.OPERATION_LOST.metric, LEGEND, "short"),
        )
    ]


def _together() -> table.Panel:
    named = f"(max by (job, instance, {KEYS}) ({series(f.VMS_FAIRNESS.metric, **CASE)}))"
    return rows(
        "Several VMs at the same time",
        "Totals of all VMs, Jain's index of their rates (1: equal), slowest VM, boot storm.",
        COLUMNS,
        (
            Column(title="fairness", expression=with_descriptions(named), decimals=3),
            Column(
                title="all VMs",
                expression=f"sum by ({KEYS}) ({series(f.IOPS.metric, **CASE)}"
                f" and on ({KEYS}) {series(f.VMS_FAIRNESS.metric, **CASE)})",
                unit="iops",
            ),
            _column("slowest VM", f.VMS_SLOWEST.metric, "iops"),
            _column("boot", f.VMS_BOOT_TIME.metric, "s"),
        ),
        sort="fairness",
        descending=False,
        hidden=("scenario",),
        missing=ALONE,
    )
