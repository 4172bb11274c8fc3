"""CPU cost: host CPU per I/O, idle guests, power."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, common, dashboard, table, timeseries, xychart
from grafana_foundation_sdk.models import xychart as xy_models

from builder.bars import CASE_LEGEND, changes_bars, ranking
from builder.charts import chart, lines
from builder.looks import plain
from builder.panels import intro
from builder.parts import (
    base,
    collapsed,
    described,
    node_variable,
    place,
    storage_variable,
    table_query,
    transformation,
    workload_variable,
)
from builder.promql import (
    CASE_KEYS,
    IOPS_PER_CORE,
    confirmed,
    cpu_per_io,
    factors,
    highest,
    recorded,
    series,
    with_descriptions,
)
from builder.tables import Column, age_column, grid, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = {**HERE, "workload": "$workload"}
LEGEND: Final = "{{configuration}} ({{storage}}, {{node}})"
MICRO: Final = 1e6
INTRO: Final = (
    "**How much host CPU does storage need?** pvebench measures CPU outside the guest during each "
    "run. *CPU time per I/O* includes the whole host: 10 µs at 50,000 IOPS keep half a core busy. "
    "Lower is better in all panels. The idle guest shows QEMU's base cost. Power is read by "
    "node_exporter (RAPL) continuously, not per run."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "CPU cost",
            "pvebench-cpu",
            "Host CPU per I/O by configuration, idle cost, power.",
            workload="$workload",
        )
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable())
        .with_panel(_ranking().grid_pos(place(0, 0, 12, 12)))
        .with_panel(_cloud().grid_pos(place(12, 0, 12, 12)))
        .with_panel(_table().grid_pos(place(0, 12, 24, 11)))
        .with_panel(_matrix().grid_pos(place(0, 23, 12, 9)))
        .with_panel(_idle().grid_pos(place(12, 23, 12, 9)))
        .with_panel(_changes().grid_pos(place(0, 32, 24, 9)))
        .with_row(collapsed("Power, switches, guest", 41, *_further()))
        .with_row(dashboard.Row("About").grid_pos(place(0, 42, 24, 1)))
        .with_panel(intro(INTRO, y=43))
    )


def _cost(matchers: dict[str, str]) -> str:
    """Return the CPU time per I/O, in microseconds of one core."""
    return f"({MICRO:.0f} / ({recorded(IOPS_PER_CORE, **matchers)} > 0))"


def _ranking() -> bargauge.Panel:
    return ranking(
        "CPU time per I/O, lowest first",
        "The 12 configurations with the least CPU time per I/O of this workload.",
        f"sort({with_descriptions(f'bottomk(12, {_cost(CASE)})', workload=False)})",
        unit="µs",
        legend=LEGEND,
    ).decimals(1)


def _cloud() -> xychart.Panel:
    """Return the configurations as points: further up for the same CPU is better."""
    total = series(f.HOST_CPU.metric, **CASE, component="total")
    cores = f"max by (job, instance, {CASE_KEYS}) ({total})"
    iops = f"sum by ({CASE_KEYS}) ({series(f.IOPS.metric, **CASE)})"
    titles = {"Value #A": "host CPU, cores", "Value #B": "IOPS"}
    labels = ("Time", "job", "instance", "scenario", "workload")
    return (
        described(
            xychart.Panel(),
            (
                "IOPS over host CPU",
                "One point per configuration. Further up with the same CPU is better.",
            ),
            table_query(with_descriptions(f"({cores})", workload=False)),
            table_query(iops, ref="B"),
            unit="short",
            missing="no data before the first run",
        )
        .min(0)
        .mapping(xy_models.SeriesMapping.AUTO)
        # Without one, Grafana 12.4 shows "Err".
        .series([xychart.XYSeriesConfig()])
        .color_scheme(plain("blue"))
        .transformations(
            [
                transformation("merge"),
                transformation(
                    "organize", excludeByName=dict.fromkeys(labels, True), renameByName=titles
                ),
            ]
        )
        .legend(common.VizLegendOptions().show_legend(False))
    )


def _matrix() -> table.Panel:
    named = with_descriptions(_cost(CASE), workload=False, scenario="disk")
    return grid(
        "CPU time per I/O by cache mode",
        "Minimum of the selected nodes and storages. Darker: larger value in this table.",
        f"min by (disk, cache) ({named})",
        unit="µs",
    ).decimals(1)


def _changes() -> bargauge.Panel:
    judged = {"metric": "cpu_cost|idle_cost", **HERE}
    return changes_bars(
        "CPU cost change",
        "Relative to the baseline: ×2 is twice as much CPU.",
        confirmed(factors(**judged), **judged),
        f"{{{{metric}}}}: {CASE_LEGEND}",
        factor=True,
    )


def _idle() -> timeseries.Panel:
    idle = series(f.HOST_CPU.metric, **HERE, workload="idle.*", component="qemu")
    return lines(
        "Idle guest CPU, cores",
        "CPU usage of QEMU with an idle guest.",
        {LEGEND: with_descriptions(idle, workload=False)},
        unit="none",
        right=False,
        zero=True,
    )


def _further() -> tuple[timeseries.Panel, ...]:
    """Return the charts of power, context switches and the tool's CPU."""
    power = "rate(node_rapl_package_joules_total[$__rate_interval])"
    return (
        chart(
            "Host CPU power",
            "From node_exporter's RAPL collector, which needs hardware support and permission.",
            {"{{instance}}": f"sum by (instance) ({power})"},
            "watt",
            missing="No data: no node_exporter reports power (collector rapl).",
        ),
        lines(
            "Context switches of the host",
            "Per second of the run.",
            {LEGEND: highest(series(m.HOST_SWITCHES, **CASE))},
            unit="ops",
            right=False,
        ),
        lines(
            "Benchmark tool CPU",
            "System time in the guest, as a share of one CPU. Near 100%, the tool is the "
            "bottleneck.",
            {LEGEND: highest(series(f.GUEST_CPU.metric, **CASE, mode="system"))},
            unit="percentunit",
            right=False,
            zero=True,
        ),
    )


def _table() -> table.Panel:
    total, qemu = (series(f.HOST_CPU.metric, **HERE, component=one) for one in ("total", "qemu"))
    named = with_descriptions(f"max by (job, instance, {CASE_KEYS}) ({total})")
    age = f"max by ({CASE_KEYS}) (time() - {series(m.RUN_ATTEMPT_TIMESTAMP, **HERE)})"
    cost = f"max by ({CASE_KEYS}) ({_cost(HERE)})"
    return rows(
        "All cases",
        "Host CPU during the latest run, in cores; CPU time per I/O.",
        ("description", "configuration", "storage", "node", "scenario", "workload"),
        (
            Column("host, cores", named, decimals=2, gauge=True),
            Column("CPU per I/O", cost, unit="µs", decimals=1, trend=cpu_per_io(**HERE)),
            age_column(age),
            Column("QEMU", f"max by ({CASE_KEYS}) ({qemu})", decimals=2),
        ),
        sort="host, cores",
        hidden=("scenario",),
        present=total,
        missing="no data before the first run",
    )
