"""Collectors of changes, open and closed, and of the overall verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.change import Change
from pvebench.analysis.metric_verdict import as_ratio
from pvebench.metrics import catalog
from pvebench.metrics.sample_lines import Families
from pvebench.sanitize import one_line
from pvebench.verdicts.change_text import cause_text, listed
from pvebench.verdicts.node_verdicts import SEVERITIES, Verdicts
from pvebench.verdicts.overall_state import brief_headline, headline, standing, summary

MAX_SHOWN: Final = 50
"""Maximum open changes with own series, seven and their cases each; more are only counted."""
MAX_CLOSED: Final = 100
"""Maximum closed changes with own series, up to five each."""


def collect_changes(verdicts: Verdicts, families: Families) -> None:
    """Add the headline, the most severe open changes, their number, and the newest closed ones."""
    overall = {
        "state": standing(verdicts),
        "headline": one_line(brief_headline(verdicts)),
        "summary": one_line(headline(verdicts, evidence=False)),
    }
    families.add(catalog.VERDICT_INFO, overall, 1)
    changes = verdicts.open_changes
    for severity in SEVERITIES:
        count = sum(change.severity == severity for change in changes)
        families.add(catalog.CHANGES, {"severity": severity}, count)
    for change in changes[:MAX_SHOWN]:
        _add_open(change, families)
        _add_cases(change, verdicts.labels, families)
    for change in verdicts.closed_changes[:MAX_CLOSED]:
        _add_closed(change, families)


def _about(change: Change) -> dict[str, str]:
    return {
        "change": change.id,
        "node": one_line(listed(change.nodes)),
        "storage": one_line(listed(change.storages)),
        "kind": change_kind(change),
        "since": _date(change.begin),
        "summary": summary(change),
    }


def change_kind(change: Change) -> str:
    """Return the label `kind` of a change, which alerts use; gains may be implausible."""
    return "implausible" if change.implausible else change.kind


def _date(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"


def _add_open(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    lowest = min(move.p_value for move in change.moves)
    families.add(catalog.CHANGE_INFO, _about(change) | {"severity": change.severity}, 1)
    families.add(catalog.CHANGE_CASES, labels, len(set(change.cases)))
    families.add(catalog.CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(catalog.CHANGE_EFFECT_LOW, labels, as_ratio(first.low, first.figure))
    families.add(catalog.CHANGE_EFFECT_HIGH, labels, as_ratio(first.high, first.figure))
    families.add(catalog.CHANGE_CONFIDENCE, labels, 1 - lowest)
    families.add(catalog.CHANGE_SINCE, labels, change.begin)


def _add_closed(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    more = {
        "state": change.state,
        "until": "" if change.end is None else _date(change.end),
        "cause": one_line(cause_text(change)),
        "metric": first.figure.name,
    }
    families.add(catalog.CLOSED_CHANGE_INFO, _about(change) | more, 1)
    families.add(catalog.CLOSED_CHANGE_CASES, labels, len(set(change.cases)))
    families.add(catalog.CLOSED_CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(catalog.CLOSED_CHANGE_BEGIN, labels, change.begin)
    if change.end is not None:
        families.add(catalog.CLOSED_CHANGE_END, labels, change.end)


def _add_cases(change: Change, labels: Mapping[str, Mapping[str, str]], families: Families) -> None:
    """Add the cases of a change."""
    for case in dict.fromkeys(change.cases):
        if case in labels:
            where = {name: labels[case][name] for name in ("node", "scenario", "workload")}
            families.add(catalog.CHANGE_CASE, {"change": change.id} | where, 1)
