"""Wall: what can be read from five metres. No variable, no scrolling, no table."""

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
)
from grafana_foundation_sdk.models import common as models

from builder.bars import changes_bars, ranking
from builder.looks import BETTER, SAME, WORSE, change_steps, plain, prop, steps, values
from builder.panels import names, number, timeline, verdict
from builder.parts import TAG, place
from builder.promql import SAME_RESULT, recorded, series
from pvebench.metrics.catalog import (
    BANDWIDTH,
    CHANGE,
    CHANGE_STATE,
    CURRENT_RUN,
    CYCLE_EXPECTED_END,
    ENVIRONMENT_INFO,
    ENVIRONMENT_START,
    IOPS,
    NEXT_RUN,
    RUN_TIMESTAMP,
    SCHEDULE_INTERVAL,
    WALL_SLOT,
    Metric,
)

FIXED: Final = models.DataSourceRef(type_val="prometheus", uid="pvebench-prometheus")
"""Variables are visible in kiosk mode since Grafana 11.3, so the wall has none at all."""
SLOTS: Final = ("1", "2", "3", "4")


@dataclass(frozen=True, slots=True)
class Size:
    """A screen: heights of the strips and of a case's change in grid units, fonts in pixels."""

    strips: tuple[int, int, int, int]
    delta: int
    headline: int
    value: int
    label: int
    text: int


FULL_HD: Final = Size(strips=(5, 9, 7, 7), delta=3, headline=84, value=64, label=28, text=40)
HD: Final = Size(strips=(4, 6, 4, 4), delta=2, headline=54, value=32, label=18, text=26)


def build() -> dashboard.Dashboard:
    """Return the wall for 1920×1080: 28 units high."""
    return _wall("Wall", "pvebench-wall", FULL_HD)


def build_small() -> dashboard.Dashboard:
    """Return the wall for 1280×720, or 1920×1080 at a device scale of 1.5: 18 units high."""
    return _wall("Wall 720", "pvebench-wall-720", HD)


def _wall(title: str, uid: str, size: Size) -> dashboard.Dashboard:
    first, second, third, fourth = size.strips
    top, middle, low = first, first + second, first + second + third
    built = (
        dashboard.Dashboard(f"Storage benchmark / {title}")
        .uid(uid)
        .description("For a screen on the wall: fixed data source, no controls, reads from afar.")
        .tags([TAG])
        .time("now-14d", "now")
        .refresh("1m")
        .timezone("browser")
        .timepicker(dashboard.TimePicker().hidden(True))
        .readonly()
        .with_panel(_verdict(size).grid_pos(place(0, 0, 9, first)))
        .with_panel(_software(size).grid_pos(place(9, 0, 8, first)))
        .with_panel(_age(size).grid_pos(place(17, 0, 4, first)))
        .with_panel(_clock(size).grid_pos(place(21, 0, 3, first)))
    )
    for index, slot in enumerate(SLOTS):
        high = second - size.delta
        built = built.with_panel(_hero(slot, size).grid_pos(place(6 * index, top, 6, high)))
        below = place(6 * index, top + high, 6, size.delta)
        built = built.with_panel(_delta(slot, size).grid_pos(below))
    return (
        built.with_panel(_fastest(size).grid_pos(place(0, middle, 12, third)))
        .with_panel(_changes(size).grid_pos(place(12, middle, 12, third)))
        .with_panel(_history(size).grid_pos(place(0, low, 18, fourth)))
        .with_panel(_next(size).grid_pos(place(18, low, 6, fourth)))
    )


def _fixed(panel: stat.Panel, size: int, title: int) -> stat.Panel:
    text = common.VizTextDisplayOptions().value_size(size).title_size(title)
    return panel.datasource(FIXED).text(text)


def _verdict(size: Size) -> stat.Panel:
    name = "node_storage:pvebench_change_state:count_regressed"
    panel = number(
        "Cases slower than before",
        "Cases of which a figure is confirmed worse than its baseline.",
        f"sum({recorded(name)})",
        missing="NO BASELINE YET",
    ).mappings(values({"0": ("ALL STEADY", BETTER)}))
    coloured = verdict(panel.unit("suffix: SLOWER"), steps(BETTER, (1, WORSE)), background=True)
    return _fixed(_on(coloured, f"sum({recorded(name)})"), size.headline, size.label)


def _on(panel: stat.Panel, expression: str, *, legend: str = "") -> stat.Panel:
    """Ask the fixed data source: the house's queries ask a variable one."""
    return panel.targets([_ask(expression, legend=legend)])


def _ask(
    expression: str, *, legend: str = "", ref: str = "A", past: bool = False
) -> prometheus.Dataquery:
    built = prometheus.Dataquery().expr(expression).ref_id(ref).datasource(FIXED)
    built = built.range() if past else built.instant()
    return built.legend_format(legend) if legend else built


def _software(size: Size) -> stat.Panel:
    by = "count by (pve_version, kernel_version, qemu_version)"
    rest = "kernel {{kernel_version}}, QEMU {{qemu_version}}"
    panel = names("Software", "The environments of the newest results.", "", "")
    with_pve = _ask(
        f"{by} ({series(ENVIRONMENT_INFO, pve_version='.+')})",
        legend="PVE {{pve_version}}, " + rest,
    )
    without = _ask(f"{by} ({series(ENVIRONMENT_INFO, pve_version='')})", legend=rest, ref="B")
    return _fixed(panel.targets([with_pve, without]), size.text, size.text)


def _age(size: Size) -> stat.Panel:
    # Ages in intervals would need a second number; days and hours are read at a glance.
    overdue = f"min(time() - {series(RUN_TIMESTAMP)})"
    limit = f"max({series(SCHEDULE_INTERVAL)})"
    panel = number(
        "Newest result",
        "Age of the newest good run; STALE when two are missing.",
        overdue,
        unit="dtdurations",
        decimals=0,
        missing="NO DATA",
    )
    late = _ask(f"(min(time() - {series(RUN_TIMESTAMP)}) > bool 2.5 * {limit}) > 0", ref="B")
    panel = panel.targets([_ask(overdue, legend="age"), late]).override_by_query(
        "B",
        [
            prop("mappings", values({"1": ("STALE", WORSE)})),
            prop("unit", "none"),
            prop("displayName", "late"),
            prop("color", {"mode": "thresholds"}),
        ],
    )
    return _fixed(panel, size.text, size.label)


def _clock(size: Size) -> stat.Panel:
    expression = "vector(time() * 1000)"
    panel = number(
        "Clock",
        "Time of the server: when it stands still, this screen is dead.",
        expression,
        unit="time:HH:mm",
    )
    return _fixed(_on(panel, expression), size.value, size.label)


def _in_slot(metric: Metric, slot: str, **more: str) -> str:
    # The present choice, for the past as well: what a slot showed before is another case's story.
    chosen = f"({series(WALL_SLOT, slot=slot, **more)} @ end())"
    return f"{series(metric)} * on ({SAME_RESULT}) group_left (title) {chosen}"


def _hero(slot: str, size: Size) -> stat.Panel:
    panel = (
        number(
            f"Case {slot}",
            "The case of this slot: value and its last 14 days. Chosen by `wall` in the settings.",
            "",
            graph=True,
            missing="NO DATA",
        )
        .targets(
            [
                _ask(_in_slot(IOPS, slot, figure="iops"), legend="{{title}}", ref="A", past=True),
                _ask(
                    _in_slot(BANDWIDTH, slot, figure="bandwidth"),
                    legend="{{title}}",
                    ref="B",
                    past=True,
                ),
            ]
        )
        .unit("iops")
        # From zero, so that noise looks as small as it is.
        .min(0)
        .color_scheme(plain("blue"))
        .override_by_query("B", [prop("unit", "Bps")])
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
    )
    return _fixed(panel, size.value, size.label)


def _delta(slot: str, size: Size) -> stat.Panel:
    change = series(CHANGE, metric="throughput")
    against = f"{change} * on ({SAME_RESULT}) group_left (title) {series(WALL_SLOT, slot=slot)}"
    panel = number(
        f"Case {slot} against its baseline",
        "Change of its throughput; plus is better.",
        against,
        unit="percentunit",
        decimals=1,
        missing="no baseline yet",
    )
    return _fixed(_on(verdict(panel, change_steps()), against), size.text, size.label)


def _fastest(size: Size) -> bargauge.Panel:
    slot = f"max by (job, instance, node, workload, direction) ({series(WALL_SLOT, slot='1')})"
    mine = f"{series(IOPS)} * on (job, instance, node, workload, direction) group_left () {slot}"
    expression = f"sort_desc(topk(3, {mine}))"
    panel = ranking(
        "Fastest settings for case 1",
        "The three fastest configurations of the first slot's workload on its node.",
        expression,
        unit="iops",
        legend="",
    )
    return _bars(panel, [_ask(expression, legend="{{scenario}}")], size)


def _changes(size: Size) -> bargauge.Panel:
    judged = f"{series(CHANGE)} and ({series(CHANGE_STATE)} != 0)"
    legend = "{{workload}} {{metric}}, {{storage}}"
    worst = f"sort_desc(abs(bottomk(2, {judged} < 0)))"
    best = f"topk(1, {judged} > 0)"
    panel = changes_bars("Largest changes", "Beyond noise: the worst two, the best one.", "", "")
    targets = [
        _ask(worst, legend=f"worse: {legend}"),
        _ask(best, legend=f"better: {legend}", ref="B"),
    ]
    return _bars(panel, targets, size)


def _bars(
    panel: bargauge.Panel, targets: Sequence[prometheus.Dataquery], size: Size
) -> bargauge.Panel:
    text = common.VizTextDisplayOptions().value_size(size.label - 2).title_size(size.label - 2)
    return panel.datasource(FIXED).targets(list(targets)).text(text)


def _history(size: Size) -> statetimeline.Panel:
    # The small screen has room for a line of each case, not for two.
    judged = series(CHANGE_STATE, metric="throughput" if size is HD else "throughput|latency_p99")
    slots = f"max by ({SAME_RESULT}, title) ({series(WALL_SLOT)} @ end())"
    expression = f"{judged} * on ({SAME_RESULT}) group_left (title) {slots}"
    legend = "{{title}} {{metric}}"
    panel = timeline(
        "Verdicts of the four cases, 30 days",
        "Blue faster, grey same, orange slower; the pattern counts.",
        expression,
        legend,
    )
    return (
        panel.datasource(FIXED)
        .legend(common.VizLegendOptions().show_legend(False))
        .targets([_ask(expression, legend=legend, past=True)])
        .time_from("30d")
    )


def _next(size: Size) -> stat.Panel:
    now = f"count by (title) ({series(CURRENT_RUN)})"
    ends = f"max({series(CYCLE_EXPECTED_END)} > time()) * 1000"
    waits = f"min({series(NEXT_RUN)} > time()) * 1000"
    changed = f"max({series(ENVIRONMENT_START)}) * 1000"
    panel = (
        number(
            "Next",
            "What runs now, when the cycle ends or the next one begins, and when the "
            "software last changed.",
            "",
            unit="dateTimeFromNow",
        )
        .targets(
            [
                _ask(now, legend="now: {{title}}", ref="A"),
                _ask(ends, legend="cycle ends", ref="B"),
                _ask(waits, legend="next run", ref="C"),
                _ask(changed, legend="software changed", ref="D"),
            ]
        )
        .override_by_query(
            "A", [prop("mappings", values({"1": (" ", SAME)})), prop("unit", "none")]
        )
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
        .orientation(models.VizOrientation.HORIZONTAL)
    )
    return _fixed(panel, size.text - 8, size.label - 8)
