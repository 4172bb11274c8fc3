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
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models import text as text_models

from builder.looks import (
    BETTER,
    MAYBE_BETTER,
    MAYBE_WORSE,
    SAME,
    UNKNOWN,
    WORSE,
    by_steps,
    case_link,
    plain,
    prop,
    state_words,
    steps,
    values,
)
from builder.parts import DATASOURCE, STANDS_IN, instant, place, query
from builder.promql import changes_of, minus, none_of, plus, series
from builder.tables import Column, rows
from pvebench.metrics.catalog import (
    CHANGE_CASES,
    CHANGE_CONFIDENCE,
    CHANGE_EFFECT,
    CHANGE_EFFECT_HIGH,
    CHANGE_EFFECT_LOW,
    CHANGE_SINCE,
    VERDICT_INFO,
    Metric,
)
from pvebench.verdicts.summary import LEAST_JUDGED

EMPTY: Final = (
    " **Nothing here?** Nothing is measured yet, or it does not arrive: `pvebench selftest` says "
    "where it stops."
)
FIRST_VERDICT: Final = f"it comes with run {LEAST_JUDGED} of a case"
NOTHING_YET: Final = (
    "Nothing is measured yet. The first result comes with the first run, the first verdict with "
    f"run {LEAST_JUDGED} of a case."
)
NEW_CASES: Final = f"no verdict yet: {FIRST_VERDICT}"
NEW_ROW: Final = f"no verdict before run {LEAST_JUDGED}"
"""The same as a label, of which Grafana shows some 38 characters."""
FIRST_LINE: Final = (
    "Nothing to draw yet: the line begins with the first good run. A shorter time range (top "
    "right) shows it sooner."
)
ROOM: Final = "\u2007\u2007"
"""Blanks as wide as digits before a name in a timeline: Grafana 12.4 draws names a little wider
than it measures them, and cuts them on the left."""
_NO_STATE: Final = -9
"""No state has this value."""
MOST_POINTS: Final = 800
"""Of lines of one case. Values are held until the next run, so a point for every pixel only costs
time."""
FEWER_POINTS: Final = 400
"""Of lines of as many cases as the variables choose: it costs by their product."""
FEW_POINTS: Final = 180
"""Of what looks at every case at every point."""


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
        # Else what is unknown gets the colour of the lowest step, which may mean worse.
        .mappings(values({}, nothing=(missing, SAME)))
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


def signed(
    title: str, description: str, expression: str, *, legend: str = "", missing: str = NEW_CASES
) -> stat.Panel:
    """Return changes in per cent with their sign, which no unit of Grafana writes before a plus."""
    panel = number(title, description, "", missing=missing, decimals=1).targets(
        [
            instant(plus(expression), legend=legend or "better"),
            instant(minus(expression), legend=legend or "worse", ref="B"),
        ]
    )
    return (
        verdict(panel, steps(SAME, (3, MAYBE_BETTER), (10, BETTER)))
        .text_mode(models.BigValueTextMode.VALUE if not legend else models.BigValueTextMode.AUTO)
        .override_by_query("A", [prop("unit", "prefix:+")])
        .override_by_query(
            "B",
            [
                prop("unit", "prefix:−"),  # noqa: RUF001 # the sign, which a hyphen is not
                prop("thresholds", steps(SAME, (3, MAYBE_WORSE), (10, WORSE))),
            ],
        )
    )


def names(
    title: str, description: str, expression: str, legend: str, *, missing: str = "none yet"
) -> stat.Panel:
    """Return text made of labels, one line for each series; where there is none, `missing`."""
    return (
        number(title, description, "", missing=missing)
        .targets(
            [
                instant(expression, legend=legend),
                instant(none_of(expression), legend=missing, ref=STANDS_IN),
            ]
        )
        .text_mode(models.BigValueTextMode.NAME)
        .orientation(models.VizOrientation.HORIZONTAL)
    )


def said_of_all() -> str:
    """Return the verdict on everything: 2 worse, 1 not all known, 0 fine; its sentence a label.

    Of several exporters the worst: two sentences would be written over each other.
    """
    worse, fine = (series(VERDICT_INFO, state=state) for state in ("regression", "ok"))
    return f"topk(1, 2 * {worse} or 0 * {fine} or {series(VERDICT_INFO)})"


def headline(title: str) -> stat.Panel:
    """Return the verdict on everything in a sentence; coloured only where something is known."""
    panel = names(
        title,
        "The most important thing in one sentence: what got slower, since when, by how much; or "
        "which change is excluded; or what is missing to say so.",
        said_of_all(),
        "{{summary}}",
        missing=NOTHING_YET,
    )
    return verdict(panel, steps(BETTER, (1, UNKNOWN), (2, WORSE)), background=True).justify_mode(
        models.BigValueJustifyMode.AUTO
    )


def open_changes(node: str) -> table.Panel:
    """Return the changes that last: a row each, as a sentence that leads to its cases."""
    told = changes_of(node)

    def of(metric: Metric) -> str:
        # All columns with all labels of the change: rows that differ in one are not merged.
        labels = "node, storage, kind, severity, since, summary"
        joined = f"{series(metric)} * on (job, instance, change) group_left ({labels}) {told}"
        return f"max by (job, instance, change, {labels}) ({joined})"

    return (
        rows(
            "Open changes",
            "What happened, told once, until it is over or accepted (pvebench baseline accept): "
            "since when, how many cases, by how much with its 95 % interval, how sure. Plus is "
            "better. A click on the sentence leads to its cases.",
            ("since", "severity", "summary"),
            (
                Column(title="cases", expression=of(CHANGE_CASES)),
                Column(title="effect", expression=of(CHANGE_EFFECT), change=True),
                Column(title="from", expression=of(CHANGE_EFFECT_LOW), change=True),
                Column(title="to", expression=of(CHANGE_EFFECT_HIGH), change=True),
                Column(
                    title="sure", expression=of(CHANGE_CONFIDENCE), unit="percentunit", decimals=0
                ),
                Column(
                    title="age",
                    expression=f"time() - ({of(CHANGE_SINCE)})",
                    unit="dtdurations",
                    decimals=0,
                ),
            ),
            sort="severity",
            descending=False,
            linked=False,
            hidden=("kind",),
            missing="No change is open. The Overview's sentence says what is not known yet.",
        )
        .override_by_name("since", [prop("custom.width", 110)])
        .override_by_name(
            "severity",
            [
                prop("custom.width", 90),
                prop("custom.displayMode", "color-text"),
                prop(
                    "mappings",
                    values(
                        {
                            "critical": ("worse, widely", WORSE),
                            "warning": ("worse", MAYBE_WORSE),
                            "info": ("better", BETTER),
                        }
                    ),
                ),
            ],
        )
        .override_by_name(
            "summary",
            [
                prop("custom.cellOptions", {"type": "auto", "wrapText": True}),
                prop("links", [to_change()]),
                prop("displayName", "what happened"),
            ],
        )
        .override_by_name("change", [prop("custom.hidden", True)])
        .override_by_name("node", [prop("custom.width", 130)])
        .override_by_name("storage", [prop("custom.width", 220)])
    )


def to_change() -> dashboard.DashboardLink:
    """Return a link to the cases of a change."""
    # All of its cases, also where it is for the better; it began maybe before the time range.
    chosen = "var-change=${__data.fields.change}&var-worst=2"
    url = f"/d/pvebench-regressions?${{datasource:queryparam}}&{chosen}"
    return dashboard.DashboardLink("Its cases").url(url)


def no_state(expression: str, *, step: str = "$__interval") -> str:
    """Return what stands in a timeline that has nothing: a row without a bar.

    Seen in a Grafana 12.4: an answer without series is told as "Data does not have a time field".
    So it stands there until what is there now has been there for a step: Grafana asks at whole
    ones, and has no answer before.
    """
    return f"{_NO_STATE} * ({none_of(f'last_over_time(({expression})[1s:1s] offset {step})')})"


def _without_bar() -> list[dashboard_models.ValueMapping]:
    return values({str(_NO_STATE): (" ", "transparent")})


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
    points: int | None = None,
    missing: str = FIRST_LINE,
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
        .max_data_points(points or (FEWER_POINTS if linked else MOST_POINTS))
        .targets(list(targets))
        .title(title)
        .description(description)
        .unit(unit)
        .no_value(missing)
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
    *,
    points: int = FEWER_POINTS,
    missing: str = NEW_ROW,
) -> statetimeline.Panel:
    """Return states over time, one bar for each series."""
    return (
        statetimeline.Panel()
        .datasource(DATASOURCE)
        .max_data_points(points)
        .targets(
            [
                query(expression, legend=ROOM + legend),
                instant(no_state(expression), legend=ROOM + missing, ref=STANDS_IN),
            ]
        )
        .title(title)
        .description(description)
        .unit("none")
        .no_value(missing)
        .mappings([*(state_words() if mappings is None else mappings), *_without_bar()])
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
