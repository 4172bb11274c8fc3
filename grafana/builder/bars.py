"""Bar panels in the common style."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import bargauge, common, dashboard
from grafana_foundation_sdk.models import common as models

from builder.looks import (
    BETTER,
    MINUS,
    NEUTRAL,
    WORSE,
    by_steps,
    case_link,
    compare_link,
    plain,
    prop,
    steps,
)
from builder.parts import described, instant
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
    panel, bars = bargauge.Panel(), instant(expression, legend=legend)
    if "{{configuration}}" in legend:
        panel = panel.data_links([*_links()])
    return (
        described(panel, (title, description), bars, unit=unit, missing=missing)
        .min(0)
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


CASE_LEGEND: Final = "{{configuration}}, {{description}} ({{storage}}, {{node}})"
FEW: Final = 5
"""Number of bars that fit without scrolling."""


def changes_bars(
    title: str,
    description: str,
    expression: str,
    legend: str = CASE_LEGEND,
    *,
    limit: str = "0",
    factor: bool = False,
    missing: str = "no significant changes",
) -> bargauge.Panel:
    """Return bars of changes in percent: the worst, then the best, with their signs.

    A bar's length is the absolute change: with a negative minimum, a larger regression would
    have a shorter bar.

    Args:
        expression: changes as ratios; positive is better.
        factor: `expression` is after / before, and less is better.
        limit: smaller changes are omitted.
        missing: text without bars.
    """
    worst, best = (
        f"bottomk({FEW}, ({expression}) < -{limit})",
        f"topk({FEW}, ({expression}) > {limit})",
    )
    scales, signs = ("-100 * ", "100 * "), f"{MINUS}+"
    if factor:
        worst, best = (
            f"topk({FEW}, ({expression}) > 1 + {limit})",
            f"bottomk({FEW}, ({expression}) < 1 - {limit})",
        )
        scales, signs = ("", ""), "××"
    panel = ranking(title if factor else f"{title}, %", description, "", unit="none", legend=legend)
    # With the unit `percent`, Grafana draws all values above 100 alike.
    targets = [
        instant(f"sort_desc({scale}{with_descriptions(f'({one})')})", legend=legend, ref=ref)
        for ref, scale, one in zip("AB", scales, (worst, best), strict=True)
    ]
    panel = panel.targets([*targets]).decimals(2 if factor else 1).color_scheme(by_steps())
    # Otherwise an empty panel is green.
    panel = panel.thresholds(steps(NEUTRAL))
    for ref, sign, color in zip("AB", signs, (WORSE, BETTER), strict=True):
        # A color of its own would hide the gray of held values.
        looks = [prop("unit", f"prefix:{sign}"), prop("thresholds", steps(color))]
        panel = panel.override_by_query(ref, looks)
    return panel.no_value(missing)
