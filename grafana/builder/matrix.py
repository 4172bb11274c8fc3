"""Configuration matrix: which setting is best for this workload, what do others lose?"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, common, dashboard, table, text, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import text as text_models

from builder.parts import (
    DATASOURCE,
    base,
    instant,
    label_variable,
    place,
    query,
    series,
    table_query,
    transformation,
)
from pvebench.metrics.catalog import HOST_CPU, IOPS, LATENCY_PERCENTILE, RUN_TIMESTAMP, Metric

UID: Final = "pvebench-matrix"
CASE: Final = {"node": "$node", "storage": "$storage", "workload": "$workload"}
RESULT: Final = {**CASE, "direction": "$direction"}
INTRO: Final = (
    "**Which setting is best for this workload, and what do the others lose?** Every cell is the "
    "last good run of one scenario: the disk on one bus, in one cache mode, in one format. The "
    "value stays until the scenario is measured again; its age is in the table below. An empty "
    "cell was never measured. **Nothing at all?** The exporter has no results yet, or Prometheus "
    "does not scrape it: see its page at port 9620."
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return (
        base(
            "Storage benchmark / Configuration matrix",
            UID,
            "Bus by cache mode for each format: last values, share of the best, ranking, latency.",
        )
        .with_variable(label_variable("node", "Node"))
        .with_variable(label_variable("storage", "Storage", among='node=~"$node"'))
        .with_variable(
            label_variable("workload", "Workload", among='node=~"$node",storage=~"$storage"')
        )
        .with_variable(
            label_variable(
                "direction", "Direction", among='node=~"$node",workload=~"$workload"', multi=True
            )
        )
        .with_panel(
            text.Panel()
            .title("What this shows")
            .description("Question answered, data flow, meaning of an empty cell.")
            .mode(text_models.TextMode.MARKDOWN)
            .content(INTRO)
            .grid_pos(place(0, 0, 24, 4))
        )
        .with_panel(_matrix("raw", "iops").grid_pos(place(0, 4, 12, 7)))
        .with_panel(_matrix("qcow2", "iops").grid_pos(place(12, 4, 12, 7)))
        .with_panel(_share("raw").grid_pos(place(0, 11, 12, 7)))
        .with_panel(_share("qcow2").grid_pos(place(12, 11, 12, 7)))
        .with_panel(_ranking().grid_pos(place(0, 18, 12, 12)))
        .with_panel(_details().grid_pos(place(12, 18, 12, 12)))
        .with_panel(_history().grid_pos(place(0, 30, 12, 9)))
        .with_panel(_latency().grid_pos(place(12, 30, 12, 9)))
        .with_panel(_cpu().grid_pos(place(0, 39, 24, 8)))
    )


def _matrix(kind: str, unit: str) -> table.Panel:
    return (
        _grid(f"max by (bus, cache) ({series(IOPS, **RESULT, format=kind)})")
        .title(f"IOPS, {kind}")
        .description(
            f"I/O per second of the last good run, {kind} volume. Darker is more; the colour "
            f"says how it ranks in this table, not whether it is good."
        )
        .unit(unit)
        .decimals(0)
        .color_scheme(_sequential())
        .display_mode(common_models.TableCellDisplayMode.COLOR_BACKGROUND)
    )


def _share(kind: str) -> table.Panel:
    mine = f"max by (bus, cache) ({series(IOPS, **RESULT, format=kind)})"
    best = f"scalar(max({series(IOPS, **RESULT)}))"
    return (
        _grid(f"{mine} / {best}")
        .title(f"Share of the best, {kind}")
        .description("Value divided by the best of all formats, buses and cache modes shown.")
        .unit("percentunit")
        .decimals(0)
        .min(0)
        .max(1)
        .color_scheme(_sequential())
        .display_mode(common_models.TableCellDisplayMode.COLOR_BACKGROUND)
    )


def _grid(expression: str) -> table.Panel:
    """Return a table of bus by cache mode."""
    return (
        table.Panel()
        .datasource(DATASOURCE)
        .with_target(table_query(expression))
        .align(common_models.FieldTextAlignment.AUTO)
        .no_value("not measured")
        .transformations(
            [
                transformation(
                    "groupingToMatrix", rowField="bus", columnField="cache", valueField="Value"
                )
            ]
        )
    )


def _sequential() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BLUES)


def _ranking() -> bargauge.Panel:
    return (
        bargauge.Panel()
        .datasource(DATASOURCE)
        .with_target(
            instant(
                f"sort_desc(topk(20, {series(IOPS, **RESULT)}))",
                legend="{{scenario}} {{direction}}",
            )
        )
        .title("Ranking")
        .description(
            "The 20 fastest scenarios. Differences of a few percent are noise: see trends."
        )
        .unit("iops")
        .min(0)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .value_mode(common_models.BarGaugeValueMode.TEXT)
        .color_scheme(_sequential())
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


def _details() -> table.Panel:
    hidden = dict.fromkeys(("Time", "__name__", "job", "instance", "node", "storage"), True)
    hidden |= {"workload": True, "bus": True, "cache": True, "format": True}
    percentile = series(LATENCY_PERCENTILE, **RESULT, percentile="99")
    age = f"time() - max by (scenario) ({series(RUN_TIMESTAMP, **CASE)})"
    keep = "scenario, direction"
    return (
        table.Panel()
        .datasource(DATASOURCE)
        .with_target(table_query(f"max by ({keep}) ({series(IOPS, **RESULT)})", ref="A"))
        .with_target(table_query(f"max by ({keep}) ({percentile})", ref="B"))
        .with_target(table_query(_by_direction(age), ref="C"))
        .title("All scenarios")
        .description("Last good run of each: IOPS, 99th percentile of completion latency, age.")
        .align(common_models.FieldTextAlignment.AUTO)
        .display_mode(common_models.TableCellDisplayMode.AUTO)
        .unit("short")
        .transformations(
            [
                transformation("merge"),
                transformation(
                    "organize",
                    excludeByName=hidden,
                    renameByName={"Value #A": "IOPS", "Value #B": "p99", "Value #C": "age"},
                ),
                transformation("sortBy", fields={}, sort=[{"field": "IOPS", "desc": True}]),
            ]
        )
        .override_by_name("IOPS", [_property("unit", "iops")])
        .override_by_name("p99", [_property("unit", "s")])
        .override_by_name("age", [_property("unit", "dtdurations"), _property("decimals", 0)])
    )


def _by_direction(expression: str) -> str:
    """Give a per-case value the direction label of the results, so that both can be joined."""
    return (
        f"max by (scenario, direction) ({series(IOPS, **RESULT)}) * 0 "
        f"+ on (scenario) group_left () ({expression})"
    )


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)


def _history() -> timeseries.Panel:
    return (
        _lines(IOPS, series(IOPS, **RESULT), "iops")
        .title("IOPS over time")
        .description("The held value of each scenario; a step is a new run.")
    )


def _latency() -> timeseries.Panel:
    expression = series(LATENCY_PERCENTILE, **RESULT, percentile="99")
    return (
        _lines(LATENCY_PERCENTILE, expression, "s")
        .title("99th percentile of completion latency over time")
        .description("Logarithmic: latencies differ by orders of magnitude. Lower is better.")
        .scale_distribution(
            common.ScaleDistributionConfig().type(common_models.ScaleDistribution.LOG).log(10)
        )
    )


def _cpu() -> timeseries.Panel:
    expression = series(HOST_CPU, **CASE, component="qemu")
    return (
        _lines(HOST_CPU, expression, "none")
        .title("Host CPU of the QEMU process while measuring, cores")
        .description("What the workload costs the host; measured outside the guest.")
    )


def _lines(metric: Metric, expression: str, unit: str) -> timeseries.Panel:
    legend = "{{scenario}} {{direction}}" if "direction" in metric.labels else "{{scenario}}"
    return (
        timeseries.Panel()
        .datasource(DATASOURCE)
        .with_target(query(expression, legend=legend))
        .unit(unit)
        .line_interpolation(common_models.LineInterpolation.STEP_AFTER)
        .line_width(1)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.RIGHT)
            .calcs(["lastNotNull", "mean"])
            .show_legend(True)
        )
    )
