"""Panels in the house style, one function for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models import text as text_models

from builder.looks import SAME, by_steps, case_link, plain, prop, sequential, state_words, steps
from builder.parts import DATASOURCE, instant, place, query, table_query, transformation

EMPTY: Final = (
    " **Nothing here?** Nothing is measured yet, or it does not arrive: `pvebench selftest` says "
    "where it stops."
)
NEW_CASES: Final = "no baseline yet"
SHORT_PIXELS: Final = 86
MOST_POINTS: Final = 400
"""Of a line. Values are held until the next run, so a point for every pixel only costs time."""


def intro(words: str, *, y: int = 0) -> text.Panel:
    """Return the text at the top: question, data flow, and what to do when it is empty."""
    return (
        text.Panel()
        .title("What this shows")
        .description("The question that this dashboard answers, and where its numbers come from.")
        .mode(text_models.TextMode.MARKDOWN)
        .content(words + EMPTY)
        .grid_pos(place(0, y, 24, 4 if y else 3))
    )


def number(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str = "none",
    legend: str = "",
    decimals: int | None = None,
    graph: bool = False,
    missing: str = "none yet",
) -> stat.Panel:
    """Return one big number (or one for each series); grey unless it is given colours."""
    target = query(expression, legend=legend) if graph else instant(expression, legend=legend)
    built = (
        stat.Panel()
        .datasource(DATASOURCE)
        .with_target(target)
        .title(title)
        .description(description)
        .unit(unit)
        .no_value(missing)
        .color_scheme(plain())
        .thresholds(steps(SAME))
        .color_mode(models.BigValueColorMode.VALUE)
        .graph_mode(models.BigValueGraphMode.AREA if graph else models.BigValueGraphMode.NONE)
        .text_mode(models.BigValueTextMode.AUTO)
        .justify_mode(models.BigValueJustifyMode.AUTO)
        .orientation(models.VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )
    if graph:
        built = built.max_data_points(MOST_POINTS)
    return built if decimals is None else built.decimals(decimals)


def verdict(
    panel: stat.Panel, colours: dashboard.ThresholdsConfig, *, background: bool = False
) -> stat.Panel:
    """Give a number colours: only where they say better or worse."""
    mode = models.BigValueColorMode.BACKGROUND if background else models.BigValueColorMode.VALUE
    return panel.color_scheme(by_steps()).thresholds(colours).color_mode(mode)


def names(title: str, description: str, expression: str, legend: str) -> stat.Panel:
    """Return text made of labels, one line for each series."""
    return (
        number(title, description, expression, legend=legend)
        .text_mode(models.BigValueTextMode.NAME)
        .orientation(models.VizOrientation.HORIZONTAL)
    )


def lines(
    title: str,
    description: str,
    targets: Sequence[prometheus.Dataquery],
    *,
    unit: str,
    log: bool = False,
    right: bool = True,
    linked: bool = True,
    zero: bool = False,
) -> timeseries.Panel:
    """Return held values over time: thin steps, a table as legend, lines linked to their case."""
    scale = common.ScaleDistributionConfig().type(
        models.ScaleDistribution.LOG if log else models.ScaleDistribution.LINEAR
    )
    legend = (
        common.VizLegendOptions()
        .display_mode(models.LegendDisplayMode.TABLE)
        .placement(models.LegendPlacement.RIGHT if right else models.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "min", "max"])
        .show_legend(True)
    )
    built = (
        timeseries.Panel()
        .datasource(DATASOURCE)
        .max_data_points(MOST_POINTS)
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit(unit)
        .color_scheme(
            dashboard.FieldColor().mode(dashboard_models.FieldColorModeId.PALETTE_CLASSIC)
        )
        .line_interpolation(models.LineInterpolation.STEP_AFTER)
        .line_width(1)
        .fill_opacity(0)
        .show_points(models.VisibilityMode.NEVER)
        .span_nulls(False)
        .scale_distribution(scale.log(10) if log else scale)
        .tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI))
        .legend(legend)
    )
    if linked:
        built = built.data_links([case_link("__field.labels")])
    return built.axis_soft_min(0) if zero else built


def ranking(
    title: str, description: str, expression: str, *, unit: str, legend: str
) -> bargauge.Panel:
    """Return horizontal bars, the first the best."""
    return (
        bargauge.Panel()
        .datasource(DATASOURCE)
        .with_target(instant(expression, legend=legend))
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value("nothing measured yet")
        .orientation(models.VizOrientation.HORIZONTAL)
        .display_mode(models.BarGaugeDisplayMode.BASIC)
        .value_mode(models.BarGaugeValueMode.TEXT)
        .color_scheme(plain("blue"))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


def changes_bars(
    title: str, description: str, expression: str, legend: str, *, worse: int = 10,
    better: int = 10, limit: str = "0",
) -> bargauge.Panel:  # fmt: skip
    """Return bars of changes: the worst, then the best, said in words beside the colour.

    A bar's length is the size of the change: bars that begin at a negative minimum would be the
    shorter the larger the loss.

    Args:
        expression: changes as ratios, plus is better.
        worse, better: how many of each.
        limit: smaller changes are left out.
    """
    targets = []
    if worse:
        lost = f"sort_desc(abs(bottomk({worse}, ({expression}) < -{limit})))"
        targets.append(instant(lost, legend=f"worse: {legend}"))
    if better:
        gained = f"sort_desc(topk({better}, ({expression}) > {limit}))"
        targets.append(instant(gained, legend=f"better: {legend}", ref="B"))
    return (
        ranking(title, description, "", unit="percentunit", legend="")
        .targets(list(targets))
        .decimals(1)
        .color_scheme(plain())
        .no_value("no change beyond noise")
        .override_by_regexp("^worse:.*", [prop("color", _fixed("dark-orange"))])
        .override_by_regexp("^better:.*", [prop("color", _fixed("semi-dark-blue"))])
    )


def _fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}


def _around_zero() -> dashboard.ThresholdsConfig:
    return steps(
        "dark-orange", (-0.10, "orange"), (-0.03, SAME), (0.03, "blue"), (0.10, "semi-dark-blue")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One value column of a table.

    Attributes:
        title: of the column; `merge` would call it `Value #A`.
        expression: instant query; its labels join the rows.
        unit: as Grafana spells it.
        words: of the verdict instead of the number.
        gauge: draw a bar in the cell.
        change: colour it as a change, plus is better.
    """

    title: str
    expression: str
    unit: str = "short"
    decimals: int | None = None
    words: bool = False
    gauge: bool = False
    change: bool = False

    @property
    def pixels(self) -> int:
        """How wide its title and its filter need it."""
        return max(104 if self.words else SHORT_PIXELS, 8 * len(self.title) + 44)

    def properties(self) -> list[dashboard_models.DynamicConfigValue]:
        """Return the column's look."""
        found = [prop("unit", self.unit)]
        if self.decimals is not None:
            found.append(prop("decimals", self.decimals))
        if self.words:
            found += [prop("mappings", state_words()), prop("custom.displayMode", "color-text")]
        if self.gauge:
            found += [
                prop("custom.displayMode", "gradient-gauge"),
                prop("min", 0),
                prop("color", _fixed("blue")),
            ]
        if self.change:
            found += [
                prop("custom.displayMode", "color-text"),
                prop("thresholds", _around_zero()),
                prop("color", {"mode": "thresholds"}),
                prop("decimals", 1),
            ]
        return found


def rows(
    title: str,
    description: str,
    keys: Sequence[str],
    columns: Sequence[Column],
    *,
    sort: str = "",
    descending: bool = True,
    linked: bool = True,
    missing: str = "none yet",
) -> table.Panel:
    """Return a table: a row for each set of `keys`, a column for each query."""
    targets = [
        table_query(column.expression, ref=chr(ord("A") + index))
        for index, column in enumerate(columns)
    ]
    # With one query Grafana calls the column `Value`, with several `Value #A` and so on.
    shown = {"Value": columns[0].title} | {
        f"Value #{chr(ord('A') + index)}": column.title for index, column in enumerate(columns)
    }
    order = {name: index for index, name in enumerate([*keys, *shown])}
    steps_done = [
        transformation("merge"),
        transformation(
            "organize",
            # A scenario's name begins with its storage.
            excludeByName=dict.fromkeys(("Time", "__name__", "job", "instance"), True)
            | ({"storage": True} if "scenario" in keys and "storage" not in keys else {}),
            renameByName=shown,
            indexByName=order,
        ),
    ]
    if sort:
        steps_done.append(
            transformation("sortBy", fields={}, sort=[{"field": sort, "desc": descending}])
        )
    built = (
        table.Panel()
        .datasource(DATASOURCE)
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit("short")
        .no_value(missing)
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .filterable(True)
        .min_width(60)
        .transformations(steps_done)
    )
    for column in columns:
        properties = column.properties()
        if "scenario" in keys and not column.gauge:
            properties.append(prop("custom.width", column.pixels))
        built = built.override_by_name(column.title, properties)
    if "scenario" in keys:
        # Names of cases are long, everything else is short: it gets no more than it needs.
        for name in ("node", "direction"):
            built = built.override_by_name(name, [prop("custom.width", SHORT_PIXELS)])
    if linked:
        built = built.override_by_name("scenario", [prop("links", [case_link("__data.fields")])])
    return built


def grid(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    row: str = "bus",
    column: str = "cache",
) -> table.Panel:
    """Return a table of one label by another, coloured by value."""
    return (
        table.Panel()
        .datasource(DATASOURCE)
        .with_target(table_query(expression))
        .title(title)
        .description(description)
        .unit(unit)
        .no_value("not measured")
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.COLOR_BACKGROUND)
        .color_scheme(sequential())
        .transformations(
            [
                transformation(
                    "groupingToMatrix", rowField=row, columnField=column, valueField="Value"
                )
            ]
        )
        .override_by_name(f"{row}\\{column}", [prop("custom.displayMode", "auto")])
    )


def timeline(
    title: str,
    description: str,
    expression: str,
    legend: str,
    mappings: Sequence[dashboard_models.ValueMapping] | None = None,
) -> statetimeline.Panel:
    """Return states over time, one bar for each series."""
    return (
        statetimeline.Panel()
        .datasource(DATASOURCE)
        .max_data_points(MOST_POINTS)
        .with_target(query(expression, legend=legend))
        .title(title)
        .description(description)
        .unit("none")
        .no_value(NEW_CASES)
        .mappings(list(mappings) if mappings is not None else state_words())
        # Any other mode would make Grafana's legend list thresholds instead of the words.
        .color_scheme(plain())
        .show_value(models.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .legend(
            common.VizLegendOptions()
            .display_mode(models.LegendDisplayMode.LIST)
            .placement(models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )


def bars(
    title: str,
    description: str,
    targets: Sequence[prometheus.Dataquery],
    *,
    unit: str,
    x: str,
    transformations: Sequence[dashboard_models.DataTransformerConfig],
) -> barchart.Panel:
    """Return grouped bars from tables."""
    return (
        barchart.Panel()
        .datasource(DATASOURCE)
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value("nothing measured yet")
        .x_field(x)
        .show_value(models.VisibilityMode.AUTO)
        .orientation(models.VizOrientation.HORIZONTAL)
        .color_scheme(
            dashboard.FieldColor().mode(dashboard_models.FieldColorModeId.PALETTE_CLASSIC)
        )
        .fill_opacity(80)
        .line_width(0)
        .transformations(list(transformations))
        .override_by_regexp("^(read|A)$", [prop("color", _fixed("blue"))])
        .override_by_regexp("^(write|B)$", [prop("color", _fixed("orange"))])
        .legend(
            common.VizLegendOptions()
            .display_mode(models.LegendDisplayMode.LIST)
            .placement(models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )


def facts(title: str, description: str, expression: str) -> table.Panel:
    """Return the labels of one series as a table of name and value."""
    return (
        table.Panel()
        .datasource(DATASOURCE)
        # Arithmetic takes the metric's name off, which is no fact.
        .with_target(instant(f"1 * {expression}"))
        .title(title)
        .description(description)
        .unit("short")
        .no_value("never measured")
        .align(models.FieldTextAlignment.AUTO)
        .display_mode(models.TableCellDisplayMode.AUTO)
        .transformations([transformation("labelsToFields", mode="rows")])
    )
