"""Case detail: all data of one configuration and workload; the target of all case links."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from builder.charts import FEWER_POINTS, in_own_unit, lines, timeline
from builder.looks import NEUTRAL, UNSEEN, WORSE, alarm_steps, plain, prop
from builder.panels import OVERDUE, good_or_bad, intro, names, number, verdict
from builder.parts import (
    base,
    collapsed,
    custom_variable,
    instant,
    label_variable,
    node_variable,
    place,
    query,
)
from builder.promql import (
    CASE_KEYS,
    coded,
    factors,
    gains,
    in_own,
    recorded,
    series,
    with_descriptions,
)
from builder.tables import Column, facts, noise_column, rows
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.verdicts.summary import LEAST_JUDGED

CASE: Final = {"node": "$node", "scenario": "$scenario", "workload": "$workload"}
INTRO: Final = (
    "**All data of one case**: a disk configuration with a workload, its latest value and its "
    "history. The web UI has the raw output and logs of each run."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    attempts = m.RUN_ATTEMPT_TIMESTAMP
    scenarios = label_variable("scenario", "Configuration", among='node=~"$node"', metric=attempts)
    # The last one by default: the first in alphabetical order is `idle`, which has no IOPS.
    workloads = label_variable(
        "workload",
        "Workload",
        among='node=~"$node",scenario=~"$scenario"',
        metric=attempts,
        descending=True,
    )
    return (
        base(
            "Case detail",
            "pvebench-case",
            "One configuration and workload: value, verdict, history.",
            scenario="$scenario",
            workload="$workload",
        )
        .with_variable(node_variable(multi=False))
        .with_variable(scenarios)
        .with_variable(workloads)
        .with_variable(custom_variable("axis", "Axis", {"from zero": "0", "zoomed": "1"}))
        .with_panel(_name().grid_pos(place(0, 0, 24, 3)))
        .with_panel(_last().grid_pos(place(0, 3, 5, 4)))
        .with_panel(_baseline().grid_pos(place(0, 7, 5, 3)))
        .with_panel(_judged().grid_pos(place(5, 3, 14, 7)))
        .with_panel(_age().grid_pos(place(19, 3, 5, 4)))
        .with_panel(_success().grid_pos(place(19, 7, 5, 3)))
        .with_panel(_value().grid_pos(place(0, 10, 24, 10)))
        .with_panel(_percentiles().grid_pos(place(0, 20, 14, 9)))
        .with_panel(_verdicts().grid_pos(place(14, 20, 10, 9)))
        .with_row(collapsed("CPU, syncs, variation", 29, _cpu(), _syncs(), _within()))
        .with_row(collapsed("Definition and outcomes", 30, *_definition(), height=12))
        .with_row(dashboard.Row("About").grid_pos(place(0, 31, 24, 1)))
        .with_panel(intro(INTRO, y=32))
    )


def _name() -> stat.Panel:
    case = with_descriptions(
        f"max by (job, instance, {CASE_KEYS}) ({series(m.RUN_ATTEMPT_TIMESTAMP, **CASE)})"
    )
    return names(
        "Case",
        "Workload, configuration, storage and node.",
        case,
        "{{description}}  ·  {{configuration}}  ·  {{storage}} on {{node}}",
        missing="no run yet",
    )


def _value_own() -> str:
    return in_own(series(f.IOPS.metric, **CASE), series(f.BANDWIDTH.metric, **CASE))


def _baseline_own() -> str:
    level, size = (
        series(m.BASELINE_IOPS, **CASE),
        f"{series(f.BANDWIDTH.metric, **CASE)} / ({series(f.IOPS.metric, **CASE)} > 0)",
    )
    return in_own(level, f"{level} * ({size})")


def _last() -> stat.Panel:
    value = instant(_value_own(), legend="{{direction}}")
    text = "Throughput of the latest successful run."
    return in_own_unit(number("Latest value", text, "", missing="no IOPS yet").targets([value]))


def _baseline() -> stat.Panel:
    level = instant(_baseline_own(), legend="{{direction}}")
    panel = number("Baseline", "Reference level.", "", missing="no baseline yet")
    return in_own_unit(panel.targets([level]))


def _judged() -> table.Panel:
    by = "metric, direction"
    return rows(
        "Changes by metric",
        "Change from baseline per metric, ×1.67 for latency and CPU. A change within noise is not "
        "significant; *slower* and *faster* are confirmed.",
        ("metric", "direction"),
        (
            Column("verdict", f"max by ({by}) ({series(m.CHANGE_STATE, **CASE)})", state=True),
            Column(
                "change",
                f"max by ({by}) {coded(gains(**CASE), factors(**CASE))}",
                change=True,
                coded=True,
            ),
            noise_column(f"max by ({by}) ({series(m.CHANGE_THRESHOLD, **CASE)})"),
        ),
        linked=False,
        missing=f"no verdict before run {LEAST_JUDGED}",
    ).cell_height(common.TableCellHeight.SM)


def _age() -> stat.Panel:
    panel = number(
        "Age",
        "Age of the latest successful run, in intervals of its schedule. Stale from 2.5 up.",
        f"max({recorded(OVERDUE, **CASE)})",
        unit="suffix: intervals",
        decimals=1,
        missing="none yet",
    )
    return verdict(panel, alarm_steps(2.5))


def _success() -> stat.Panel:
    success, text = f"min({series(m.RUN_SUCCESS, **CASE)})", "Result of the latest run."
    return good_or_bad("Latest run", text, success, good="ok", bad="FAILED", missing="none yet")


def _value() -> timeseries.Panel:
    value, baseline = _value_own(), _baseline_own()
    noise = series(m.CHANGE_THRESHOLD, **CASE, metric="throughput")
    chart = (
        lines(
            "Throughput, baseline and noise",
            "A step is a new run; a dot marks its end, colored by outcome. The dashed line is the "
            "baseline, the band its noise. *Axis* at the top selects where the axis begins.",
            [
                query(value, legend="{{direction}}", ref="A"),
                query(_ended(value), legend="run: {{outcome}}", ref="B"),
                query(baseline, legend="baseline {{direction}}", ref="C"),
                query(_band(baseline, noise, "+"), legend="upper {{direction}}", ref="D"),
                query(_band(baseline, noise, "-"), legend="lower {{direction}}", ref="E"),
                query(
                    f"(vector(0) == $axis) and on () {series(f.IOPS.metric, **CASE)}",
                    legend="zero",
                    ref="F",
                ),
            ],
            unit="none",
            linked=False,
            right=False,
            points=FEWER_POINTS,
        )
        .override_by_query(
            "B",
            [
                prop("custom.drawStyle", "points"),
                prop("custom.showPoints", "always"),
                prop("custom.pointSize", 6),
                prop("color", plain(WORSE)),
            ],
        )
        .override_by_name("run: ok", [prop("color", plain("blue"))])
        .override_by_name("zero", UNSEEN)
        .override_by_query(
            "C",
            [
                prop("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
                prop("color", plain(NEUTRAL)),
            ],
        )
        .override_by_regexp(
            "^(upper|lower).*",
            [
                prop("custom.lineWidth", 0),
                prop("custom.showPoints", "never"),
                prop("color", plain("#8E8E8E")),
                prop("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}),
            ],
        )
        .override_by_name("upper read", _filled_to("lower read"))
        .override_by_name("upper write", _filled_to("lower write"))
    )
    return in_own_unit(chart)


def _ended(value: str) -> str:
    """Return the value at each step in which a run ended, per outcome."""
    runs = f"sum by (outcome) ({series(m.RUNS, **CASE)})"
    before = f"sum by (outcome) ({series(m.RUNS, **CASE)} offset $__interval)"
    return f"(({runs} - {before}) > bool 0 == 1) * on () group_left () max({value})"


def _filled_to(name: str) -> list[models.DynamicConfigValue]:
    return [prop("custom.fillBelowTo", name), prop("custom.fillOpacity", 10)]


def _band(baseline: str, noise: str, sign: str) -> str:
    return f"{baseline} * ignoring (metric) (1 {sign} {noise})"


def _percentiles() -> timeseries.Panel:
    chosen = "&".join(f"var-{name}=${{{name}}}" for name in ("node", "workload", "scenario"))
    url = f"/d/pvebench-latency?${{__url_time_range}}&${{datasource:queryparam}}&{chosen}"
    panel = lines(
        "Completion latency percentiles",
        "Logarithmic. Lower is better. p99.99 needs runs of a million operations to be meaningful.",
        {
            "p{{percentile}} {{direction}}": series(f.CLAT_PERCENTILE.metric, **CASE),
            "max {{direction}}": series(f.CLAT_MAX.metric, **CASE),
        },
        unit="s",
        log=True,
        linked=False,
    )
    return panel.links([dashboard.DashboardLink("Latency, with its distribution").url(url)])


def _verdicts() -> statetimeline.Panel:
    return timeline(
        "Verdict history",
        "Blue: faster; gray: unchanged; orange: slower.",
        series(m.CHANGE_STATE, **CASE),
        "{{metric}} {{direction}}",
    )


def _within() -> timeseries.Panel:
    return lines(
        "Variation within a run",
        "Standard deviation / mean of the intervals of one run. Lower is steadier.",
        {"{{direction}}": series(f.IOPS_VARIATION.metric, **CASE)},
        unit="percentunit",
        linked=False,
        right=False,
    )


def _cpu() -> timeseries.Panel:
    return lines(
        "Host CPU during runs",
        "In cores, measured outside the guest.",
        # Legend at the right: below so small a chart, Grafana shows two of its five rows.
        {"{{component}}": series(f.HOST_CPU.metric, **CASE)},
        unit="none",
        linked=False,
    )


def _syncs() -> timeseries.Panel:
    return lines(
        "Sync latency",
        "fsync and fdatasync latency, for workloads that sync.",
        {"p{{percentile}}": series(f.SYNC_PERCENTILE.metric, **CASE)},
        unit="s",
        log=True,
        linked=False,
        right=False,
        missing="No data: the workload does not sync or has not run yet.",
    )


def _definition() -> tuple[table.Panel, ...]:
    info = series(m.WORKLOAD_INFO, workload="$workload")
    labels = "description, workload, tool, title, rw, block_size_bytes, io_depth, jobs"
    return (
        facts(
            "Configuration",
            "All options of the disk and its VM.",
            series(m.SCENARIO_INFO, node="$node", scenario="$scenario"),
        ),
        facts("Workload", "Definition of the workload.", f"max by ({labels}) ({info})"),
        rows(
            "Runs by outcome",
            "Since the first run.",
            ("outcome",),
            (Column("runs", f"sum by (outcome) ({series(m.RUNS, **CASE)})"),),
            sort="runs",
            linked=False,
        ),
    )
