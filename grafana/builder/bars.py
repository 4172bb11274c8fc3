"""Bars in the house style."""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import barchart, bargauge, common, dashboard, prometheus
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder.looks import fixed, plain, prop
from builder.parts import DATASOURCE, instant


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
    title: str,
    description: str,
    expression: str,
    legend: str,
    *,
    worse: int = 10,
    better: int = 10,
    limit: str = "0",
) -> bargauge.Panel:
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
        .override_by_regexp("^worse:.*", [prop("color", fixed("dark-orange"))])
        .override_by_regexp("^better:.*", [prop("color", fixed("semi-dark-blue"))])
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
        .override_by_regexp("^(read|A)$", [prop("color", fixed("blue"))])
        .override_by_regexp("^(write|B)$", [prop("color", fixed("orange"))])
        .legend(
            common.VizLegendOptions()
            .display_mode(models.LegendDisplayMode.LIST)
            .placement(models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
