"""Charts over time in the common style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models

from builder.looks import NO_BASELINE, STATES, case_link, plain, values
from builder.parts import FALLBACK_REF, described, instant, query, table_query, transformation
from builder.promql import ANSWERS, HELD, if_empty, label, large_blocks, series, silent
from pvebench.model import run_metrics as f
from pvebench.verdicts.fastest_text import LEAST_JUDGED

NEW_ROW: Final = f"no verdict before run {LEAST_JUDGED}"
"""Short form for labels, of which Grafana shows about 38 characters."""
FIRST_LINE: Final = (
    "No data yet. The line begins with the first run; a shorter time range shows it sooner."
)
PADDING: Final = "\u2007\u2007"
"""Digit-wide spaces before a name in a timeline: Grafana 12.4 draws names wider than it measures
them, and cuts them on the left."""
_NO_STATE: Final = -9
"""Value that no state uses."""
MAX_POINTS: Final = 800
"""For lines of one case. Values are held until the next run, so more points only cost time."""
FEWER_POINTS: Final = 400
"""For lines of all cases that the variables select: the cost is the product of both."""
FEW_POINTS: Final = 180
"""For queries that read every case at every point."""


def no_state(present: str) -> str:
    """Return the fallback of an empty timeline: a row without a bar.

    For a result without series, Grafana 12.4 shows "Data does not have a time field". Grafana asks
    at whole steps, so the fallback applies until the series have existed for one step.
    """
    none = if_empty(f"last_over_time(({present})[1s:1s] offset $__interval)")
    # An exporter that stopped before a whole step of the range has left no bar either.
    stepped = if_empty(f"last_over_time({ANSWERS}[$__range:$__interval])")
    answered = f"last_over_time(({present})[1s:1s] @ {HELD})"
    silently = f"({if_empty(answered)} or {stepped}) and on () {silent()}"
    return f"{_NO_STATE} * (({none} unless on () {silent()}) or ({silently}))"


_P = TypeVar("_P", stat.Panel, timeseries.Panel)


def in_own_unit(panel: _P) -> _P:
    """Show a panel in the unit of `$workload`, which a query names."""
    unit = f"{label('unit', 'Bps', large_blocks())} or on () {label('unit', 'iops')}"
    mapping = {"fieldName": "unit", "handlerKey": "unit", "reducerId": "lastNotNull"}
    config = transformation("configFromData", configRefId="unit", mappings=[mapping])
    return panel.with_target(table_query(unit, ref="unit")).transformations([config])


def _legend(mode: str, *, right: bool = False) -> common.VizLegendOptions:
    place = models.LegendPlacement.RIGHT if right else models.LegendPlacement.BOTTOM
    legend = common.VizLegendOptions().show_legend(True).placement(place)
    return legend.display_mode(models.LegendDisplayMode(mode))


def lines(
    title: str,
    description: str,
    targets: Sequence[prometheus.Dataquery] | Mapping[str, str],
    *,
    unit: str,
    log: bool = False,
    right: bool = False,
    linked: bool = False,
    zero: bool = False,
    points: int | None = None,
    missing: str = FIRST_LINE,
) -> timeseries.Panel:
    """Return held values over time: thin steps, a table as legend, linked to their cases."""
    if isinstance(targets, Mapping):
        pairs = zip("ABCDEF", targets.items(), strict=False)
        targets = [query(one, legend=legend, ref=ref) for ref, (legend, one) in pairs]
    kind = models.ScaleDistribution.LOG if log else models.ScaleDistribution.LINEAR
    scale, palette = common.ScaleDistributionConfig().type(kind), dashboard.FieldColor()
    built = (
        described(timeseries.Panel(), (title, description), *targets, unit=unit, missing=missing)
        .max_data_points(points or (FEWER_POINTS if linked else MAX_POINTS))
        .color_scheme(palette.mode(dashboard_models.FieldColorModeId.PALETTE_CLASSIC))
        .line_interpolation(models.LineInterpolation.STEP_AFTER)
        .line_width(1)
        .fill_opacity(0)
        # A first result is a point: a line needs two.
        .show_points(models.VisibilityMode.AUTO)
        .span_nulls(False)
        .scale_distribution(scale.log(10) if log else scale)
        .tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI))
        .legend(_legend("table", right=right).calcs(["lastNotNull", "min", "max"]))
    )
    if linked:
        built = built.data_links([case_link("__field.labels")])
    return built.axis_soft_min(0) if zero else built


def levels(
    title: str,
    description: str,
    where: Mapping[str, str],
    reference: str,
    *,
    condition: str = "",
    missing: str = FIRST_LINE,
) -> timeseries.Panel:
    """Return the throughput of each storage, relative to a level of each of its cases."""
    ratio = f"{series(f.IOPS.metric, **where)} / ({reference} > 0)"
    storages = {"{{storage}}, {{node}}": f"exp(avg by (node, storage) (ln({ratio}))){condition}"}
    panel = lines(title, description, storages, unit="percentunit", right=True, missing=missing)
    # Otherwise the axis follows the noise.
    return panel.max_data_points(FEW_POINTS).line_width(2).axis_soft_min(0.8).axis_soft_max(1.1)


def timeline(
    title: str,
    description: str,
    expression: str,
    legend: str,
    mappings: Sequence[dashboard_models.ValueMapping] | None = None,
    *,
    points: int = FEWER_POINTS,
    present: str = "",
    missing: str = NEW_ROW,
) -> statetimeline.Panel:
    """Return states over time; `present`: cheaper expression with a result if there is one."""
    nothing = instant(no_state(present or expression), legend=PADDING + missing, ref=FALLBACK_REF)
    targets = (query(expression, legend=PADDING + legend), nothing)
    texts, no_bar = (title, description), values({str(_NO_STATE): (" ", "transparent")})
    return (
        described(statetimeline.Panel(), texts, *targets, unit="none", missing=missing)
        .max_data_points(points)
        .mappings([*(mappings or values(STATES, nothing=NO_BASELINE)), *no_bar])
        # With any other mode, Grafana's legend lists thresholds instead of states.
        .color_scheme(plain())
        .show_value(models.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .legend(_legend("list"))
    )
