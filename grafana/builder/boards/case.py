"""Case detail: all data of one configuration and workload; the target of all case links."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, heatmap, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from builder import parts
from builder import promql as q
from builder import stat_panels as p
from builder.charts import FEW_POINTS, FEWER_POINTS, PADDING, in_own_unit, lines, timeline
from builder.looks import NEUTRAL, UNSEEN, WORSE, plain, prop, steps
from builder.results import outcomes, results
from builder.tables import Column, facts, noise_column, rows
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric
from pvebench.verdicts.fastest_text import LEAST_JUDGED

CASE: Final = {"node": "$node", "scenario": "$scenario", "workload": "$workload"}
OTHERS: Final = {"node": "$node", "workload": "$workload"}
LEGEND: Final = "{{configuration}} ({{storage}})"
NO_HISTOGRAM: Final = f"{PADDING}no histogram yet"
INTRO: Final = (
    "**All data of one case**: a disk configuration with a workload. Latency is completion latency "
    "in the guest; percentiles are per run and never averaged. CPU is that of "
    "the host: 10 µs per I/O at 50,000 IOPS keep half a core busy. The web UI has the raw output."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    runs, node = m.RUN_ATTEMPT_TIMESTAMP, 'node=~"$node"'
    among = f'{node},scenario=~"$scenario"'
    board = parts.base(
        "Case detail",
        "pvebench-case",
        "One configuration and workload: value, verdict, history, latency, CPU.",
        parts.node_variable(multi=False),
        parts.label_variable("scenario", "Configuration", among=node, metric=runs),
        # The last one by default: the first in alphabetical order is `idle`, which has no IOPS.
        parts.label_variable("workload", "Workload", among=among, descending=True, metric=runs),
        parts.custom_variable("axis", "Axis", {"from zero": "0", "zoomed": "1"}),
        scenario="$scenario",
        workload="$workload",
    )
    text = "Blue: faster; gray: unchanged; orange: slower."
    states = q.series(m.CHANGE_STATE, **CASE)
    history = timeline("Verdict history", text, states, "{{metric}} {{direction}}")
    return p.stacked(
        board,
        p.status(),
        (3, _name()),
        (4, *_strip()),
        (10, _value()),
        (7, (14, _judged()), (10, history)),
        p.Section("Latency", ((9, (14, _percentiles()), (10, _distribution())),), collapsed=False),
        p.section("Syncs, variation within a run, tail", (9, *_tails())),
        p.section("CPU cost", *_cpu()),
        p.section("All configurations with this workload", (11, _others())),
        p.section("Definition and outcomes", (12, *_definition())),
        p.intro(INTRO),
    )


def _name() -> p.Panel:
    runs = q.series(m.RUN_ATTEMPT_TIMESTAMP, **CASE)
    return p.names(
        "Case",
        "Workload, configuration, storage and node.",
        q.with_descriptions(f"max by (job, instance, {q.CASE_KEYS}) ({runs})"),
        "{{description}}  ·  {{configuration}}  ·  {{storage}} on {{node}}",
        missing="no run yet",
    )


def _value_own() -> str:
    return q.in_own(q.series(f.IOPS.metric, **CASE), q.series(f.BANDWIDTH.metric, **CASE))


def _baseline_own() -> str:
    level = q.series(m.BASELINE_IOPS, **CASE)
    size = f"{q.series(f.BANDWIDTH.metric, **CASE)} / ({q.series(f.IOPS.metric, **CASE)} > 0)"
    return q.in_own(level, f"{level} * ({size})")


def _strip() -> tuple[p.Panel, ...]:
    """Return value, baseline, age and outcome of the latest run."""
    text = "Throughput of the latest successful run."
    age = "Age of the latest successful run, in intervals of its schedule. Stale from 2.5 up."
    way = "{{direction}}"
    value = p.number("Latest value", text, _value_own(), missing="no IOPS yet", legend=way)
    level = p.number(
        "Baseline", "Reference level.", _baseline_own(), missing="no baseline yet", legend=way
    )
    intervals = p.number(
        "Age", age, f"max({q.recorded(p.OVERDUE, **CASE)})", unit="suffix: intervals", decimals=1
    )
    success = f"min({q.series(m.RUN_SUCCESS, **CASE)})"
    return (
        in_own_unit(value),
        in_own_unit(level),
        p.verdict(intervals, steps(NEUTRAL, (2.5, WORSE))),
        p.good_or_bad(
            "Latest run", "Result of the latest run.", success, ("ok", "FAILED", "none yet")
        ),
    )


def _judged() -> p.Panel:
    by = "metric, direction"
    change = f"max by ({by}) {q.coded(q.gains(**CASE), q.factors(**CASE))}"
    return rows(
        "Changes by metric",
        "Change from baseline per metric, ×1.67 for latency and CPU. A change within noise is not "
        "significant; *slower* and *faster* are confirmed.",
        ("metric", "direction"),
        (
            Column("verdict", f"max by ({by}) ({q.series(m.CHANGE_STATE, **CASE)})", state=True),
            Column("change", change, change=True, coded=True),
            noise_column(f"max by ({by}) ({q.series(m.CHANGE_THRESHOLD, **CASE)})"),
        ),
        missing=f"no verdict before run {LEAST_JUDGED}",
    ).cell_height(common_models.TableCellHeight.SM)


def _value() -> p.Panel:
    value, baseline = _value_own(), _baseline_own()
    noise = q.series(m.CHANGE_THRESHOLD, **CASE, metric="throughput")

    def edge(sign: str) -> str:
        return f"{baseline} * ignoring (metric) (1 {sign} {noise})"

    def custom(**values: object) -> list[DynamicConfigValue]:
        return [prop(f"custom.{name}", value) for name, value in values.items()]

    points = custom(drawStyle="points", showPoints="always", pointSize=6)
    dashed = custom(lineStyle={"fill": "dash", "dash": [8, 6]})
    unlisted = {"legend": True, "tooltip": False, "viz": False}
    edges = custom(lineWidth=0, showPoints="never", hideFrom=unlisted)
    panel = (
        lines(
            "Throughput, baseline and noise",
            "A step is a new run; a dot marks its end, colored by outcome. The dashed line is the "
            "baseline, the band its noise. *Axis* at the top selects where the axis begins.",
            {
                "{{direction}}": value,
                "run: {{outcome}}": _ended(value),
                "baseline {{direction}}": baseline,
                "upper {{direction}}": edge("+"),
                "lower {{direction}}": edge("-"),
                "zero": f"(vector(0) == $axis) and on () {q.series(f.IOPS.metric, **CASE)}",
            },
            unit="none",
            points=FEWER_POINTS,
        )
        .override_by_query("B", [*points, prop("color", plain(WORSE))])
        .override_by_name("run: ok", [prop("color", plain("blue"))])
        .override_by_name("zero", UNSEEN)
        .override_by_query("C", [*dashed, prop("color", plain(NEUTRAL))])
        .override_by_regexp("^(upper|lower).*", [*edges, prop("color", plain("#8E8E8E"))])
    )
    for way in ("read", "write"):
        band = custom(fillBelowTo=f"lower {way}", fillOpacity=10)
        panel = panel.override_by_name(f"upper {way}", band)
    return in_own_unit(panel)


def _ended(value: str) -> str:
    """Return the value at each step in which a run ended, per outcome."""
    runs = f"sum by (outcome) ({q.series(m.RUNS, **CASE)})"
    before = f"sum by (outcome) ({q.series(m.RUNS, **CASE)} offset $__interval)"
    return f"(({runs} - {before}) > bool 0 == 1) * on () group_left () max({value})"


# --- Latency.


def _percentiles() -> p.Panel:
    text = (
        "Logarithmic. Lower is better. The maximum is the longest stall of a run. p99.99 needs "
        "runs of a million operations to be meaningful."
    )
    latencies = {
        "p{{percentile}} {{direction}}": q.series(f.CLAT_PERCENTILE.metric, **CASE),
        "max {{direction}}": q.series(f.CLAT_MAX.metric, **CASE),
    }
    title = "Completion latency percentiles"
    return lines(title, text, latencies, unit="s", log=True, right=True)


def _distribution() -> heatmap.Panel:
    """Return the heatmap of completion latencies."""
    histogram = q.series(m.LATENCY, **CASE)
    # Without a result, a heatmap of Grafana 12.4 shows "No data", regardless of `noValue`.
    fallback = q.label("le", NO_HISTOGRAM, q.if_empty(f"group({histogram} @ end())"))
    operations = f"sum by (le) (increase({histogram}[$__rate_interval])) or 0 * ({fallback})"
    target = parts.query(operations, legend="{{le}}").format(PromQueryFormat.HEATMAP)
    # No color that means better or worse; the exponent keeps rare values visible.
    colors = heatmap.HeatmapColorOptions().mode(heat_models.HeatmapColorMode.SCHEME).steps(64)
    colors = colors.scale(heat_models.HeatmapColorScale.EXPONENTIAL).exponent(0.3)
    tooltip = heatmap.HeatmapTooltip().mode(common_models.TooltipDisplayMode.SINGLE)
    return (
        heatmap.Panel()
        .datasource(parts.DATASOURCE)
        .with_target(target)
        .max_data_points(FEW_POINTS)
        .title("Completion latency distribution")
        .description(
            "Operations of the runs that ended in each time step, by completion latency. Needs a "
            "workload with `histogram: true` in its pack. A second band above the first shows "
            "stalls hidden by means and medians. A case appears with its second run: the first "
            "value of a counter is not an increase."
        )
        .no_value(NO_HISTOGRAM)
        # Without a histogram, its scale has no limits; the tooltip shows the numbers.
        .hide_legend()
        .color(colors.scheme("Cividis"))
        .unit("short")
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .cell_values(heatmap.CellValues().unit("short").decimals(0))
        .tooltip(tooltip.y_histogram(True))
    )


def _of_case(title: str, text: str, legend: str, metric: Metric, unit: str) -> timeseries.Panel:
    """Return a metric of the case over time."""
    return lines(title, text, {legend: q.series(metric, **CASE)}, unit=unit, log=unit == "s")


def _tails() -> tuple[p.Panel, ...]:
    slow, middle = (
        q.series(f.CLAT_PERCENTILE.metric, **OTHERS, percentile=one) for one in ("99.9", "50")
    )
    tail = f"({slow} and topk(10, {slow} @ end())) / ignoring (percentile) ({middle} > 0)"
    syncs = "fsync and fdatasync. Below the device's minimum, syncs are ignored."
    steady = "Standard deviation / mean of the intervals of one run. Lower is steadier."
    percentile, variation = f.SYNC_PERCENTILE.metric, f.IOPS_VARIATION.metric
    none = "No data: the workload does not sync or has not run yet."
    return (
        _of_case("Sync latency", syncs, "p{{percentile}}", percentile, "s").no_value(none),
        _of_case("Variation within a run", steady, "{{direction}}", variation, "percentunit"),
        lines(
            "Tail latency: p99.9 / median",
            "The ten configurations of the node with the highest p99.9 of this workload. About 10 "
            "is normal; 1000 means stalls.",
            {LEGEND: q.with_descriptions(f"({tail})", workload=False)},
            unit="none",
            log=True,
            linked=True,
            points=FEW_POINTS,
        ),
    )


# --- CPU.


def _cpu() -> tuple[p.Line, ...]:
    idle = q.series(f.HOST_CPU.metric, node="$node", workload="idle.*", component="qemu")
    power = "sum by (instance) (rate(node_rapl_package_joules_total[$__rate_interval]))"
    rapl = "From node_exporter's collector rapl, which needs hardware support and permission."
    none = "No data: no node_exporter reports power (collector rapl)."
    tool = "CPU time in the guest, as a share of one CPU. Near 100%, it is the bottleneck."
    host, switches, cores = "Host CPU during runs", "Context switches of the host", "In cores."
    base_cost = "CPU usage of QEMU with an idle guest, by configuration: its base cost."
    named = {LEGEND: q.with_descriptions(idle, workload=False)}
    return (
        (
            9,
            _of_case(host, cores, "{{component}}", f.HOST_CPU.metric, "none"),
            _of_case("Benchmark tool CPU", tool, "{{mode}}", f.GUEST_CPU.metric, "percentunit"),
            _of_case(switches, "Per second of the run.", "switches", m.HOST_SWITCHES, "ops"),
        ),
        (
            9,
            lines("Idle guest CPU, cores", base_cost, named, unit="none", linked=True, zero=True),
            lines("Host CPU power", rapl, {"{{instance}}": power}, unit="watt", missing=none),
        ),
    )


def _others() -> p.Panel:
    text = "Latest successful runs of this workload on this node, with trends over the time range."
    latency = ("p50", "p99", "p99.9", "max", "sync p99")
    cpu = ("CPU per I/O", "host, cores", "QEMU, cores", "age")
    return results("All configurations", text, OTHERS, *latency, *cpu)


def _definition() -> tuple[p.Panel, ...]:
    info = q.series(m.WORKLOAD_INFO, workload="$workload")
    labels = "description, workload, tool, title, rw, block_size_bytes, io_depth, jobs"
    scenario = q.series(m.SCENARIO_INFO, node="$node", scenario="$scenario")
    return (
        facts("Configuration", "All options of the disk and its VM.", scenario),
        facts("Workload", "Definition of the workload.", f"max by ({labels}) ({info})"),
        outcomes(CASE),
    )
