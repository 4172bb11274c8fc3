"""Panels in the common style, one function per kind."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, text
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import text as text_models

from builder.looks import (
    BETTER,
    MINUS,
    NEUTRAL,
    POSSIBLY_BETTER,
    POSSIBLY_WORSE,
    UNKNOWN,
    WORSE,
    alarm_steps,
    by_steps,
    plain,
    prop,
    steps,
    values,
)
from builder.parts import FALLBACK_REF, described, instant, place
from builder.promql import (
    HELD,
    LAST_ANSWER,
    RECENT,
    clock,
    count_or_zero,
    if_empty,
    minus,
    plus,
    recorded,
    series,
    silent,
    silent_since,
)
from pvebench.metrics import catalog as m
from pvebench.verdicts.summary import LEAST_JUDGED

EMPTY: Final = (
    " **No data?** Either pvebench has no results yet, or they do not reach Grafana: run "
    "`pvebench selftest`."
)
FIRST_VERDICT: Final = f"a verdict needs {LEAST_JUDGED} runs of a case"
CASES: Final = (
    f"Three counts: cases measured, cases with a verdict ({LEAST_JUDGED} runs or more), and cases "
    "with a metric that is confirmed slower. Regressions counts metrics instead."
)
NOTHING_YET: Final = f"No data yet. A verdict needs {LEAST_JUDGED} runs of a case."
NEW_CASES: Final = f"no verdict yet; {FIRST_VERDICT}"


def intro(content: str, *, y: int = 0) -> text.Panel:
    """Return the text panel: question, data flow, and the next step if there is no data."""
    return (
        text.Panel()
        .title("About this dashboard")
        .description("The question that this dashboard answers, and the source of its data.")
        .mode(text_models.TextMode.MARKDOWN)
        .content(content + EMPTY)
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
    missing: str = "none yet",
) -> stat.Panel:
    """Return one big number, or one per series; gray by default."""
    value, texts = instant(expression, legend=legend), (title, description)
    built = (
        described(stat.Panel(), texts, value, unit=unit, missing=missing)
        # Otherwise a missing value has the color of the lowest step, which may mean worse.
        .mappings(values({}, nothing=(missing, NEUTRAL)))
        .color_scheme(plain())
        .thresholds(steps(NEUTRAL))
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
    mode = models.BigValueColorMode.BACKGROUND if background else models.BigValueColorMode.VALUE
    return panel.color_scheme(by_steps()).thresholds(colors).color_mode(mode)


def signed(
    title: str, description: str, expression: str, *, legend: str = "", missing: str = NEW_CASES
) -> stat.Panel:
    """Return changes in percent with their sign; no unit of Grafana writes a plus sign."""
    panel = number(title, description, "", missing=missing, decimals=1).targets(
        [
            instant(plus(expression), legend=legend or "better"),
            instant(minus(expression), legend=legend or "worse", ref="B"),
        ]
    )
    return (
        verdict(panel, steps(NEUTRAL, (3, POSSIBLY_BETTER), (10, BETTER)))
        .text_mode(models.BigValueTextMode.VALUE if not legend else models.BigValueTextMode.AUTO)
        .override_by_query("A", [prop("unit", "prefix:+")])
        .override_by_query(
            "B",
            [
                prop("unit", f"prefix:{MINUS}"),
                prop("thresholds", steps(NEUTRAL, (3, POSSIBLY_WORSE), (10, WORSE))),
            ],
        )
    )


def names(
    title: str, description: str, expression: str, legend: str, *, missing: str = "none yet"
) -> stat.Panel:
    """Return text made of labels, one line per series; `missing` without any."""
    return (
        number(title, description, "", missing=missing)
        .targets(
            [
                instant(expression, legend=legend),
                instant(if_empty(expression), legend=missing, ref=FALLBACK_REF),
            ]
        )
        .text_mode(models.BigValueTextMode.NAME)
        .orientation(models.VizOrientation.HORIZONTAL)
    )


def case_counts(**where: str) -> stat.Panel:
    """Return the numbers of cases: measured, with a verdict, slower."""
    measured = f"count({series(m.RUN_TIMESTAMP, **where)})"
    judged = recorded("node_storage:pvebench_change_state:count_compared", **where)
    slower = recorded("node_storage:pvebench_change_state:count_regressed", **where)
    panel = number("Cases", CASES, measured, legend="measured", missing="none before the first run")
    return (
        # No color of its own, which would hide the gray of a held value.
        verdict(panel, steps(NEUTRAL))
        .with_target(instant(f"sum({judged}) or 0 * {measured}", legend="judged", ref="B"))
        .with_target(instant(f"sum({slower})", legend="slower", ref="C"))
        .override_by_query("C", [prop("thresholds", steps(NEUTRAL, (1, WORSE)))])
        .text_mode(models.BigValueTextMode.VALUE_AND_NAME)
    )


LATEST_RUN: Final = "instance:pvebench_run_timestamp_seconds:max"
OVERDUE: Final = "scenario_workload:pvebench_result_overdue_ratio:current"


def newest(**where: str) -> stat.Panel:
    """Return the time of the latest successful run."""
    return number(
        "Latest result",
        "End of the latest successful run.",
        f"max({series(m.RUN_TIMESTAMP, **where)}) * 1000",
        unit="dateTimeFromNow",
    )


def stale(**where: str) -> stat.Panel:
    """Return the number of stale cases."""
    text = "Cases without a successful run for 2.5 intervals."
    return _alarming("Stale", text, recorded(OVERDUE, **where), "> 2.5")


def failing(**where: str) -> stat.Panel:
    """Return the number of failing cases."""
    text = "Cases whose last run failed. The Operations dashboard lists them."
    return _alarming("Failing", text, series(m.RUN_SUCCESS, **where), "== 0")


def _alarming(title: str, text: str, cases: str, condition: str) -> stat.Panel:
    panel = number(title, text, count_or_zero(f"{cases} {condition}", cases))
    return verdict(panel, alarm_steps())


def good_or_bad(
    title: str, text: str, expression: str, *, good: str, bad: str, missing: str
) -> stat.Panel:
    """Return the word for 1, and in orange that for 0."""
    panel = number(title, text, expression, missing=missing)
    words = values({"0": (bad, ""), "1": (good, "")}, nothing=(missing, NEUTRAL))
    return verdict(panel.mappings(words), steps(WORSE, (1, NEUTRAL)))


def silence() -> str:
    """Return the sentence of each exporter that stopped answering: labels `measured`, `time`."""
    measured = clock("measured", f"{recorded(LATEST_RUN)} @ {HELD}", "Last measured $time; ")
    known = f"({measured} or on (instance) group by (instance) ({recorded(LAST_ANSWER)}))"
    joined = f"{silent_since()} * on (instance) group_left (measured) {known}"
    return f"topk(1, 2 * {joined})"


STATUS_HEIGHT: Final = 3
"""Grid units for a sentence that has three lines on a phone."""
SILENT: Final = "{{measured}}the exporter {{instance}} has not answered since {{time}}"


def status() -> stat.Panel:
    """Return a line that says whether the board is current, and since when it is not."""
    # One failed scrape does not mean that there was no run.
    runs = f"last_over_time({recorded(LATEST_RUN)}[3m])"
    latest = clock("time", runs)
    answers = f"group by (instance) ({RECENT})"
    current = f"topk(1, {latest} and on () {RECENT}) unless on () {silent()}"
    none = f"last_over_time({series(m.RUN_TIMESTAMP)}[3m])"
    young = f"topk(1, {answers}) unless on () {none} unless on () {silent()}"
    panel = names("", "Whether the exporter answers, and the latest successful run.", "", "")
    targets = [
        instant(silence(), legend=SILENT),
        instant(current, legend="Current. Latest result: {{time}}", ref="B"),
        instant(young, legend="The exporter answers. No successful run yet", ref="C"),
        instant(
            f"vector(1) unless on () {recorded(LAST_ANSWER)} unless on () {RECENT}",
            legend="No exporter has answered in 30 days. Next step: pvebench selftest",
            ref=FALLBACK_REF,
        ),
    ]
    text = common.VizTextDisplayOptions().value_size(16)
    panel = verdict(panel.targets([*targets]), steps(UNKNOWN, (2, WORSE)), background=True)
    return panel.text(text).title("Status").grid_pos(place(0, 0, 24, STATUS_HEIGHT))


def overall_verdict() -> str:
    """Return the overall verdict with its sentence as a label: 2 regression, 1 partial, 0 ok.

    With several exporters, the worst: Grafana would draw two sentences over each other.
    """
    regression, ok = (series(m.VERDICT_INFO, state=state) for state in ("regression", "ok"))
    return f"topk(1, 2 * {regression} or 0 * {ok} or {series(m.VERDICT_INFO)})"


def said(legend: str = "{{summary}}", silent_: str = SILENT) -> list[prometheus.Dataquery]:
    """Return the queries of the headline; what an exporter no longer confirms is not said."""
    nothing = f"{if_empty(overall_verdict())} unless on () {silent()}"
    return [
        instant(f"{overall_verdict()} unless on () {silent()}", legend=legend),
        instant(silence(), legend=silent_, ref="B"),
        instant(nothing, legend=NOTHING_YET, ref=FALLBACK_REF),
    ]


def headline(title: str) -> stat.Panel:
    """Return the overall verdict in one sentence; colored only if it is conclusive."""
    panel = names(
        title,
        "The most important open regression, its size and its start. If there is none: the "
        "size of change that is ruled out, or how many runs are missing. Also orange if the "
        "exporter is down.",
        "",
        "",
    ).targets([*said()])
    return verdict(panel, steps(BETTER, (1, UNKNOWN), (2, WORSE)), background=True).justify_mode(
        models.BigValueJustifyMode.AUTO
    )
