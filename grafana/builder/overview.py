"""Overview: how fast is my storage, did anything change, is it current?"""

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
from grafana_foundation_sdk.models import common as models

from builder.bars import ranking
from builder.looks import BETTER, SAME, WORSE, alarm_steps, prop, steps, values
from builder.panels import intro, lines, names, number, timeline, verdict
from builder.parts import base, environment_changes, node_variable, place, query, storage_variable
from builder.promql import counted, of_workloads, recorded, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    BANDWIDTH,
    CHANGE,
    CHANGE_STATE,
    CHANGE_THRESHOLD,
    CYCLE_PROGRESS,
    ENVIRONMENT_INFO,
    IOPS,
    RUN_SUCCESS,
    RUN_TIMESTAMP,
    SYNC_LATENCY_PERCENTILE,
)

HERE: Final = {"node": "$node", "storage": "$storage"}
BY: Final = "node, storage"
SMALL: Final = {"block_size_bytes": "4096"}
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("Overview", "pvebench-overview", "How fast is my storage, did anything change?")
        .annotation(environment_changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_panel(_regressions().grid_pos(place(0, 0, 4, 4)))
        .with_panel(_compared().grid_pos(place(4, 0, 3, 4)))
        .with_panel(_index().grid_pos(place(7, 0, 4, 4)))
        .with_panel(_newest().grid_pos(place(11, 0, 3, 4)))
        .with_panel(_stale().grid_pos(place(14, 0, 2, 4)))
        .with_panel(_failing().grid_pos(place(16, 0, 2, 4)))
        .with_panel(_cycle().grid_pos(place(18, 0, 2, 4)))
        .with_panel(_software().grid_pos(place(20, 0, 4, 4)))
        .with_panel(_storages().grid_pos(place(0, 4, 24, 6)))
        .with_panel(_best().grid_pos(place(0, 10, 11, 11)))
        .with_panel(_changes().grid_pos(place(11, 10, 13, 11)))
        .with_panel(_trend().grid_pos(place(0, 21, 12, 9)))
        .with_panel(_verdicts().grid_pos(place(12, 21, 12, 9)))
        .with_panel(_alerts().grid_pos(place(0, 30, 24, 6)))
        .with_panel(
            intro(
                "**How fast is my storage, did anything change, is it current?** pvebench cycles a "
                "benchmark disk through configurations, measures each inside a guest, and keeps "
                "every run; the last good value of each case stays here until the next one. "
                "*Slower* and *faster* compare with the case's own baseline and are said only when "
                "a change is larger than its noise and has been seen again; in all change figures "
                "**plus is better**.",
                y=36,
            )
        )
    )


def _regressions() -> stat.Panel:
    expression = f"sum({recorded('node_storage:pvebench_change_state:count_regressed', **HERE)})"
    panel = number(
        "Slower cases",
        "Cases of which a figure is confirmed worse than its baseline and not accepted.",
        expression,
        missing="no baseline yet",
    ).mappings(values({"0": ("None", BETTER)}))
    return verdict(panel, steps(BETTER, (1, WORSE)), background=True)


def _compared() -> stat.Panel:
    name = "node_storage:pvebench_change_state:count_compared"
    return number(
        "Compared",
        "Cases with a figure that has a baseline to be compared with.",
        f"sum({recorded(name, **HERE)})",
        missing="no baseline yet",
    )


def _index() -> stat.Panel:
    name = "node_storage_metric:pvebench_performance_index:geomean"
    panel = number(
        "Against baseline",
        "Geometric mean over all cases of a storage; 100 % is the baseline, more is better. "
        "The lowest of the storages is shown.",
        f"min({recorded(name, metric='throughput', **HERE)})",
        unit="percentunit",
        decimals=1,
        missing="no baseline yet",
    )
    return verdict(panel, steps(WORSE, (0.95, SAME), (1.05, BETTER)))


def _newest() -> stat.Panel:
    return number(
        "Newest result",
        "When the last good run ended.",
        f"max({series(RUN_TIMESTAMP, **HERE)}) * 1000",
        unit="dateTimeFromNow",
        missing="never",
    )


def _stale() -> stat.Panel:
    condition = f"{recorded(OVERDUE, **HERE)} > 2.5"
    panel = number(
        "Stale",
        "Cases without a good run for two and a half of their intervals; the word STALE marks "
        "them elsewhere.",
        counted(condition, recorded(OVERDUE, **HERE)),
        missing="never run",
    )
    return verdict(panel, alarm_steps())


def _failing() -> stat.Panel:
    every = series(RUN_SUCCESS, **HERE)
    panel = number(
        "Failing",
        "Cases whose last attempt gave no good run. Operations says why.",
        counted(f"{every} == 0", every),
        missing="never run",
    )
    return verdict(panel, alarm_steps())


def _cycle() -> stat.Panel:
    return number(
        "Cycle",
        "Share of the present cycle that is done.",
        f"avg({series(CYCLE_PROGRESS, node='$node')})",
        unit="percentunit",
        decimals=0,
        missing="idle",
    )


def _software() -> stat.Panel:
    environment = series(ENVIRONMENT_INFO, node="$node")
    return names(
        "Software measured",
        "The environment of the newest results of each node.",
        f"max by (node, environment) ({environment})",
        "{{node}}: {{environment}}",
    )


def _best_of(metric: str, direction: str, rw: str, **more: str) -> str:
    chosen = IOPS if metric == "iops" else BANDWIDTH
    kept = of_workloads(series(chosen, direction=direction, **HERE), rw=rw, **more)
    return f"max by ({BY}) ({kept})"


def _storages() -> table.Panel:
    index = "node_storage_metric:pvebench_performance_index:geomean"
    slower = "node_storage:pvebench_change_state:count_regressed"
    sync = series(SYNC_LATENCY_PERCENTILE, percentile="99", **HERE)
    return rows(
        "Storages",
        "The best configuration of each storage: small random reads and writes, large sequential "
        "ones, the 99th percentile of a sync; throughput against the baseline; age of the newest.",
        ("node", "storage"),
        (
            Column(
                title="random read",
                expression=_best_of("iops", "read", "randread", **SMALL),
                unit="iops",
            ),
            Column(
                title="random write",
                expression=_best_of("iops", "write", "randwrite", **SMALL),
                unit="iops",
            ),
            Column(
                title="seq. read",
                expression=_best_of("bandwidth", "read", "read"),
                unit="Bps",
                decimals=1,
            ),
            Column(
                title="seq. write",
                expression=_best_of("bandwidth", "write", "write"),
                unit="Bps",
                decimals=1,
            ),
            Column(title="sync p99", expression=f"min by ({BY}) ({sync})", unit="s", decimals=2),
            Column(
                title="of baseline",
                unit="percentunit",
                decimals=1,
                expression=f"max by ({BY}) ({recorded(index, metric='throughput', **HERE)})",
            ),
            Column(title="slower", expression=f"max by ({BY}) ({recorded(slower, **HERE)})"),
            Column(
                title="age",
                expression=f"time() - max by ({BY}) ({series(RUN_TIMESTAMP, **HERE)})",
                unit="dtdurations",
                decimals=0,
            ),
        ),
        linked=False,
    ).override_by_name("storage", [prop("links", [_to_matrix()])])


def _to_matrix() -> dashboard.DashboardLink:
    variables = "&".join(f"var-{name}=${{__data.fields.{name}}}" for name in ("node", "storage"))
    url = f"/d/pvebench-matrix?${{__url_time_range}}&${{datasource:queryparam}}&{variables}"
    return dashboard.DashboardLink("Configuration matrix").url(url)


def _best() -> bargauge.Panel:
    return ranking(
        "Fastest configuration of each workload",
        "The best of all configurations, nodes and storages shown. Differences of a few percent "
        "are ties: see the matrix.",
        f"sort_desc(topk by (workload, direction) (1, {series(IOPS, **HERE)}))",
        unit="iops",
        legend="{{workload}} {{direction}}: {{scenario}}",
    )


def _changes() -> table.Panel:
    # A scenario begins with its storage.
    keys = "node, scenario, workload, metric"
    change, noise = series(CHANGE, **HERE), series(CHANGE_THRESHOLD, **HERE)
    # How often a change is larger than its noise decides what is worth looking at first.
    factor = f"abs({change}) / ({noise} > 0)"
    top = f"topk(10, max by ({keys}) ({factor}))"
    return rows(
        "Largest changes",
        "The ten figures that moved most, in times of their own noise. Plus is better.",
        ("scenario", "workload", "metric"),
        (
            Column(title="× noise", expression=top, decimals=1),
            Column(
                title="change",
                expression=f"max by ({keys}) ({change}) and on ({keys}) {top}",
                unit="percentunit",
                change=True,
            ),
            Column(
                title="verdict",
                words=True,
                expression=f"max by ({keys}) "
                f"({series(CHANGE_STATE, **HERE)}) and on ({keys}) {top}",
            ),
        ),
        sort="× noise",
        missing="no baseline yet",
    )


def _trend() -> timeseries.Panel:
    now = series(IOPS, **HERE)
    usual = f"avg_over_time({now}[$__range] @ end())"
    expression = f"exp(avg by ({BY}) (ln({now} / ({usual} > 0))))"
    return lines(
        "Throughput against the mean of the time range",
        "Geometric mean over the storage's cases of IOPS, each against its own mean over the range "
        "shown: a step of the line is a step of many cases.",
        [query(expression, legend="{{node}}/{{storage}}")],
        unit="percentunit",
        linked=False,
        right=False,
    )


def _verdicts() -> statetimeline.Panel:
    return timeline(
        "Worst verdict of each storage",
        "The worst figure of each storage over time.",
        f"min by ({BY}) ({series(CHANGE_STATE, **HERE)})",
        "{{node}}/{{storage}}",
    )


def _alerts() -> table.Panel:
    return rows(
        "Alerts that fire",
        "What Prometheus alerts on now; the watchdog always fires.",
        ("alertname", "severity", "node", "storage", "scenario", "workload"),
        (
            Column(
                title="firing",
                expression="max by (alertname, severity, node, storage, scenario, workload) "
                '(ALERTS{alertname=~"PVEBench.*",alertstate="firing"})',
            ),
        ),
        linked=False,
        missing="none: not even the watchdog, so no rules are loaded",
    ).cell_height(models.TableCellHeight.SM)
