"""Wall: readable from 5 meters, without variables, scrolling, panel titles or tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as models_

from builder.charts import lines
from builder.looks import NEUTRAL, WORSE, plain, prop, values
from builder.panels import case_counts, headline, number, said, signed
from builder.parts import TAG, held_variable, instant, label_variable, place, query
from builder.promql import RECENT, SAME_RESULT, minus, plus, series, silent, with_descriptions
from pvebench.metrics import catalog as m
from pvebench.model import figures as f
from pvebench.model.metric import Metric

SOURCE: Final = "pvebench-prometheus"
"""Grafana 11.3 and later show variables in kiosk mode, so the wall has only a hidden one."""
UID: Final = "pvebench-wall"
"""Both walls begin with it."""
SLOTS: Final = ("1", "2", "3", "4")
SLOT_LEGEND: Final = "{{title}} · {{storage}} on {{node}}"
THRESHOLDS: Final = {"mode": "thresholds"}
TREND: Final = "30d"
"""Time range of the four cases: long enough to include an upgrade."""
TREND_POINTS: Final = 1000
"""Enough to show a line within the first hour; affordable for four series."""
SILENT_BRIEFLY: Final = "Exporter has not answered since {{time}}"


@dataclass(frozen=True, slots=True)
class Size:
    """Screen layout: heights of the rows in grid units, font sizes in pixels.

    Attributes:
        text: smallest font size: from 5 meters, smaller text is not readable.
    """

    rows: tuple[int, int, int, int, int]
    headline: int
    value: int
    number: int
    text: int


FULL_HD: Final = Size(rows=(5, 3, 6, 7, 6), headline=54, value=72, number=48, text=30)
HD: Final = Size(rows=(4, 2, 4, 4, 4), headline=36, value=46, number=30, text=20)


def build() -> dashboard.Dashboard:
    """Return the wall for 1920×1080: 27 units high."""
    return _build_wall("Wall", UID, FULL_HD)


def build_small() -> dashboard.Dashboard:
    """Return the wall for 1280×720, or 1920×1080 at a device scale of 1.5: 18 units high."""
    return _build_wall("Wall 720", f"{UID}-720", HD)


def _build_wall(title: str, uid: str, size: Size) -> dashboard.Dashboard:
    tops = [sum(size.rows[:index]) for index in range(len(size.rows))]
    (first, detail, hero, trend, footer), height = tops, size.rows
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
        .with_variable(held_variable())
        .with_variable(_of_slots("scenario"))
        .with_variable(_of_slots("workload"))
        .with_panel(_sentence(size).grid_pos(place(0, first, 20, height[0])))
        .with_panel(_clock(size).grid_pos(place(20, first, 4, height[0])))
        .with_panel(_detail(size).grid_pos(place(0, detail, 24, height[1])))
    )
    for index, slot in enumerate(SLOTS):
        x = 6 * index
        built = (
            built.with_panel(_hero(slot, size).grid_pos(place(x, hero, 6, height[2])))
            .with_panel(_delta(slot, size).grid_pos(place(x, trend, 2, height[3])))
            .with_panel(_trend(slot).grid_pos(place(x + 2, trend, 4, height[3])))
        )
    return built.with_panel(_cases(size).grid_pos(place(0, footer, 8, height[4]))).with_panel(
        _activity(size).grid_pos(place(8, footer, 16, height[4]))
    )


def _of_slots(name: str) -> dashboard.QueryVariable:
    """Return a hidden variable of all values that a label has in the slots."""
    variable = label_variable(name, name, multi=True, metric=m.WALL_SLOT)
    every = models_.VariableOption(text="All", value="$__all", selected=True)
    return variable.all_value("").current(every).hide(models_.VariableHide.HIDE_VARIABLE)


def _fixed(panel: stat.Panel, size: int, title: int) -> stat.Panel:
    text = common.VizTextDisplayOptions().value_size(size).title_size(title)
    return panel.text(text)


def _sentence(size: Size) -> stat.Panel:
    panel = headline("Verdict").targets([*said("{{headline}}", SILENT_BRIEFLY)])
    return _fixed(panel, size.headline, size.text)


def _detail(size: Size) -> stat.Panel:
    panel = headline("Details").color_mode(models.BigValueColorMode.NONE)
    return _fixed(panel, size.text, size.text)


def _clock(size: Size) -> stat.Panel:
    text = "Server time. If it stops, the screen is frozen."
    panel = number("Clock", text, "vector(time() * 1000)", unit="time:HH:mm")
    return _fixed(panel.text_mode(models.BigValueTextMode.VALUE), size.value, size.text)


def _in_slot(metric: Metric, slot: str, **more: str) -> str:
    # The current selection applies to the past too: earlier cases of the slot are other cases.
    slot_case = f"topk(1, {series(m.WALL_SLOT, slot=slot, **more)} @ end())"
    # Hidden variables name the cases of all slots: reading every case for one costs much.
    some = series(metric, scenario="$scenario", workload="$workload")
    value = f"{some} * on ({SAME_RESULT}) group_left (title) {slot_case}"
    return with_descriptions(value, workload=False)


def _slot(slot: str, *, past: bool) -> list[prometheus.Dataquery]:
    """Return the queries of a slot: operations or bytes, one of which has a result."""
    figures = (("A", f.IOPS.metric, "iops"), ("B", f.BANDWIDTH.metric, "bandwidth"))
    ask = query if past else instant
    return [
        ask(_in_slot(metric, slot, figure=figure), legend=SLOT_LEGEND, ref=ref)
        for ref, metric, figure in figures
    ]


def _hero(slot: str, size: Size) -> stat.Panel:
    # An instant query: a query over 30 days has no result in the first hour.
    panel = (
        number(
            f"Case {slot}",
            "Latest successful result of one case, selected by `wall` in the settings, otherwise "
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
    return _fixed(panel, size.value, size.text)


def _trend(slot: str) -> timeseries.Panel:
    return (
        lines(
            f"Case {slot}, 30 days",
            "The axis begins at zero, so that small variations look small.",
            _slot(slot, past=True),
            unit="iops",
            linked=False,
            zero=True,
            missing="…",
        )
        .max_data_points(TREND_POINTS)
        .time_from(TREND)
        .hide_time_override(True)
        .line_width(3)
        .fill_opacity(15)
        .color_scheme(plain("blue"))
        .override_by_query("B", [prop("unit", "Bps")])
        .legend(common.VizLegendOptions().show_legend(False))
        .axis_placement(models.AxisPlacement.HIDDEN)
    )


def _delta(slot: str, size: Size) -> stat.Panel:
    slot_case = series(m.WALL_SLOT, slot=slot)
    some = series(m.CHANGE, metric="throughput", scenario="$scenario", workload="$workload")
    change = f"{some} and on ({SAME_RESULT}) {slot_case}"
    panel = (
        signed(f"Case {slot}, %", "Throughput change from baseline, in percent.", "", missing="new")
        .targets(
            [
                instant(f"round({plus(change)})", legend="%"),
                instant(f"round({minus(change)})", legend="%", ref="B"),
            ]
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .decimals(0)
        .mappings(values({"0": ("±0", "")}, nothing=("new", NEUTRAL)))
    )
    return _fixed(panel, size.number, size.text)


def _cases(size: Size) -> stat.Panel:
    return _fixed(case_counts().orientation(models.VizOrientation.VERTICAL), size.number, size.text)


def _activity(size: Size) -> stat.Panel:
    """Return the footer: the latest run, what runs or waits, the next case by name."""
    latest, now = f"max({series(m.RUN_TIMESTAMP)})", series(m.CURRENT_RUN)
    limit = f"2.5 * max({series(m.SCHEDULE_INTERVAL)})"
    late = f"({latest} < time() - {limit} unless on () {silent()})"
    alive = f"({latest} unless on () {late} unless on () {silent()})"
    upcoming = f"bottomk(1, {series(m.NEXT_RUN)} and on () {RECENT}) * 1000"
    holds = f"count by (node, reason) ({series(m.HOLD)})"
    targets = [
        instant(f"topk(2, {now})", legend="{{node}}: {{title}} on {{storage}}, running", ref="A"),
        instant(f"1000 * {alive}", legend="alive · last run", ref="B"),
        instant(f"1000 * ({latest} and on () {silent()})", legend="last run", ref="F"),
        instant(f"1000 * {late}", legend="STALE · last run", ref="C"),
        instant(upcoming, legend="next: {{title}} on {{storage}}", ref="D"),
        instant(holds, legend="{{node}}: waiting ({{reason}})", ref="E"),
        instant(f"max by (instance) ({silent()}) * 1000", legend="no answer since", ref="G"),
    ]
    panel = (
        number(
            "Activity",
            "Latest successful run, STALE after 2.5 intervals; running or waiting cases; next run.",
            "",
            unit="dateTimeFromNow",
            missing="no case is running or due",
        )
        .targets([*targets])
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .orientation(models.VizOrientation.HORIZONTAL)
    )
    for ref in "AE":
        blank = prop("mappings", values({"1": (" ", NEUTRAL), "2": (" ", NEUTRAL)}))
        panel = panel.override_by_query(ref, [blank, prop("unit", "none")])
    for ref in "CG":
        panel = panel.override_by_query(ref, [prop("color", plain(WORSE))])
    return _fixed(panel, size.text, size.text)
