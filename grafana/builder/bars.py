"""Bar panels in the common style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import barchart, bargauge, common, dashboard, prometheus
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder.looks import case_link, compare_link, fixed, plain, prop
from builder.parts import DATASOURCE, instant
from builder.promql import with_descriptions

NAME_PIXELS: Final = 12
"""Same as in legends: at 1920 pixels, the longest case name fits into half a screen."""
VALUE_PIXELS: Final = 14
MIN_BAR_PIXELS: Final = 38
"""Height of a bar including the name above it; with more bars, the panel scrolls."""
MAX_BAR_PIXELS: Final = 60


def ranking(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    legend: str,
    missing: str = "no data before the first run",
) -> bargauge.Panel:
    """Return horizontal bars with their names above them, best first."""
    panel = bargauge.Panel()
    if "{{configuration}}" in legend:
        panel = panel.data_links([*_links()])
    return (
        panel.datasource(DATASOURCE)
        .with_target(instant(expression, legend=legend))
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value(missing)
        .orientation(models.VizOrientation.HORIZONTAL)
        # Grafana 12.4 draws a large gray box next to the text of an empty panel.
        .show_unfilled(False)
        # Otherwise few bars fill the height of the panel, with names too large to fit.
        .text(common.VizTextDisplayOptions().title_size(NAME_PIXELS).value_size(VALUE_PIXELS))
        .sizing(models.BarGaugeSizing.MANUAL)
        .min_viz_height(MIN_BAR_PIXELS)
        .max_viz_height(MAX_BAR_PIXELS)
        # Next to its bar, a name is cut at 40% of the panel width.
        .name_placement(models.BarGaugeNamePlacement.TOP)
        # Without this, a single bar has no name.
        .display_name("${__series.name}")
        .display_mode(models.BarGaugeDisplayMode.BASIC)
        .value_mode(models.BarGaugeValueMode.TEXT)
        .color_scheme(plain("blue"))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


def _links() -> list[dashboard.DashboardLink]:
    labels = "__field.labels"
    return [case_link(labels), compare_link(labels, "storage", "scenario")]


FEW: Final = 5
"""Number of bars that fit without scrolling."""


def changes_bars(
    title: str,
    description: str,
    expression: str,
    legend: str,
    *,
    worse: int = FEW,
    better: int = FEW,
    limit: str = "0",
    described: bool = True,
    neutral: bool = False,
    factor: bool = False,
    missing: str = "no significant changes",
) -> bargauge.Panel:
    """Return bars of changes in percent: the worst, then the best, with their signs.

    A bar's length is the absolute change: with a negative minimum, a larger regression would
    have a shorter bar.

    Args:
        expression: changes as ratios; positive is better.
        factor: `expression` is after / before, and less is better.
        worse, better: number of bars of each kind.
        limit: smaller changes are omitted.
        described: add the legend's labels of workload and configuration to the selected series.
        neutral: neither direction is better.
        missing: text without bars.
    """
    targets = []
    scale = ("", "") if factor else ("-100 * ", "100 * ")
    if worse:
        regressed = f"bottomk({worse}, ({expression}) < -{limit})"
        if factor:
            regressed = f"topk({worse}, ({expression}) > 1 + {limit})"
        regressed = with_descriptions(f"({regressed})") if described else regressed
        targets.append(instant(f"sort_desc({scale[0]}{regressed})", legend=legend))
    if better:
        improved = f"topk({better}, ({expression}) > {limit})"
        if factor:
            improved = f"bottomk({better}, ({expression}) < 1 - {limit})"
        improved = with_descriptions(f"({improved})") if described else improved
        targets.append(instant(f"sort_desc({scale[1]}{improved})", legend=legend, ref="B"))
    down, up = ("purple", "blue") if neutral else ("dark-orange", "semi-dark-blue")
    signs = "××" if factor else "−+"  # noqa: RUF001 # the minus sign
    minus, plus = (prop("unit", f"prefix:{sign}") for sign in signs)
    return (
        # With the unit `percent`, Grafana draws all values above 100 alike.
        ranking(title if factor else f"{title}, %", description, "", unit="none", legend=legend)
        .targets(list(targets))
        .decimals(2 if factor else 1)
        .color_scheme(plain())
        .no_value(missing)
        .override_by_query("A" if worse else "-", [minus, prop("color", fixed(down))])
        .override_by_query("B", [plus, prop("color", fixed(up))])
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
    """Return grouped bars from tables; with a long unit, the numbers of the axis overlap."""
    return (
        barchart.Panel()
        .datasource(DATASOURCE)
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit(unit)
        .min(0)
        .no_value("no data before the first run")
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
