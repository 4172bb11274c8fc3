"""Tables of changes: the open ones, and a log with the closed ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from grafana_foundation_sdk.builders import dashboard, table

from builder.looks import BETTER, POSSIBLY_WORSE, WORSE, prop, rated
from builder.promql import changes_of, coded, label, node_list_pattern, series
from builder.tables import HIDDEN, Column, Look, rows, width
from pvebench.metrics import state_metrics as m

CHANGE: Final = "job, instance, change"
LABELS: Final = "severity, state, since, cause, summary"
WEEK: Final = "7 * 86400"
OPEN: Final = "1"
SEVERITIES: Final = {
    "info": ("improvement", BETTER),
    "warning": ("regression", POSSIBLY_WORSE),
    "critical": ("critical", WORSE),
}
"""Label -> text, color; its position is its number in a table: words have no thresholds."""
LESS: Final = {"summary": ".* (higher|lower|longer|shorter|as long|as high|as large)\\\\b.*"}
"""Sentences that name what is better when less, such as a latency."""
_WRAPPED: Final = prop("custom.cellOptions", {"type": "auto", "wrapText": True})
_WORD: Final = [width(100), prop("custom.displayMode", "color-text")]


def _of(values_: str, changes: str) -> str:
    """Join values of changes with their labels; rows that differ in one label are not merged."""
    joined = f"{values_} * on ({CHANGE}) group_left ({LABELS}) {changes}"
    return f"max by ({CHANGE}, {LABELS}) ({joined})"


def _effect(values_: str, changes: Callable[..., str]) -> str:
    factor = _of(values_, changes(**LESS))
    return coded(f"{_of(values_, changes())} unless on ({CHANGE}) {factor}", f"1 - {factor}")


def _rated(node: str, **matchers: str) -> str:
    changes = changes_of(node, **matchers)
    for code, severity in enumerate(SEVERITIES):
        changes = f'label_replace({changes}, "severity", "{code}", "severity", "{severity}")'
    return changes


def open_changes(node: str) -> table.Panel:
    """Return the open changes: one row each, with a sentence that links to its cases."""
    of_node = partial(_rated, node)
    changes = of_node()
    since = _of(series(m.CHANGE_SINCE), changes)
    sure = _of(series(m.CHANGE_CONFIDENCE), changes)
    effects = {"effect": m.CHANGE_EFFECT, "from": m.CHANGE_EFFECT_LOW, "to": m.CHANGE_EFFECT_HIGH}
    severity = rated({str(code): look for code, look in enumerate(SEVERITIES.values())})
    # All of its cases, including improvements, from a week before its start.
    chosen = "var-change=${__data.fields.change}&from=${__data.fields.start.numeric}&to=now"
    return rows(
        "Open changes",
        "Effect: throughput in percent, latency and CPU as a factor. Click a change to see its "
        "cases. It stays open until it is resolved or accepted (`pvebench baseline accept`). "
        "From and to: 95% CI.",
        ("since", "severity", "summary"),
        (
            Column("cases", _of(series(m.CHANGE_CASES), changes)),
            *(
                Column(title, _effect(series(metric), of_node), change=True, coded=True)
                for title, metric in effects.items()
            ),
            Column("confidence", sure, unit="percentunit", decimals=0),
            Column("start", f"1000 * ({since} - {WEEK})"),
        ),
        sort="since",
        hidden=("state", "cause"),
        missing="no open changes; some results may be inconclusive",
        styles={
            "severity": [*_WORD, *severity],
            **_common("Cases of this change", "pvebench-upgrades", chosen),
        },
    )


def _common(title: str, board: str, variables: str) -> dict[str, Look]:
    """Return the looks of both tables, whose sentences link to a dashboard."""
    link = dashboard.DashboardLink(title).url(f"/d/{board}?${{datasource:queryparam}}&{variables}")
    looks = {"since": [width(100)], "summary": [_WRAPPED, prop("links", [link])]}
    return looks | dict.fromkeys(("change", "start", "stop"), HIDDEN)


def worst_change(node: str, storage: str) -> str:
    """Return the effect of the worst open change of each storage, as the list shows it."""
    cases = series(m.CHANGE_CASE, node=node, scenario=f"({storage})[.].*")
    named = f'label_replace({cases}, "storage", "$1", "scenario", "([^.]+)[.].*")'
    effects, less = series(m.CHANGE_EFFECT), f"on ({CHANGE}) {changes_of(node, **LESS)}"
    gain, factor = (
        f"{worst} by (node, storage) ({named} * on ({CHANGE}) group_left () ({some}))"
        for worst, some in (
            ("min", f"{effects} unless {less}"),
            ("max", f"1 - ({effects} and {less})"),
        )
    )
    return coded(gain, factor)


def change_log(node: str) -> table.Panel:
    """Return the open and the latest closed changes: when, how long, what."""

    def known(**matchers: str) -> str:
        closed = series(m.CLOSED_CHANGE_INFO, node=node_list_pattern(node), **matchers)
        closed = f"topk by ({CHANGE}) (1, {closed})"  # its sentence may change
        still = label("state", OPEN, changes_of(node, **matchers))
        # Both are known for the look-back of Prometheus; in an imported past, for hours.
        return f"({closed} or {still} unless on ({CHANGE}) {closed})"

    cases = f"({series(m.CHANGE_CASES)} or {series(m.CLOSED_CHANGE_CASES)})"
    effects = f"({series(m.CHANGE_EFFECT)} or {series(m.CLOSED_CHANGE_EFFECT)})"
    since = _of(f"({series(m.CHANGE_SINCE)} or {series(m.CLOSED_CHANGE_BEGIN)})", known())
    present = f"time() + 0 * {series(m.CHANGE_SINCE)}"
    until = _of(f"({series(m.CLOSED_CHANGE_END)} or {present})", known())
    # A week before and after it.
    around = "from=${__data.fields.start.numeric}&to=${__data.fields.stop.numeric}"
    return rows(
        "Change log",
        "Open changes and the latest 100 closed ones, the newest first. Click one to see its time "
        "range. *lasted* is empty for a change that was accepted.",
        ("since", "state", "summary", "cause"),
        (
            Column("cases", _of(cases, known())),
            Column("effect", _effect(effects, known), change=True, coded=True),
            Column("lasted", f"{until} - {since}", unit="dtdurations", decimals=0, wide=110),
            Column("start", f"1000 * ({since} - {WEEK})"),
            Column("stop", f"1000 * (({until} or {since}) + {WEEK})"),
        ),
        sort="since",
        hidden=("severity",),
        missing="no changes yet",
        styles={
            "state": [*_WORD, *rated({OPEN: ("open", WORSE)})],
            "cause": [_WRAPPED, width(150)],
            **_common("Levels around this change", "pvebench-overview", around),
        },
    )
