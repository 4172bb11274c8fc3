"""Case detail: everything about one scenario and workload; the target of all links."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import (
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from builder.looks import SAME, WORSE, alarm_steps, prop, steps, values
from builder.panels import intro, lines, names, number, timeline, verdict
from builder.parts import (
    base,
    changes,
    custom_variable,
    environment_changes,
    label_variable,
    node_variable,
    place,
    query,
)
from builder.promql import in_words, recorded, series
from builder.tables import Column, facts, rows
from pvebench.metrics.catalog import (
    BANDWIDTH,
    BASELINE_IOPS,
    CHANGE,
    CHANGE_STATE,
    CHANGE_THRESHOLD,
    HOST_CPU,
    IOPS,
    LATENCY_MAX,
    LATENCY_PERCENTILE,
    RUN_ATTEMPT_TIMESTAMP,
    RUN_DURATION,
    RUN_SUCCESS,
    RUNS,
    SCENARIO_INFO,
    SYNC_LATENCY_PERCENTILE,
    VARIATION,
    WORKLOAD_INFO,
)
from pvebench.verdicts.summary import LEAST_JUDGED

CASE: Final = {"node": "$node", "scenario": "$scenario", "workload": "$workload"}
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"
KEYS: Final = "node, storage, scenario, workload"
INTRO: Final = (
    "**Everything about one case**: the disk's configuration (scenario), what ran against it "
    "(workload), its last value and its past. Raw output and logs of each run are on the "
    "exporter's page."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    tried = RUN_ATTEMPT_TIMESTAMP
    scenarios = label_variable("scenario", "Scenario", among='node=~"$node"', metric=tried)
    # Not `idle` by default, which is first in the alphabet and has no IOPS.
    workloads = label_variable(
        "workload",
        "Workload",
        among='node=~"$node",scenario=~"$scenario"',
        metric=tried,
        descending=True,
    )
    return (
        base("Case detail", "pvebench-case", "One scenario and workload: value, verdict, past.")
        .annotation(environment_changes())
        .annotation(changes())
        .with_variable(node_variable(multi=False))
        .with_variable(scenarios)
        .with_variable(workloads)
        .with_variable(custom_variable("axis", "Axis", {"from zero": "0", "close up": "1"}))
        .with_panel(_name().grid_pos(place(0, 0, 24, 3)))
        .with_panel(_last().grid_pos(place(0, 3, 4, 7)))
        .with_panel(_baseline().grid_pos(place(4, 3, 4, 7)))
        .with_panel(_judged().grid_pos(place(8, 3, 10, 7)))
        .with_panel(_age().grid_pos(place(18, 3, 3, 7)))
        .with_panel(_success().grid_pos(place(21, 3, 3, 7)))
        .with_panel(_value().grid_pos(place(0, 10, 24, 10)))
        .with_panel(_percentiles().grid_pos(place(0, 20, 12, 9)))
        .with_panel(_bandwidth().grid_pos(place(12, 20, 12, 9)))
        .with_panel(_verdicts().grid_pos(place(0, 29, 12, 6)))
        .with_panel(_within().grid_pos(place(12, 29, 12, 6)))
        .with_panel(_cpu().grid_pos(place(0, 35, 8, 8)))
        .with_panel(_syncs().grid_pos(place(8, 35, 8, 8)))
        .with_panel(_duration().grid_pos(place(16, 35, 8, 8)))
        .with_panel(_scenario().grid_pos(place(0, 43, 8, 12)))
        .with_panel(_workload().grid_pos(place(8, 43, 8, 12)))
        .with_panel(_outcomes().grid_pos(place(16, 43, 8, 12)))
        .with_panel(intro(INTRO, y=55))
    )


def _name() -> stat.Panel:
    tried = in_words(f"max by (job, instance, {KEYS}) ({series(RUN_ATTEMPT_TIMESTAMP, **CASE)})")
    return names(
        "Case",
        "What is run, on which disk.",
        tried,
        "{{description}}  ·  {{configuration}}  ·  {{storage}} on {{node}}",
        missing="never run: the first run is due within an interval of the schedule",
    )


def _last() -> stat.Panel:
    return number(
        "Last value",
        "IOPS of the last good run.",
        series(IOPS, **CASE),
        unit="iops",
        legend="{{direction}}",
        missing="no IOPS yet",
    )


def _baseline() -> stat.Panel:
    return number(
        "Baseline",
        "What it is compared with.",
        series(BASELINE_IOPS, **CASE),
        unit="iops",
        legend="{{direction}}",
        missing="no baseline yet",
    )


def _judged() -> table.Panel:
    by = "metric, direction"
    return rows(
        "Change, noise, verdict",
        "Of each figure against its baseline; plus is better. A change within the noise is none; "
        "only confirmed changes are called slower or faster.",
        ("metric", "direction"),
        (
            Column(
                title="verdict",
                expression=f"max by ({by}) ({series(CHANGE_STATE, **CASE)})",
                words=True,
            ),
            Column(
                title="change", expression=f"max by ({by}) ({series(CHANGE, **CASE)})", change=True
            ),
            Column(
                title="noise ±",
                expression=f"max by ({by}) ({series(CHANGE_THRESHOLD, **CASE)})",
                unit="percentunit",
                decimals=1,
            ),
        ),
        linked=False,
        missing=f"not before run {LEAST_JUDGED}",
    ).cell_height(common.TableCellHeight.SM)


def _age() -> stat.Panel:
    panel = number(
        "Age",
        "Age of the last good run in intervals of its schedule; from 2.5 on it is stale.",
        f"max({recorded(OVERDUE, **CASE)})",
        unit="suffix: intervals",
        decimals=1,
        missing="never run well",
    )
    return verdict(panel, alarm_steps(2.5))


def _success() -> stat.Panel:
    panel = number(
        "Last attempt",
        "Whether it gave a good run.",
        f"min({series(RUN_SUCCESS, **CASE)})",
        missing="never tried",
    )
    return verdict(
        panel.mappings(
            values({"0": ("FAILED", WORSE), "1": ("good", SAME)}, nothing=("never tried", SAME))
        ),
        steps(WORSE, (1, SAME)),
    )


def _value() -> timeseries.Panel:
    value, baseline = series(IOPS, **CASE), series(BASELINE_IOPS, **CASE)
    noise = series(CHANGE_THRESHOLD, **CASE, metric="throughput")
    return (
        lines(
            "IOPS, baseline and noise",
            "A step is a new run, a dot the moment it ended, by its outcome; the dashed line is "
            "the baseline, the band its noise. The axis begins at zero unless chosen otherwise.",
            [
                query(value, legend="{{direction}}", ref="A"),
                query(_ended(value), legend="run: {{outcome}}", ref="B"),
                query(baseline, legend="baseline {{direction}}", ref="C"),
                query(_band(baseline, noise, "+"), legend="upper {{direction}}", ref="D"),
                query(_band(baseline, noise, "-"), legend="lower {{direction}}", ref="E"),
                _zero(value, ref="F"),
            ],
            unit="iops",
            linked=False,
            right=False,
        )
        .override_by_query(
            "B",
            [
                prop("custom.drawStyle", "points"),
                prop("custom.showPoints", "always"),
                prop("custom.pointSize", 6),
                prop("color", {"mode": "fixed", "fixedColor": WORSE}),
            ],
        )
        .override_by_name("run: ok", [prop("color", {"mode": "fixed", "fixedColor": "blue"})])
        .override_by_name("zero", _UNSEEN)
        .override_by_query(
            "C",
            [
                prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
                prop("color", {"mode": "fixed", "fixedColor": SAME}),
            ],
        )
        .override_by_regexp(
            "^(upper|lower).*",
            [
                prop("custom.lineWidth", 0),
                prop("color", {"mode": "fixed", "fixedColor": "#8E8E8E"}),
                prop("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}),
            ],
        )
        .override_by_name("upper read", _filled_to("lower read"))
        .override_by_name("upper write", _filled_to("lower write"))
    )


def _zero(value: str, *, ref: str) -> prometheus.Dataquery:
    """Return what keeps zero on the axis while the switch says so, and there is a value."""
    return query(f"(vector(0) == $axis) and on () {value}", legend="zero", ref=ref)


_UNSEEN: Final = [
    prop("custom.lineWidth", 0),
    prop("custom.hideFrom", {"legend": True, "tooltip": True, "viz": False}),
]


def _ended(value: str) -> str:
    """Return the value wherever a run ended since the step before, for each outcome that it had."""
    counted = f"sum by (outcome) ({series(RUNS, **CASE)})"
    before = f"sum by (outcome) ({series(RUNS, **CASE)} offset $__interval)"
    return f"(({counted} - {before}) > bool 0 == 1) * on () group_left () max({value})"


def _filled_to(name: str) -> list[models.DynamicConfigValue]:
    return [prop("custom.fillBelowTo", name), prop("custom.fillOpacity", 10)]


def _band(baseline: str, noise: str, sign: str) -> str:
    return f"{baseline} * ignoring (metric) (1 {sign} {noise})"


def _percentiles() -> timeseries.Panel:
    return lines(
        "Completion latency percentiles",
        "Logarithmic. Lower is better. 99.99 needs runs of a million operations to mean much.",
        [
            query(series(LATENCY_PERCENTILE, **CASE), legend="p{{percentile}} {{direction}}"),
            query(series(LATENCY_MAX, **CASE), legend="longest {{direction}}", ref="B"),
        ],
        unit="s",
        log=True,
        linked=False,
    )


def _bandwidth() -> timeseries.Panel:
    return lines(
        "Bandwidth",
        "Of the last good run; SI units, as vendors count. The axis is that of the IOPS.",
        [
            query(series(BANDWIDTH, **CASE), legend="{{direction}}"),
            _zero(series(BANDWIDTH, **CASE), ref="B"),
        ],
        unit="Bps",
        linked=False,
        right=False,
    ).override_by_name("zero", _UNSEEN)


def _verdicts() -> statetimeline.Panel:
    return timeline(
        "Verdict over time",
        "Blue faster, grey same, orange slower.",
        series(CHANGE_STATE, **CASE),
        "{{metric}} {{direction}}",
    )


def _within() -> timeseries.Panel:
    return lines(
        "Variation within a run",
        "Standard deviation over mean of the intervals of one run: how steady the disk was.",
        [query(series(VARIATION, **CASE), legend="{{direction}}")],
        unit="percentunit",
        linked=False,
        right=False,
    )


def _cpu() -> timeseries.Panel:
    return lines(
        "Host CPU while measuring",
        "In cores, measured outside the guest.",
        # Five rows: below so small a chart Grafana shows two of them.
        [query(series(HOST_CPU, **CASE), legend="{{component}}")],
        unit="none",
        linked=False,
    )


def _syncs() -> timeseries.Panel:
    return lines(
        "Sync latency",
        "fsync and fdatasync, for workloads that sync.",
        [query(series(SYNC_LATENCY_PERCENTILE, **CASE), legend="p{{percentile}}")],
        unit="s",
        log=True,
        linked=False,
        right=False,
        missing="This workload does not sync, or has not run yet.",
    )


def _duration() -> timeseries.Panel:
    return lines(
        "Duration of a run",
        "Switching, settling and measuring of the last attempt.",
        [query(series(RUN_DURATION, **CASE), legend="duration")],
        unit="s",
        linked=False,
        right=False,
        zero=True,
    )


def _scenario() -> table.Panel:
    return facts(
        "Scenario",
        "Every option of the disk and the VM around it.",
        series(SCENARIO_INFO, node="$node", scenario="$scenario"),
    )


def _workload() -> table.Panel:
    return facts(
        "Workload",
        "What ran against the disk.",
        f"max by (description, workload, tool, title, rw, block_size_bytes, io_depth, jobs) "
        f"({series(WORKLOAD_INFO, workload='$workload')})",
    )


def _outcomes() -> table.Panel:
    return rows(
        "Runs so far",
        "By outcome, since the first run.",
        ("outcome",),
        (Column(title="runs", expression=f"sum by (outcome) ({series(RUNS, **CASE)})"),),
        sort="runs",
        linked=False,
    )
