"""Overview: what changed, how fast is my storage, is it current?"""

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
from grafana_foundation_sdk.models import common as models

from builder.bars import ranking
from builder.looks import BETTER, SAME, WORSE, alarm_steps, prop, steps, values
from builder.panels import (
    FEW_POINTS,
    FIRST_VERDICT,
    headline,
    intro,
    lines,
    names,
    number,
    open_changes,
    timeline,
    verdict,
)
from builder.parts import (
    base,
    changes,
    environment_changes,
    instant,
    node_variable,
    place,
    query,
    storage_variable,
)
from builder.promql import SAME_CASE, counted, in_words, of_workloads, recorded, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    BANDWIDTH,
    CHANGE_STATE,
    CYCLE_PROGRESS,
    ENVIRONMENT_INFO,
    HOLD,
    IOPS,
    RUN_SUCCESS,
    RUN_TIMESTAMP,
    SCENARIO_RANK_INFO,
    SYNC_LATENCY_PERCENTILE,
)

HERE: Final = {"node": "$node", "storage": "$storage"}
BY: Final = "node, storage"
SMALL: Final = {"block_size_bytes": "4096"}
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base("Overview", "pvebench-overview", "What changed, how fast is my storage?", since="7d")
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable())
        .with_variable(storage_variable())
        .with_panel(_sentence().grid_pos(place(0, 0, 24, 4)))
        .with_panel(open_changes("$node").grid_pos(place(0, 4, 24, 6)))
        .with_panel(_storages().grid_pos(place(0, 10, 24, 7)))
        .with_panel(_measured().grid_pos(place(0, 17, 4, 4)))
        .with_panel(_newest().grid_pos(place(4, 17, 4, 4)))
        .with_panel(_stale().grid_pos(place(8, 17, 3, 4)))
        .with_panel(_failing().grid_pos(place(11, 17, 3, 4)))
        .with_panel(_cycle().grid_pos(place(14, 17, 4, 4)))
        .with_panel(_software().grid_pos(place(18, 17, 6, 4)))
        .with_panel(_best().grid_pos(place(0, 21, 24, 13)))
        .with_panel(_trend().grid_pos(place(0, 34, 12, 9)))
        .with_panel(_verdicts().grid_pos(place(12, 34, 12, 9)))
        .with_panel(_alerts().grid_pos(place(0, 43, 24, 6)))
        .with_panel(
            intro(
                "**What changed, how fast is my storage, is it current?** pvebench cycles a "
                "benchmark disk through configurations, measures each inside a guest, and keeps "
                "every run; the last good value of each case stays here until the next one. A "
                "*change* is one thing that happened, whatever the number of cases that show it: "
                "it is told when it is larger than noise and has been seen again. In all changes "
                "**plus is better**.",
                y=49,
            )
        )
    )


def _sentence() -> stat.Panel:
    text = common.VizTextDisplayOptions().value_size(24)
    return headline("In one sentence").text(text)


def _measured() -> stat.Panel:
    compared = "node_storage:pvebench_change_state:count_compared"
    slower = "node_storage:pvebench_change_state:count_regressed"
    measured = f"count({series(RUN_TIMESTAMP, **HERE)})"
    judged = f"sum({recorded(compared, **HERE)}) or 0 * {measured}"
    return (
        number("Cases", f"Measured at least once; with a verdict ({FIRST_VERDICT}); slower.", "")
        .targets(
            [
                instant(measured, legend="measured"),
                instant(judged, legend="judged", ref="B"),
                instant(f"sum({recorded(slower, **HERE)})", legend="slower", ref="C"),
            ]
        )
        .override_by_query(
            "C",
            [prop("thresholds", steps(SAME, (1, WORSE))), prop("color", {"mode": "thresholds"})],
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .no_value("the first comes with the first run")
    )


def _newest() -> stat.Panel:
    return number(
        "Newest result",
        "When the last good run ended.",
        f"max({series(RUN_TIMESTAMP, **HERE)}) * 1000",
        unit="dateTimeFromNow",
        missing="none yet",
    )


def _stale() -> stat.Panel:
    condition = f"{recorded(OVERDUE, **HERE)} > 2.5"
    panel = number(
        "Stale",
        "Cases without a good run for two and a half of their intervals.",
        counted(condition, recorded(OVERDUE, **HERE)),
        missing="none yet",
    )
    return verdict(panel, alarm_steps())


def _failing() -> stat.Panel:
    every = series(RUN_SUCCESS, **HERE)
    panel = number(
        "Failing",
        "Cases whose last attempt gave no good run. Operations says why.",
        counted(f"{every} == 0", every),
        missing="none yet",
    )
    return verdict(panel, alarm_steps())


def _cycle() -> stat.Panel:
    progress = f"avg({series(CYCLE_PROGRESS, node='$node')})"
    paused = f"count by (node) ({series(HOLD, node='$node', reason='paused')})"
    return (
        number(
            "Cycle",
            "Share of the present cycle that is done; who has paused it.",
            "",
            unit="percentunit",
            decimals=0,
            missing="between two cycles",
        )
        .targets(
            [
                instant(progress, legend="done"),
                instant(paused, legend="{{node}} is PAUSED", ref="B"),
            ]
        )
        .override_by_query(
            "B", [prop("unit", "none"), prop("mappings", values({"1": (" ", WORSE)}))]
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
    )


def _software() -> stat.Panel:
    environment = series(ENVIRONMENT_INFO, node="$node")
    return names(
        "Software measured",
        "The environment of the newest results of each node.",
        f"max by (node, environment) ({environment})",
        "{{node}}: {{environment}}",
        missing="known with the first run",
    )


def _best_of(metric: str, direction: str, rw: str, **more: str) -> str:
    chosen = IOPS if metric == "iops" else BANDWIDTH
    fair = f"{series(chosen, direction=direction, **HERE)} and on ({SAME_CASE}) {_fair()}"
    return f"max by ({BY}) ({of_workloads(f'({fair})', rw=rw, **more)})"


def _fair() -> str:
    """Return the settings that keep data safe and read from the disk."""
    return series(SCENARIO_RANK_INFO, excluded="", **HERE)


def _storages() -> table.Panel:
    index = "node_storage_metric:pvebench_performance_index:geomean"
    slower = "node_storage:pvebench_change_state:count_regressed"
    sync = (
        f"{series(SYNC_LATENCY_PERCENTILE, percentile='99', **HERE)} and on ({SAME_CASE}) {_fair()}"
    )
    against = f"max by ({BY}) ({recorded(index, metric='throughput', **HERE)}) - 1"
    return (
        rows(
            "Storages",
            "The best setting of each that keeps data safe: small random reads and writes, large "
            "sequential ones, the 99th percentile of a sync; throughput against the baseline; age. "
            "The name leads to its matrix, the last column to a comparison.",
            ("storage", "node"),
            (
                Column(
                    title="4k random read",
                    expression=_best_of("iops", "read", "randread", **SMALL),
                    unit="iops",
                ),
                Column(
                    title="4k random write",
                    expression=_best_of("iops", "write", "randwrite", **SMALL),
                    unit="iops",
                ),
                Column(
                    title="sequential read",
                    expression=_best_of("bandwidth", "read", "read"),
                    unit="Bps",
                    decimals=1,
                ),
                Column(
                    title="sequential write",
                    expression=_best_of("bandwidth", "write", "write"),
                    unit="Bps",
                    decimals=1,
                ),
                Column(
                    title="sync p99", expression=f"min by ({BY}) ({sync})", unit="s", decimals=2
                ),
                Column(title="since baseline", expression=against, change=True),
                Column(title="slower", expression=f"max by ({BY}) ({recorded(slower, **HERE)})"),
                Column(
                    title="age",
                    expression=f"time() - max by ({BY}) ({series(RUN_TIMESTAMP, **HERE)})",
                    unit="dtdurations",
                    decimals=0,
                ),
                Column(
                    title="another",
                    expression=f"0 * max by ({BY}) ({series(RUN_TIMESTAMP, **HERE)})",
                ),
            ),
            linked=False,
            missing="nothing measured yet: the first row comes with the first run",
        )
        .override_by_name("storage", [prop("links", [_to_matrix()])])
        .override_by_name(
            "another",
            [
                prop("links", [_to_compare()]),
                prop("mappings", values({"0": ("compare", BETTER)})),
                prop("displayName", "with another"),
                prop("custom.displayMode", "color-text"),
                prop("custom.width", 130),
            ],
        )
    )


def _to_matrix() -> dashboard.DashboardLink:
    variables = "&".join(f"var-{name}=${{__data.fields.{name}}}" for name in ("node", "storage"))
    url = f"/d/pvebench-matrix?${{datasource:queryparam}}&{variables}"
    return dashboard.DashboardLink("Configuration matrix").url(url)


def _to_compare() -> dashboard.DashboardLink:
    variables = "&".join(
        f"var-{name}_{side}=${{__data.fields.{name}}}"
        for side in "ab"
        for name in ("node", "storage")
    )
    url = f"/d/pvebench-compare?${{datasource:queryparam}}&{variables}"
    return dashboard.DashboardLink("Compare with another node, storage or setting").url(url)


def _best() -> bargauge.Panel:
    best = (
        f"topk by (workload, direction) (1, {series(IOPS, **HERE)} and on ({SAME_CASE}) {_fair()})"
    )
    return ranking(
        "Fastest setting of each workload",
        "The best that keeps data safe, of all nodes and storages shown. Differences of a few per "
        "cent are ties: see the matrix.",
        f"sort_desc({in_words(f'({best})')})",
        unit="iops",
        legend="{{description}}: {{configuration}} ({{storage}}, {{node}})",
    )


def _trend() -> timeseries.Panel:
    now = series(IOPS, **HERE)
    usual = f"avg_over_time({now}[$__range] @ end())"
    expression = f"exp(avg by ({BY}) (ln({now} / ({usual} > 0))))"
    return lines(
        "Throughput against the mean of the time range",
        "Geometric mean over the storage's cases of IOPS, each against its own mean over the range "
        "shown: a step of the line is a step of many cases.",
        [query(expression, legend="{{storage}}, {{node}}")],
        unit="percentunit",
        linked=False,
        right=False,
        points=FEW_POINTS,
    )


def _verdicts() -> statetimeline.Panel:
    return timeline(
        "Worst verdict of each storage",
        "The worst figure of each storage over time.",
        f"min by ({BY}) ({series(CHANGE_STATE, **HERE)})",
        "{{storage}}, {{node}}",
        points=FEW_POINTS,
    )


def _alerts() -> table.Panel:
    return rows(
        "Alerts that fire",
        "What Prometheus alerts on now; the watchdog always fires.",
        ("alertname", "severity", "node", "storage"),
        (
            Column(
                title="firing",
                expression="count by (alertname, severity, node, storage) "
                '(ALERTS{alertname=~"PVEBench.*",alertstate="firing"})',
            ),
        ),
        linked=False,
        missing="none: not even the watchdog, so no rules are loaded",
    ).cell_height(models.TableCellHeight.SM)
