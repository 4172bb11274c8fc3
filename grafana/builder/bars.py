"""Bars in the house style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import barchart, bargauge, common, dashboard, prometheus
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder.looks import fixed, plain, prop
from builder.parts import DATASOURCE, instant
from builder.promql import in_words

NAME_PIXELS: Final = 12
"""As those of legends: at 1920 pixels half a screen has room for the longest name of a case."""
VALUE_PIXELS: Final = 14
THINNEST_PIXELS: Final = 38
"""Of a bar with its name above it: where there are more of them, the panel scrolls."""
THICKEST_PIXELS: Final = 60


def ranking(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    legend: str,
    missing: str = "nothing measured yet: it comes with the first run",
) -> bargauge.Panel:
    """Return horizontal bars with their names above them, the first the best."""
    return (
        bargauge.Panel()
        .datasource(DATASOURCE)
        .with_target(instant(expression, legend=legend))
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value(missing)
        .orientation(models.VizOrientation.HORIZONTAL)
        # Seen in a Grafana 12.4: beside the words of an empty panel it is a large grey box.
        .show_unfilled(False)
        # Else few bars are as thick as the panel is high, with names so large that they are cut.
        .text(common.VizTextDisplayOptions().title_size(NAME_PIXELS).value_size(VALUE_PIXELS))
        .sizing(models.BarGaugeSizing.MANUAL)
        .min_viz_height(THINNEST_PIXELS)
        .max_viz_height(THICKEST_PIXELS)
        # Beside its bar a name is cut at four tenths of the panel.
        .name_placement(models.BarGaugeNamePlacement.TOP)
        # A single bar has no name unless one is asked for.
        .display_name("${__series.name}")
        .display_mode(models.BarGaugeDisplayMode.BASIC)
        .value_mode(models.BarGaugeValueMode.TEXT)
        .color_scheme(plain("blue"))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


FEW: Final = 5
"""Bars that can be seen without scrolling."""


def changes_bars(
    title: str,
    description: str,
    expression: str,
    legend: str,
    *,
    worse: int = FEW,
    better: int = FEW,
    limit: str = "0",
    words: bool = True,
    neutral: bool = False,
    missing: str = "none beyond noise among what can be told",
) -> bargauge.Panel:
    """Return bars of changes in per cent: the worst, then the best, with their signs.

    A bar's length is the size of the change: bars that begin at a negative minimum would be the
    shorter the larger the loss.

    Args:
        expression: changes as ratios, plus is better.
        worse, better: how many of each.
        limit: smaller changes are left out.
        words: what the legend says of workload and setting is added to the chosen few.
        neutral: neither direction is the better one.
        missing: what is said where no bar is.
    """
    targets = []
    if worse:
        lost = f"bottomk({worse}, ({expression}) < -{limit})"
        lost = in_words(f"({lost})") if words else lost
        targets.append(instant(f"sort_desc(-100 * {lost})", legend=legend))
    if better:
        gained = f"topk({better}, ({expression}) > {limit})"
        gained = in_words(f"({gained})") if words else gained
        targets.append(instant(f"sort_desc(100 * {gained})", legend=legend, ref="B"))
    down, up = ("purple", "blue") if neutral else ("dark-orange", "semi-dark-blue")
    minus = prop("unit", "prefix:−")  # noqa: RUF001 # the sign, which a hyphen is not
    return (
        # As `percent`, Grafana would draw all from 100 on alike.
        ranking(f"{title}, %", description, "", unit="none", legend="")
        .targets(list(targets))
        .decimals(1)
        .color_scheme(plain())
        .no_value(missing)
        .override_by_query("A" if worse else "-", [minus, prop("color", fixed(down))])
        .override_by_query("B", [prop("unit", "prefix:+"), prop("color", fixed(up))])
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
    """Return grouped bars from tables; a long unit makes the axis write over its own numbers."""
    return (
        barchart.Panel()
        .datasource(DATASOURCE)
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value("nothing measured yet: it comes with the first run")
        .x_field(x)
        .show_value(models.VisibilityMode.AUTO)
        .orientation(models.VizOrientation.HORIZONTAL)
        .color_scheme(
            dashboard.FieldColor().mode(dashboard_models.FieldColorModeId.PALETTE_CLASSIC)
        )
        .fill_opacity(80)
        .line_width(0)
        .transformations(list(transformations))
        .override_by_regexp("^(read|A)$", [prop("color", fixed("blue"))])
        .override_by_regexp("^(write|B)$", [prop("color", fixed("purple"))])
        .legend(
            common.VizLegendOptions()
            .display_mode(models.LegendDisplayMode.LIST)
            .placement(models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
