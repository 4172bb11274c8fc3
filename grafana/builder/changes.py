"""Tables of changes: the open ones, and all of a year."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard, table

from builder.looks import BETTER, NEUTRAL, POSSIBLY_WORSE, WORSE, prop, values
from builder.promql import changes_of, coded, node_list_pattern, series
from builder.tables import Column, rows
from pvebench.metrics import catalog as m

LABELS: Final = "node, storage, kind, severity, since, summary"
CHANGE: Final = "job, instance, change"
YEAR: Final = "[365d:1h] @ end()"
"""Subquery of the past: one value per hour, since a change lasts longer."""
WEEK: Final = "7 * 86400"


def _of(values_: str, changes: str) -> str:
    """Join values of changes with their labels; rows that differ in one label are not merged."""
    joined = f"{values_} * on ({CHANGE}) group_left ({LABELS}) {changes}"
    return f"max by ({CHANGE}, {LABELS}) ({joined})"


def _effect(values_: str, changes: str) -> str:
    # The sentence names the metric: of what is higher or longer, less is better.
    less = 'summary=~".* (higher|lower|longer|shorter|as long|as high|as large)\\\\b.*"'
    info = m.CHANGE_INFO.exposed
    factor = _of(values_, changes.replace(f"{info}{{", f"{info}{{{less},"))
    return coded(f"{_of(values_, changes)} unless on ({CHANGE}) {factor}", f"1 - {factor}")


def open_changes(node: str) -> table.Panel:
    """Return the open changes: one row each, with a sentence that links to its cases."""
    changes = changes_of(node)
    since = _of(series(m.CHANGE_SINCE), changes)
    effects = {"effect": m.CHANGE_EFFECT, "from": m.CHANGE_EFFECT_LOW, "to": m.CHANGE_EFFECT_HIGH}
    panel = rows(
        "Open changes",
        "Effect: throughput in percent, latency and CPU as a factor. Click a change to see its "
        "cases. It stays open until it is resolved or accepted (`pvebench baseline accept`). "
        "From and to: 95% CI.",
        ("since", "severity", "summary"),
        (
            Column("cases", _of(series(m.CHANGE_CASES), changes)),
            *(
                Column(title, _effect(series(metric), changes), change=True, coded=True)
                for title, metric in effects.items()
            ),
            Column(
                "confidence",
                _of(series(m.CHANGE_CONFIDENCE), changes),
                unit="percentunit",
                decimals=0,
            ),
            Column("age", f"time() - ({since})", unit="dtdurations", decimals=1, wide=160),
            Column("start", f"1000 * ({since} - {WEEK})"),
        ),
        sort="severity",
        descending=False,
        linked=False,
        hidden=("kind",),
        missing="No open changes. The Overview shows inconclusive results.",
    )
    return _styled(panel, to_change())


def change_log(node: str) -> table.Panel:
    """Return all changes that were open in a year: when, how long, what."""

    def past(values_: str) -> str:
        # The present first: in the first hour, there is no past.
        return f"({values_} @ end() or max_over_time({values_}{YEAR}))"

    info = series(m.CHANGE_INFO, node=node_list_pattern(node))
    # Of the sentences of a change, the current one; 2 is open, 1 is closed.
    known = f"topk by ({CHANGE}) (1, 2 * {info} @ end() or max_over_time({info}{YEAR}))"
    changes = f"group by ({CHANGE}, {LABELS}) ({known})"
    begin, seen = series(m.CHANGE_SINCE), f"timestamp({series(m.CHANGE_SINCE)})"
    since = _of(past(begin), changes)
    last = _of(f"(max_over_time({seen}{YEAR}) or timestamp({begin} @ end()))", changes)
    panel = rows(
        "Change log",
        "Changes that were open within a year, the newest first. Click one to see its time range. "
        "A closed change is resolved or accepted; the web UI has its runs.",
        ("since", "severity", "summary"),
        (
            Column("state", f"max by ({CHANGE}, {LABELS}) ({known})"),
            Column("cases", _of(past(series(m.CHANGE_CASES)), changes)),
            Column(
                "effect", _effect(past(series(m.CHANGE_EFFECT)), changes), change=True, coded=True
            ),
            Column("lasted", f"{last} - {since}", unit="dtdurations", decimals=0, wide=110),
            Column("start", f"1000 * ({since} - {WEEK})"),
            Column("stop", f"1000 * ({last} + {WEEK})"),
        ),
        sort="since",
        linked=False,
        hidden=("kind",),
        missing="No changes within a year.",
    )
    states = values({"2": ("open", WORSE), "1": ("closed", NEUTRAL)})
    state = [prop("mappings", states), prop("custom.displayMode", "color-text")]
    panel = panel.override_by_name("state", state)
    panel = panel.override_by_name("stop", [prop("custom.hidden", True)])
    return _styled(panel, _around())


def _styled(panel: table.Panel, link: dashboard.DashboardLink) -> table.Panel:
    severities = {
        "critical": ("critical", WORSE),
        "warning": ("regression", POSSIBLY_WORSE),
        "info": ("improvement", BETTER),
    }
    return (
        panel.override_by_name("since", [prop("custom.width", 110)])
        .override_by_name(
            "severity",
            [
                prop("custom.width", 110),
                prop("custom.displayMode", "color-text"),
                prop("mappings", values(severities)),
            ],
        )
        .override_by_name(
            "summary",
            [prop("custom.cellOptions", {"type": "auto", "wrapText": True}), prop("links", [link])],
        )
        .override_by_name("change", [prop("custom.hidden", True)])
        .override_by_name("start", [prop("custom.hidden", True)])
        .override_by_name("node", [prop("custom.width", 130)])
        .override_by_name("storage", [prop("custom.width", 220)])
    )


def to_change() -> dashboard.DashboardLink:
    """Return a link to the cases of a change."""
    # All of its cases, including improvements, from a week before its start.
    variables = "var-change=${__data.fields.change}&var-worst=2"
    variables += "&from=${__data.fields.start.numeric}&to=now"
    url = f"/d/pvebench-regressions?${{datasource:queryparam}}&{variables}"
    return dashboard.DashboardLink("Cases of this change").url(url)


def _around() -> dashboard.DashboardLink:
    """Return a link to the time of a change, with a week before and after it."""
    range_ = "from=${__data.fields.start.numeric}&to=${__data.fields.stop.numeric}"
    url = f"/d/pvebench-trends?${{datasource:queryparam}}&{range_}"
    return dashboard.DashboardLink("Results around this change").url(url)
