"""Panels in the house style, one function for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models import text as text_models

from builder.looks import SAME, by_steps, case_link, plain, state_words, steps
from builder.parts import DATASOURCE, instant, place, query

EMPTY: Final = (
    " **Nothing here?** Nothing is measured yet, or it does not arrive: `pvebench selftest` says "
    "where it stops."
)
NEW_CASES: Final = "no baseline yet"
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
