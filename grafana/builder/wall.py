"""Wall: readable from 5 meters, without variables, scrolling or tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.models import common as models

from builder.bars import ranking
from builder.looks import NEUTRAL, WORSE, plain, prop, steps, values
from builder.panels import (
    CASES,
    NEW_ROW,
    PADDING,
    headline,
    lines,
    no_state,
    number,
    said,
    signed,
    timeline,
)
from builder.parts import FALLBACK_REF, TAG, held_variable, place
from builder.promql import (
    SAME_CASE,
    SAME_RESULT,
    clock,
    minus,
    plus,
    recorded,
    series,
    silent,
    with_descriptions,
)
from pvebench.metrics import catalog as m

FIXED: Final = models.DataSourceRef(type_val="prometheus", uid="pvebench-prometheus")
"""Grafana 11.3 and later show variables in kiosk mode, so the wall has only a hidden one."""
SLOTS: Final = ("1", "2", "3", "4")
SLOT_LEGEND: Final = "{{title}} · {{storage}} on {{node}}"
THRESHOLDS: Final = {"mode": "thresholds"}
TREND: Final = "30d"
"""Time range of the four cases: long enough to include an upgrade."""
TREND_POINTS: Final = 1000
"""Enough to show a line within the first hour; affordable for four series."""
TREND_STEP: Final = "30m"
"""Step of Grafana's queries with these points and this range."""


@dataclass(frozen=True, slots=True)
class Size:
    """Screen layout: heights of strips and trends in grid units, font sizes in pixels."""

    strips: tuple[int, int, int, int]
    trend: int
    sentence: int
    value: int
    label: int
    text: int
    bars: int
    axes: bool


FULL_HD: Final = Size(
    strips=(6, 8, 7, 6), trend=4, sentence=44, value=52, label=26, text=34, bars=3, axes=True
)
# A title takes 40 pixels of a panel: a small trend has no space for axes.
HD: Final = Size(
    strips=(4, 6, 4, 4), trend=3, sentence=28, value=32, label=17, text=22, bars=2, axes=False
)


def build() -> dashboard.Dashboard:
    """Return the wall for 1920×1080: 27 units high."""
    return _build_wall("Wall", "pvebench-wall", FULL_HD)


def build_small() -> dashboard.Dashboard:
    """Return the wall for 1280×720, or 1920×1080 at a device scale of 1.5: 18 units high."""
    return _build_wall("Wall 720", "pvebench-wall-720", HD)


def _build_wall(title: str, uid: str, size: Size) -> dashboard.Dashboard:
    first, second, third, fourth = size.strips
    top, middle, low = first, first + second, first + second + third
    upper = first // 2
    built = (
        dashboard.Dashboard(f"Storage benchmark / {title}")
        .uid(uid)
        .description("For a wall screen: fixed data source, no controls, readable from a distance.")
        .tags([TAG])
        .time("now-14d", "now")
        .refresh("1m")
        .timezone("browser")
        .timepicker(dashboard.TimePicker().hidden(True))
        .readonly()
        .with_variable(held_variable(FIXED))
        .with_panel(_sentence(size).grid_pos(place(0, 0, 20, first)))
        .with_panel(_age(size).grid_pos(place(20, 0, 4, first - upper)))
        .with_panel(_clock(size).grid_pos(place(20, first - upper, 4, upper)))
    )
    for index, slot in enumerate(SLOTS):
        x, high = 6 * index, second - size.trend
        built = (
            built.with_panel(_hero(slot, size).grid_pos(place(x, top, 4, high)))
            .with_panel(_delta(slot, size).grid_pos(place(x + 4, top, 2, high)))
            .with_panel(_trend(slot, size).grid_pos(place(x, top + high, 6, size.trend)))
        )
    return (
        built.with_panel(_fastest(size).grid_pos(place(0, middle, 14, third)))
        .with_panel(_cases(size).grid_pos(place(14, middle, 10, third)))
        .with_panel(_history().grid_pos(place(0, low, 14, fourth)))
        .with_panel(_now(size).grid_pos(place(14, low, 10, fourth)))
    )


def _fixed(panel: stat.Panel, size: int, title: int) -> stat.Panel:
    text = common.VizTextDisplayOptions().value_size(size).title_size(title)
    return panel.datasource(FIXED).text(text)


def _ask(
    expression: str, *, legend: str = "", ref: str = "A", past: bool = False
) -> prometheus.Dataquery:
    """Return a query to the fixed data source; the common queries use a variable."""
    built = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(FIXED)
    built = built.range() if past else built.instant()
    return built.legend_format(legend) if legend else built


def _sentence(size: Size) -> stat.Panel:
    panel = headline("Verdict")
    return _fixed(
        panel.targets([target.datasource(FIXED) for target in said()]), size.sentence, size.label
    )


def _age(size: Size) -> stat.Panel:
    # Ages in intervals would need a second number; days and hours are faster to read.
    overdue = f"min(time() - {series(m.RUN_TIMESTAMP)})"
    limit = f"max({series(m.SCHEDULE_INTERVAL)})"
    panel = number(
        "Latest result",
        "Age of the latest successful run. STALE after 2.5 intervals.",
        overdue,
        unit="dtdurations",
        decimals=0,
        missing="none yet",
    )
    late = _ask(f"(min(time() - {series(m.RUN_TIMESTAMP)}) > bool 2.5 * {limit}) > 0", ref="B")
    panel = (
        panel.targets([_ask(overdue, legend="age"), late])
        .text_mode(models.BigValueTextMode.VALUE)
        .override_by_query(
            "B",
            [
                prop("mappings", values({"1": ("STALE", WORSE)})),
                prop("unit", "none"),
                prop("displayName", "late"),
                prop("color", {"mode": "thresholds"}),
            ],
        )
    )
    return _fixed(panel, size.text, size.label)


def _clock(size: Size) -> stat.Panel:
    expression = "vector(time() * 1000)"
    panel = number(
        "Clock", "Server time. If it stops, the screen is frozen.", expression, unit="time:HH:mm"
    )
    return _fixed(panel.targets([_ask(expression)]), size.text, size.label)


def _in_slot(metric: m.Metric, slot: str, **more: str) -> str:
    # The current selection applies to the past too: earlier cases of the slot are other cases.
    slot_case = f"topk(1, {series(m.WALL_SLOT, slot=slot, **more)} @ end())"
    value = f"{series(metric)} * on ({SAME_RESULT}) group_left (title) {slot_case}"
    return with_descriptions(value, workload=False)


def _slot(slot: str, *, past: bool) -> list[prometheus.Dataquery]:
    """Return the queries of a slot: operations or bytes, one of which has a result."""
    figures = (("A", m.IOPS, "iops"), ("B", m.BANDWIDTH, "bandwidth"))
    return [
        _ask(_in_slot(metric, slot, figure=figure), legend=SLOT_LEGEND, ref=ref, past=past)
        for ref, metric, figure in figures
    ]


def _hero(slot: str, size: Size) -> stat.Panel:
    # An instant query: a query over 30 days has no result in the first hour.
    panel = (
        number(
            f"Case {slot}",
            "Latest successful result of one case, selected by `wall` in the settings, by default "
            "from the results.",
            "",
            missing="no run yet",
        )
        .targets(list(_slot(slot, past=False)))
        .unit("iops")
        .color_scheme(plain("blue"))
        .override_by_query("B", [prop("unit", "Bps")])
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
    )
    return _fixed(panel, size.value, size.label - 6)


def _trend(slot: str, size: Size) -> timeseries.Panel:
    return (
        lines(
            f"Case {slot}, 30 days",
            "The axis begins at zero, so that small variations look small.",
            _slot(slot, past=True),
            unit="iops",
            linked=False,
            zero=True,
            missing="the line begins within the first hour",
        )
        .datasource(FIXED)
        .max_data_points(TREND_POINTS)
        .time_from(TREND)
        .hide_time_override(True)
        .line_width(3)
        .fill_opacity(15)
        .color_scheme(plain("blue"))
        .override_by_query("B", [prop("unit", "Bps")])
        .legend(common.VizLegendOptions().show_legend(False))
        .axis_placement(models.AxisPlacement.AUTO if size.axes else models.AxisPlacement.HIDDEN)
    )


def _delta(slot: str, size: Size) -> stat.Panel:
    slot_case = series(m.WALL_SLOT, slot=slot)
    change = f"{series(m.CHANGE, metric='throughput')} and on ({SAME_RESULT}) {slot_case}"
    panel = signed(
        "%",  # a longer title is cut
        f"Case {slot}: throughput change from baseline.",
        "",
        missing="none yet",
    ).targets([_ask(plus(change)), _ask(minus(change), ref="B")])
    return _fixed(panel, size.text, size.label)


def _fastest(size: Size) -> bargauge.Panel:
    slot = f"max by (job, instance, node, workload) ({series(m.WALL_SLOT, slot='1')})"
    ranked = series(m.SCENARIO_RANK_INFO, excluded="")
    candidates = (
        f"{series(m.IOPS)} * on (job, instance, node, workload) group_left () {slot} "
        f"and on ({SAME_CASE}) {ranked}"
    )
    expression = (
        f"sort_desc({with_descriptions(f'topk({size.bars}, {candidates})', workload=False)})"
    )
    panel = ranking(
        "Fastest configurations for case 1",
        "Durable configurations only, for the workload of case 1 on its node.",
        expression,
        unit="iops",
        legend="",
        missing="no data before the first run of case 1",
    )
    return _bars(panel, [_ask(expression, legend="{{configuration}}, {{storage}}")], size)


def _cases(size: Size) -> stat.Panel:
    compared = "node_storage:pvebench_change_state:count_compared"
    slower = "node_storage:pvebench_change_state:count_regressed"
    measured = f"count({series(m.RUN_TIMESTAMP)})"
    panel = (
        number("Cases", CASES, "", missing="none before the first run")
        .targets(
            [
                _ask(measured, legend="measured", ref="A"),
                _ask(
                    f"sum({recorded(compared)}) or 0 * {measured}", legend="with a verdict", ref="B"
                ),
                _ask(f"sum({recorded(slower)})", legend="slower", ref="C"),
            ]
        )
        .override_by_query(
            "C", [prop("thresholds", steps(NEUTRAL, (1, WORSE))), prop("color", THRESHOLDS)]
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .orientation(models.VizOrientation.VERTICAL)
    )
    return _fixed(panel, size.text + 8, size.label)


def _bars(
    panel: bargauge.Panel, targets: Sequence[prometheus.Dataquery], size: Size
) -> bargauge.Panel:
    text = common.VizTextDisplayOptions().value_size(size.label - 2).title_size(size.label - 4)
    # Nothing scrolls on a wall.
    return panel.datasource(FIXED).targets(list(targets)).text(text).min_viz_height(16)


def _history() -> statetimeline.Panel:
    judged = series(m.CHANGE_STATE, metric="throughput")
    slots = f"topk by ({SAME_RESULT}) (1, {series(m.WALL_SLOT)} @ end())"
    expression = f"{judged} * on ({SAME_RESULT}) group_left (title) {slots}"
    legend = "{{title}}"
    panel = timeline(
        "Verdicts, 30 days", "Blue: faster; gray: unchanged; orange: slower.", expression, legend
    )
    return (
        panel.datasource(FIXED)
        .legend(common.VizLegendOptions().show_legend(False))
        .targets(
            [
                _ask(expression, legend=PADDING + legend, past=True),
                _ask(
                    no_state(expression, step=TREND_STEP),
                    legend=PADDING + NEW_ROW,
                    ref=FALLBACK_REF,
                ),
            ]
        )
        .max_data_points(TREND_POINTS)
        .time_from(TREND)
    )


def _now(size: Size) -> stat.Panel:
    now = f"count by (node, title) ({series(m.CURRENT_RUN)})"
    ends = f"max({series(m.CYCLE_EXPECTED_END)} > time()) * 1000"
    upcoming = f"min({series(m.NEXT_RUN)} > time()) * 1000"
    paused = f"count by (node) ({series(m.HOLD, reason='paused')})"
    held = f"count by (node, reason) ({series(m.HOLD, reason='quiet_hours|busy|load|turn')})"
    by = "count by (pve_version, kernel_version, qemu_version)"
    software = f"{by} ({series(m.ENVIRONMENT_INFO)})"
    versions = "PVE {{pve_version}}, kernel {{kernel_version}}, QEMU {{qemu_version}}"
    without_value = [prop("mappings", values({"1": (" ", NEUTRAL)})), prop("unit", "none")]
    panel = (
        number(
            "Activity",
            "Running or waiting cases, end of the cycle or next run, and software of the latest "
            "results.",
            "",
            unit="dateTimeFromNow",
            missing="no case is running or due",
        )
        .targets(
            [
                _ask(now, legend="{{node}}: running {{title}}", ref="A"),
                _ask(paused, legend="{{node}}: PAUSED", ref="E"),
                _ask(held, legend="{{node}}: waiting ({{reason}})", ref="F"),
                _ask(ends, legend="cycle ends", ref="B"),
                _ask(upcoming, legend="next run", ref="C"),
                _ask(software, legend=versions, ref="D"),
                _ask(clock("time", silent()), legend="unknown since {{time}}", ref="G"),
            ]
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .orientation(models.VizOrientation.HORIZONTAL)
    )
    for ref in "AEFG":
        panel = panel.override_by_query(ref, without_value)
    # The number of nodes is not a date.
    count = [prop("mappings", values({str(n): (" ", NEUTRAL) for n in range(1, 33)}))]
    panel = panel.override_by_query("D", [*count, prop("unit", "none")])
    return _fixed(panel, size.label, size.label - 4)
