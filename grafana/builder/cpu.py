"""CPU cost: what does storage cost the host?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, table, timeseries

from builder.bars import changes_bars, ranking
from builder.panels import intro, lines
from builder.parts import (
    base,
    environment_changes,
    node_variable,
    place,
    query,
    storage_variable,
    workload_variable,
)
from builder.promql import recorded, series
from builder.tables import Column, grid, rows
from pvebench.metrics.catalog import (
    CHANGE,
    GUEST_CPU,
    HOST_CPU,
    HOST_SWITCHES,
    IOPS,
    RUN_ATTEMPT_TIMESTAMP,
)

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = {**HERE, "workload": "$workload"}
PER_CORE: Final = "scenario_workload:pvebench_iops_per_cpu_core:ratio"
KEYS: Final = "node, storage, scenario, workload"
INTRO: Final = (
    "**What does storage cost the host?** CPU is measured outside the guest while the workload "
    "runs, in cores, and split by QEMU's threads. IOPS per core tells how many such guests a host "
    "can feed; the idle guest tells what QEMU costs when nothing happens."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("CPU cost", "pvebench-cpu", "Host CPU by component, IOPS per core, idle cost.")
        .annotation(environment_changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable())
        .with_panel(intro(INTRO))
        .with_panel(_ranking().grid_pos(place(0, 3, 12, 11)))
        .with_panel(_matrix().grid_pos(place(12, 3, 12, 6)))
        .with_panel(_changes().grid_pos(place(12, 9, 12, 5)))
        .with_panel(_components().grid_pos(place(0, 14, 12, 10)))
        .with_panel(_idle().grid_pos(place(12, 14, 12, 10)))
        .with_panel(_switches().grid_pos(place(0, 24, 12, 9)))
        .with_panel(_guest().grid_pos(place(12, 24, 12, 9)))
        .with_panel(_table().grid_pos(place(0, 33, 24, 11)))
    )


def _most(selector: str) -> str:
    """Keep the same few series over the whole range: those highest at its end."""
    return f"{selector} and topk(10, {selector} @ end())"


def _ranking() -> bargauge.Panel:
    return ranking(
        "IOPS per core of host CPU",
        "The twelve that do most with a core.",
        f"sort_desc(topk(12, {recorded(PER_CORE, **CASE)}))",
        unit="iops",
        legend="{{scenario}}",
    )


def _matrix() -> table.Panel:
    cost = f"sum by (bus, cache, scenario, instance) ({series(HOST_SWITCHES, **CASE)})"
    done = f"sum by (bus, cache, scenario, instance) ({series(IOPS, **CASE)} > 0)"
    return grid(
        "Context switches for each operation",
        "Bus by cache mode, the fewest of each cell's scenarios.",
        f"min by (bus, cache) ({cost} / {done})",
        unit="none",
    ).decimals(2)


def _changes() -> bargauge.Panel:
    judged = series(CHANGE, metric="cpu_cost|idle_cost", **HERE)
    return changes_bars(
        "Change of CPU cost",
        "Against the baseline; better is less CPU.",
        judged,
        "{{scenario}} {{workload}} {{metric}}",
        worse=3,
        better=3,
    )


def _components() -> timeseries.Panel:
    chosen = series(HOST_CPU, **CASE, component="vcpu|iothread|other")
    return lines(
        "QEMU's threads, cores",
        "Mean over the scenarios shown, by thread.",
        [query(f"avg by (component) ({chosen})", legend="{{component}}")],
        unit="none",
        linked=False,
        right=False,
        zero=True,
    )


def _idle() -> timeseries.Panel:
    idle = series(HOST_CPU, **HERE, workload="idle.*", component="qemu")
    return lines(
        "Idle guest, cores",
        "What QEMU uses while the guest does nothing.",
        [query(idle, legend="{{node}} {{scenario}}")],
        unit="none",
        right=False,
        zero=True,
    )


def _switches() -> timeseries.Panel:
    return lines(
        "Context switches of the host",
        "For each second of the run.",
        [query(_most(series(HOST_SWITCHES, **CASE)), legend="{{scenario}}")],
        unit="ops",
        right=False,
    )


def _guest() -> timeseries.Panel:
    return lines(
        "CPU of the tool in the guest",
        "User and system, in shares of one CPU. Near 100 % the tool is the limit, not the disk.",
        [query(_most(series(GUEST_CPU, **CASE, mode="system")), legend="{{scenario}}")],
        unit="percentunit",
        right=False,
        zero=True,
    )


def _table() -> table.Panel:
    def cores(component: str) -> str:
        chosen = series(HOST_CPU, **HERE, workload=".*", component=component)
        return f"max by ({KEYS}) ({chosen})"

    age = f"max by ({KEYS}) (time() - {series(RUN_ATTEMPT_TIMESTAMP, **HERE)})"
    return rows(
        "All cases",
        "Host CPU in cores while each ran.",
        ("storage", "scenario", "workload"),
        (
            Column(title="host", expression=cores("total"), decimals=2, gauge=True),
            Column(title="QEMU", expression=cores("qemu"), decimals=2),
            Column(title="vCPU threads", expression=cores("vcpu"), decimals=2),
            Column(title="I/O thread", expression=cores("iothread"), decimals=2),
            Column(
                title="IOPS per core",
                expression=f"max by ({KEYS}) ({recorded(PER_CORE, **HERE)})",
                unit="iops",
            ),
            Column(title="age", expression=age, unit="dtdurations", decimals=0),
        ),
        sort="host",
    )
