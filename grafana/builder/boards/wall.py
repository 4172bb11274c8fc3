"""Wall: readable from 5 meters, without variables, scrolling, panel titles or tables."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as models_

from builder import stat_panels as p
from builder.charts import lines
from builder.looks import NEUTRAL, WORSE, plain, prop, values
from builder.parts import TAG, held_variable, instant, instants, label_variable, query
from builder.promql import RECENT, SAME_RESULT, minus, plus, series, silent, with_descriptions
from pvebench.metrics import state_metrics as m
from pvebench.model import run_metrics as f
from pvebench.model.figure import Metric

SOURCE: Final = "pvebench-prometheus"
"""Grafana 11.3 and later show variables in kiosk mode, so the wall has only a hidden one."""
UID: Final = "pvebench-wall"
SLOTS: Final = ("1", "2", "3", "4")
SLOT_LEGEND: Final = "{{title}} · {{storage}} on {{node}}"
TREND: Final = "30d"
"""Time range of the four cases: long enough to include an upgrade."""
TREND_POINTS: Final = 1000
"""Enough to show a line within the first hour; affordable for four series."""
HEADLINE: Final = 54
VALUE: Final = 72
NUMBER: Final = 48
TEXT: Final = 30
"""Font sizes in pixels of a screen of 1920×1080. From 5 meters, smaller text is not readable."""


def build() -> dashboard.Dashboard:
    """Return the wall: 27 units high; a screen of 1280×720 shows it at two thirds."""
    board = (
        dashboard.Dashboard("Storage benchmark / Wall")
        .uid(UID)
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
    )
    tiles = (tile for one in SLOTS for tile in ((2, _delta(one)), (4, _trend(one))))
    counts = p.case_counts().orientation(models.VizOrientation.VERTICAL)
    return p.stacked(
        board,
        (5, (20, _sentence()), (4, _clock())),
        (3, _fixed(p.headline("Details").color_mode(models.BigValueColorMode.NONE), TEXT)),
        (6, *(_hero(slot) for slot in SLOTS)),
        (7, *tiles),
        (6, (8, _fixed(counts, NUMBER)), (16, _activity())),
    )


def _of_slots(name: str) -> dashboard.QueryVariable:
    """Return a hidden variable of all values that a label has in the slots."""
    variable = label_variable(name, name, multi=True, metric=m.WALL_SLOT)
    every = models_.VariableOption(text="All", value="$__all", selected=True)
    return variable.all_value("").current(every).hide(models_.VariableHide.HIDE_VARIABLE)


def _fixed(panel: stat.Panel, size: int) -> p.Panel:
    return panel.text(p.font(size).title_size(TEXT))


def _sentence() -> p.Panel:
    said = p.said("{{headline}}", "Exporter has not answered since {{time}}")
    return _fixed(p.headline("Verdict").targets([*said]), HEADLINE)


def _clock() -> p.Panel:
    text = "Server time. If it stops, the screen is frozen."
    panel = p.number("Clock", text, "vector(time() * 1000)", unit="time:HH:mm")
    return _fixed(panel.text_mode(models.BigValueTextMode.VALUE), VALUE)


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


def _hero(slot: str) -> p.Panel:
    text = "Latest result of one case, selected by `wall` in the settings, otherwise from results."
    panel = (
        p.number(f"Case {slot}", text, "", missing="no run yet")
        # Instant queries: a query over 30 days has no result in the first hour.
        .targets([*_slot(slot, past=False)])
        .unit("iops")
        .color_scheme(plain("blue"))
        .override_by_query("B", [prop("unit", "Bps")])
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
    )
    return _fixed(panel, VALUE)


def _trend(slot: str) -> p.Panel:
    return (
        lines(
            f"Case {slot}, 30 days",
            "The axis begins at zero, so that small variations look small.",
            _slot(slot, past=True),
            unit="iops",
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


def _delta(slot: str) -> p.Panel:
    some = series(m.CHANGE, metric="throughput", scenario="$scenario", workload="$workload")
    change = f"{some} and on ({SAME_RESULT}) {series(m.WALL_SLOT, slot=slot)}"
    signs = (("%", f"round({one})") for one in (plus(change), minus(change)))
    text = "Throughput change from baseline, in percent."
    panel = (
        p.signed(f"Case {slot}, %", text, "", missing="new")
        .targets([*instants(signs)])
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .decimals(0)
        .mappings(values({"0": ("±0", "")}, nothing=("new", NEUTRAL)))
    )
    return _fixed(panel, NUMBER)


def _activity() -> p.Panel:
    """Return the footer: the latest run, what runs or waits, the next case by name."""
    latest, now = f"max({series(m.RUN_TIMESTAMP)})", series(m.CURRENT_RUN)
    limit = f"2.5 * max({series(m.SCHEDULE_INTERVAL)})"
    late = f"({latest} < time() - {limit} unless on () {silent()})"
    alive = f"({latest} unless on () {late} unless on () {silent()})"
    upcoming = f"bottomk(1, {series(m.NEXT_RUN)} and on () {RECENT}) * 1000"
    holds = f"count by (node, reason) ({series(m.HOLD)})"
    queries = (
        ("{{node}}: {{title}} on {{storage}}, running", f"topk(2, {now})"),
        ("alive · last run", f"1000 * {alive}"),
        ("STALE · last run", f"1000 * {late}"),
        ("next: {{title}} on {{storage}}", upcoming),
        ("{{node}}: waiting ({{reason}})", holds),
        ("last run", f"1000 * ({latest} and on () {silent()})"),
        ("no answer since", f"max by (instance) ({silent()}) * 1000"),
    )
    text = "Latest successful run, STALE after 2.5 intervals; running or waiting cases; next run."
    none = "no case is running or due"
    panel = p.number("Activity", text, "", unit="dateTimeFromNow", missing=none)
    panel = panel.targets([*instants(queries)]).orientation(models.VizOrientation.HORIZONTAL)
    panel = panel.text_mode(models.BigValueTextMode.VALUE_AND_NAME)
    for ref in "AE":
        blank = prop("mappings", values({"1": (" ", NEUTRAL), "2": (" ", NEUTRAL)}))
        panel = panel.override_by_query(ref, [blank, prop("unit", "none")])
    for ref in "CG":
        panel = panel.override_by_query(ref, [prop("color", plain(WORSE))])
    return _fixed(panel, TEXT)
