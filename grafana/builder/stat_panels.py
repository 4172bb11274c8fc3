"""Stat panels in the common style, one function per kind, and the layout of a dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, text
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models import text as text_models

from builder import looks
from builder import promql as q
from builder.parts import FALLBACK_REF, described, instant, instants
from pvebench.metrics import state_metrics as m
from pvebench.verdicts.fastest_text import LEAST_JUDGED

EMPTY: Final = (
    " **No data?** Either pvebench has no results yet, or they do not reach Grafana: run "
    "`pvebench doctor`."
)
FIRST_VERDICT: Final = f"a verdict needs {LEAST_JUDGED} runs of a case"
CASES: Final = (
    f"Three counts: cases measured, cases with a verdict ({LEAST_JUDGED} runs or more), and cases "
    "with a metric that is confirmed slower. Before/after counts metrics instead."
)
NOTHING_YET: Final = f"No data yet. A verdict needs {LEAST_JUDGED} runs of a case."
NEW_CASES: Final = f"no verdict yet; {FIRST_VERDICT}"


class Panel(Protocol):
    """Builder of a panel that can be placed."""

    def grid_pos(self, grid_pos: dashboard_models.GridPos) -> Builder[dashboard_models.Panel]:
        """Place the panel."""


Line = tuple[int, *tuple[Panel | tuple[int, Panel], ...]]
"""Height, panels side by side; those without a width share the rest equally."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines below a heading: collapsed, or one section per value of a variable."""

    title: str
    lines: tuple[Line, ...]
    collapsed: bool = True
    repeat: str = ""


def section(title: str, *lines: Line) -> Section:
    """Return a collapsed section."""
    return Section(title, lines)


def fit(rows: int) -> int:
    """Return the height of a table of so many rows; Grafana 12.4 has none that follows them."""
    return -(-(94 + 36 * rows) // 38)


def stacked(board: dashboard.Dashboard, *content: Line | Section) -> dashboard.Dashboard:
    """Place the parts of a dashboard from top to bottom."""
    y = 0
    for part in content:
        if not isinstance(part, Section):
            y = _place(board, y, part)
            continue
        row = dashboard.Row(part.title).grid_pos(dashboard_models.GridPos(x=0, y=y, w=24, h=1))
        row = row.repeat(part.repeat) if part.repeat else row
        y += 1
        if part.collapsed:
            _place(row, y, *part.lines)
        board = board.with_row(row)
        if not part.collapsed:
            y = _place(board, y, *part.lines)
    return board


def _place(target: dashboard.Dashboard | dashboard.Row, y: int, *lines: Line) -> int:
    """Place lines from `y` down; return the end of the last one."""
    for height, *cells in lines:
        pairs = [one if isinstance(one, tuple) else (0, one) for one in cells]
        widths, x = [width for width, _ in pairs], 0
        rest = (24 - sum(widths)) // max(1, widths.count(0))
        for width, panel in pairs:
            where = dashboard_models.GridPos(x=x, y=y, w=width or rest, h=height)
            target.with_panel(panel.grid_pos(where))
            x += width or rest
        y += height
    return y


def intro(content: str) -> Section:
    """Return the last part: question, data flow, and the next step if there is no data."""
    panel = (
        text.Panel()
        .title("About this dashboard")
        .description("The question that this dashboard answers, and the source of its data.")
        .mode(text_models.TextMode.MARKDOWN)
        .content(content + EMPTY)
    )
    return Section("About", ((4, panel),), collapsed=False)


def font(pixels: int) -> common.VizTextDisplayOptions:
    """Return the size of values."""
    return common.VizTextDisplayOptions().value_size(pixels)


def number(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str = "none",
    legend: str = "",
    decimals: int | None = None,
    missing: str = "none yet",
) -> stat.Panel:
    """Return one big number, or one per series; gray by default."""
    value, texts = instant(expression, legend=legend), (title, description)
    built = (
        described(stat.Panel(), texts, value, unit=unit, missing=missing)
        # Otherwise a missing value has the color of the lowest step, which may mean worse.
        .mappings(looks.values({}, nothing=(missing, looks.NEUTRAL)))
        .color_scheme(looks.plain())
        .thresholds(looks.steps(looks.NEUTRAL))
        .color_mode(models.BigValueColorMode.VALUE)
        .graph_mode(models.BigValueGraphMode.NONE)
        .text_mode(models.BigValueTextMode.AUTO)
        .justify_mode(models.BigValueJustifyMode.AUTO)
        .orientation(models.VizOrientation.AUTO)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )
    return built if decimals is None else built.decimals(decimals)


def verdict(
    panel: stat.Panel, colors: dashboard.ThresholdsConfig, *, background: bool = False
) -> stat.Panel:
    """Color a number; use it only if the colors mean better or worse."""
    modes = models.BigValueColorMode
    mode = modes.BACKGROUND_SOLID if background else modes.VALUE
    return panel.color_scheme(looks.by_steps()).thresholds(colors).color_mode(mode)


def signed(
    title: str, description: str, expression: str, *, legend: str = "", missing: str = NEW_CASES
) -> stat.Panel:
    """Return changes in percent with their sign; no unit of Grafana writes a plus sign."""
    signs = ((legend or "better", q.plus(expression)), (legend or "worse", q.minus(expression)))
    panel = number(title, description, "", missing=missing, decimals=1)
    panel = verdict(
        panel, looks.steps(looks.NEUTRAL, (3, looks.POSSIBLY_BETTER), (10, looks.BETTER))
    )
    worse = looks.prop(
        "thresholds", looks.steps(looks.NEUTRAL, (3, looks.POSSIBLY_WORSE), (10, looks.WORSE))
    )
    mode = models.BigValueTextMode
    return (
        panel.targets([*instants(signs)])
        .text_mode(mode.AUTO if legend else mode.VALUE)
        .override_by_query("A", [looks.prop("unit", "prefix:+")])
        .override_by_query("B", [looks.prop("unit", f"prefix:{looks.MINUS}"), worse])
    )


def names(
    title: str, description: str, expression: str, legend: str, *, missing: str = "none yet"
) -> stat.Panel:
    """Return text made of labels, one line per series; `missing` without any."""
    none = instant(q.if_empty(expression), legend=missing, ref=FALLBACK_REF)
    panel = number(title, description, "", missing=missing).text_mode(models.BigValueTextMode.NAME)
    panel = panel.targets([instant(expression, legend=legend), none])
    return panel.orientation(models.VizOrientation.HORIZONTAL)


def counts(
    title: str, description: str, of: Mapping[str, tuple[str, str]], *, missing: str
) -> stat.Panel:
    """Return numbers side by side; `of`: name -> expression, color from 1 up."""
    # No color of its own, which would hide the gray of a held value.
    panel = verdict(number(title, description, "", missing=missing), looks.steps(looks.NEUTRAL))
    panel = panel.targets([*instants((name, one) for name, (one, _) in of.items())])
    for ref, (_, color) in zip("ABCDEF", of.values(), strict=False):
        panel = panel.override_by_query(
            ref, [looks.prop("thresholds", looks.steps(looks.NEUTRAL, (1, color)))]
        )
    return panel.text_mode(models.BigValueTextMode.VALUE_AND_NAME)


def case_counts(**where: str) -> stat.Panel:
    """Return the numbers of cases: measured, with a verdict, slower."""
    measured = f"count({q.series(m.RUN_TIMESTAMP, **where)})"
    judged = q.recorded("node_storage:pvebench_change_state:count_compared", **where)
    slower = q.recorded("node_storage:pvebench_change_state:count_regressed", **where)
    numbers = {
        "measured": (measured, looks.NEUTRAL),
        "judged": (f"sum({judged}) or 0 * {measured}", looks.NEUTRAL),
        "slower": (f"sum({slower})", looks.WORSE),
    }
    return counts("Cases", CASES, numbers, missing="none before the first run")


LATEST_RUN: Final = "instance:pvebench_run_timestamp_seconds:max"
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"


def newest(**where: str) -> stat.Panel:
    """Return the time of the latest successful run."""
    text, latest = "End of the latest successful run.", f"max({q.series(m.RUN_TIMESTAMP, **where)})"
    return number("Latest result", text, f"{latest} * 1000", unit="dateTimeFromNow")


def stale(**where: str) -> stat.Panel:
    """Return the number of stale cases."""
    text = "Cases without a successful run for 2.5 intervals."
    return _alarming("Stale", text, q.recorded(OVERDUE, **where), "> 2.5")


def failing(**where: str) -> stat.Panel:
    """Return the number of failing cases."""
    text = "Cases whose last run failed. The Operations dashboard lists them."
    return _alarming("Failing", text, q.series(m.RUN_SUCCESS, **where), "== 0")


def _alarming(title: str, text: str, cases: str, condition: str) -> stat.Panel:
    panel = number(title, text, q.count_or_zero(f"{cases} {condition}", cases))
    return verdict(panel, looks.steps(looks.NEUTRAL, (1, looks.WORSE)))


def good_or_bad(title: str, text: str, expression: str, words: tuple[str, str, str]) -> stat.Panel:
    """Return the word for 1, in orange that for 0, or that for no value."""
    good, bad, missing = words
    panel = number(title, text, expression, missing=missing)
    texts = looks.values({"0": (bad, ""), "1": (good, "")}, nothing=(missing, looks.NEUTRAL))
    return verdict(panel.mappings(texts), looks.steps(looks.WORSE, (1, looks.NEUTRAL)))


def silence() -> str:
    """Return the sentence of each exporter that stopped answering: labels `measured`, `time`."""
    measured = q.clock("measured", f"{q.recorded(LATEST_RUN)} @ {q.HELD}", "Last measured $time; ")
    known = f"({measured} or on (instance) group by (instance) ({q.recorded(q.LAST_ANSWER)}))"
    joined = f"{q.silent_since()} * on (instance) group_left (measured) {known}"
    return f"topk(1, 2 * {joined})"


SILENT: Final = "{{measured}}the exporter {{instance}} has not answered since {{time}}"


def status() -> Line:
    """Return the line that says whether the board is current, and since when it is not."""
    # One failed scrape does not mean that there was no run.
    latest = q.clock("time", f"last_over_time({q.recorded(LATEST_RUN)}[3m])")
    current = f"topk(1, {latest} and on () {q.RECENT}) unless on () {q.silent()}"
    none = f"last_over_time({q.series(m.RUN_TIMESTAMP)}[3m])"
    unless = f"unless on () {none} unless on () {q.silent()}"
    answers = f"topk(1, group by (instance) ({q.RECENT}))"
    never = f"vector(1) unless on () {q.recorded(q.LAST_ANSWER)} unless on () {q.RECENT}"
    sentences = (
        (SILENT, silence()),
        ("Current. Latest result: {{time}}", current),
        ("The exporter answers. No successful run yet", f"{answers} {unless}"),
        ("No exporter has answered in 30 days. Next step: pvebench doctor", never),
    )
    panel = names("Status", "Whether the exporter answers, and the latest successful run.", "", "")
    panel = panel.targets([*instants(sentences, "ABCZ")]).text(font(16))
    return 2, verdict(panel, looks.steps(looks.UNKNOWN, (2, looks.WORSE)), background=True)


def overall_verdict() -> str:
    """Return the overall verdict with its sentence as a label: 2 regression, 1 partial, 0 ok.

    With several exporters, the worst: Grafana would draw two sentences over each other.
    """
    regression, ok = (q.series(m.VERDICT_INFO, state=state) for state in ("regression", "ok"))
    return f"topk(1, 2 * {regression} or 0 * {ok} or {q.series(m.VERDICT_INFO)})"


def said(legend: str = "{{summary}}", silent_: str = SILENT) -> list[prometheus.Dataquery]:
    """Return the queries of the headline; what an exporter no longer confirms is not said."""
    nothing = f"{q.if_empty(overall_verdict())} unless on () {q.silent()}"
    current = f"{overall_verdict()} unless on () {q.silent()}"
    return instants(((legend, current), (silent_, silence()), (NOTHING_YET, nothing)), "ABZ")


def headline(title: str) -> stat.Panel:
    """Return the overall verdict in one sentence; colored only if it is conclusive."""
    text = (
        "The most important open regression, its size and its start. If there is none: the size of "
        "change that is ruled out, or how many runs are missing. Also orange if the exporter is "
        "down."
    )
    panel = names(title, text, "", "").targets([*said()])
    return verdict(
        panel, looks.steps(looks.BETTER, (1, looks.UNKNOWN), (2, looks.WORSE)), background=True
    )
