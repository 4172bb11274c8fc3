"""CPU cost: what does storage cost the host?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, dashboard, table, timeseries

from builder.bars import changes_bars, ranking
from builder.panels import intro, lines
from builder.parts import (
    base,
    changes,
    environment_changes,
    node_variable,
    place,
    query,
    storage_variable,
    workload_variable,
)
from builder.promql import in_words, recorded, series
from builder.tables import Column, grid, rows
from pvebench.metrics.catalog import (
    CHANGE,
    GUEST_CPU,
    HOST_CPU,
    HOST_SWITCHES,
    IOPS,
    RUN_ATTEMPT_TIMESTAMP,
)
from pvebench.model.disk import Cache

HERE: Final = {"node": "$node", "storage": "$storage"}
CASE: Final = {**HERE, "workload": "$workload"}
PER_CORE: Final = "scenario_workload:pvebench_iops_per_cpu_core:ratio"
KEYS: Final = "node, storage, scenario, workload"
LEGEND: Final = "{{configuration}} ({{storage}}, {{node}})"
MICRO: Final = 1e6
INTRO: Final = (
    "**What does storage cost the host?** CPU is measured outside the guest while the workload "
    "runs. *Core-µs an I/O* is the time of one core that one I/O takes, all of the host included: "
    "10 µs at 50,000 IOPS keep half a core busy. Lower is better everywhere. The idle guest tells "
    "what QEMU costs when nothing happens. Watts are the host's own, where node_exporter reads "
    "them (RAPL): of the present, not of a run."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("CPU cost", "pvebench-cpu", "Host CPU an I/O by configuration, idle cost, watts.")
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_variable(workload_variable())
        .with_panel(_ranking().grid_pos(place(0, 0, 12, 12)))
        .with_panel(_matrix().grid_pos(place(12, 0, 12, 12)))
        .with_panel(_table().grid_pos(place(0, 12, 24, 11)))
        .with_panel(_components().grid_pos(place(0, 23, 12, 9)))
        .with_panel(_idle().grid_pos(place(12, 23, 12, 9)))
        .with_panel(_changes().grid_pos(place(0, 32, 12, 9)))
        .with_panel(_watts().grid_pos(place(12, 32, 12, 9)))
        .with_panel(_switches().grid_pos(place(0, 41, 12, 9)))
        .with_panel(_guest().grid_pos(place(12, 41, 12, 9)))
        .with_panel(intro(INTRO, y=50))
    )


def _cost(chosen: dict[str, str]) -> str:
    """Return the microseconds of one core that an I/O takes."""
    return f"({MICRO:.0f} / ({recorded(PER_CORE, **chosen)} > 0))"


def _most(selector: str) -> str:
    """Keep the same few series over the whole range: those highest at its end."""
    return f"{selector} and topk(10, {selector} @ end())"


def _ranking() -> bargauge.Panel:
    return ranking(
        "Core-µs an I/O, the cheapest first",
        "The twelve settings that take the least CPU for an I/O of this workload.",
        f"sort({in_words(f'bottomk(12, {_cost(CASE)})', workload=False)})",
        unit="µs",
        legend="{{configuration}} ({{storage}}, {{node}})",
    ).decimals(1)


def _matrix() -> table.Panel:
    named = in_words(_cost(CASE), workload=False, scenario="disk")
    return grid(
        "Core-µs an I/O by cache mode",
        "Of several nodes and storages the cheapest. Darker is more CPU within this table.",
        f"min by (disk, cache) ({named})",
        unit="µs",
        row="disk",
        column="cache",
        corner="disk, by cache mode",
        order=tuple(Cache),
    ).decimals(1)


def _changes() -> bargauge.Panel:
    judged = series(CHANGE, metric="cpu_cost|idle_cost", **HERE)
    return changes_bars(
        "Change of CPU cost",
        "Against the baseline; better is less CPU.",
        judged,
        "{{metric}}: {{configuration}}, {{description}} ({{storage}}, {{node}})",
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
        [query(in_words(idle, workload=False), legend="{{configuration}} ({{storage}}, {{node}})")],
        unit="none",
        right=False,
        zero=True,
    )


def _switches() -> timeseries.Panel:
    return lines(
        "Context switches of the host",
        "For each second of the run.",
        [
            query(
                in_words(f"({_most(series(HOST_SWITCHES, **CASE))})", workload=False), legend=LEGEND
            )
        ],
        unit="ops",
        right=False,
    )


def _guest() -> timeseries.Panel:
    return lines(
        "CPU of the tool in the guest",
        "User and system, in shares of one CPU. Near 100 % the tool is the limit, not the disk.",
        [
            query(
                in_words(f"({_most(series(GUEST_CPU, **CASE, mode='system'))})", workload=False),
                legend=LEGEND,
            )
        ],
        unit="percentunit",
        right=False,
        zero=True,
    )


def _watts() -> timeseries.Panel:
    power = "rate(node_rapl_package_joules_total[$__rate_interval])"
    return lines(
        "Watts of the host's processors",
        "From node_exporter's RAPL collector, where the hardware and its rights allow it.",
        [query(f"sum by (instance) ({power})", legend="{{instance}}")],
        unit="watt",
        linked=False,
        right=False,
        zero=True,
        missing="No node_exporter reports watts (collector rapl): nothing is known, not zero.",
    )


def _table() -> table.Panel:
    def cores(component: str) -> str:
        chosen = series(HOST_CPU, **HERE, workload=".*", component=component)
        return f"max by ({KEYS}) ({chosen})"

    named = in_words(
        f"max by (job, instance, {KEYS}) "
        f"({series(HOST_CPU, **HERE, workload='.*', component='total')})"
    )
    switches = series(HOST_SWITCHES, **HERE)
    done = f"sum by ({KEYS}) ({series(IOPS, **HERE)} > 0)"
    age = f"max by ({KEYS}) (time() - {series(RUN_ATTEMPT_TIMESTAMP, **HERE)})"
    return rows(
        "All cases",
        "Host CPU in cores while each ran, what an I/O took of it, context switches of the host "
        "for each I/O.",
        ("description", "configuration", "storage", "node", "scenario", "workload"),
        (
            Column(title="host, cores", expression=named, decimals=2, gauge=True),
            Column(
                title="core-µs an I/O",
                expression=f"max by ({KEYS}) ({_cost(HERE)})",
                unit="µs",
                decimals=1,
            ),
            Column(title="age", expression=age, unit="dtdurations", decimals=0),
            Column(title="QEMU", expression=cores("qemu"), decimals=2),
            Column(title="vCPU threads", expression=cores("vcpu"), decimals=2),
            Column(title="I/O thread", expression=cores("iothread"), decimals=2),
            Column(
                title="switches an I/O",
                expression=f"max by ({KEYS}) ({switches}) / {done}",
                decimals=2,
            ),
        ),
        sort="host, cores",
        hidden=("scenario",),
        missing="nothing measured yet: it comes with the first run",
    )
