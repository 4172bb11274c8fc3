"""The open changes and the verdict on everything as metrics: few series, each with its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.verdict import as_ratio
from pvebench.foreign_text import one_line
from pvebench.judging import Verdicts
from pvebench.judging.change import SEVERITIES, Change, listed
from pvebench.judging.headline import headline, standing
from pvebench.metrics import catalog
from pvebench.metrics.families import Families

MOST_SHOWN: Final = 50
"""Changes beyond these are only counted: nobody reads them. Each is seven series and its cases."""


def collect_changes(verdicts: Verdicts, families: Families) -> None:
    """The headline, the weightiest changes, and how many there are."""
    said = {"state": standing(verdicts), "summary": one_line(headline(verdicts, evidence=False))}
    families.add(catalog.VERDICT_INFO, said, 1)
    for severity in SEVERITIES:
        count = sum(one.severity == severity for one in verdicts.changes)
        families.add(catalog.CHANGES, {"severity": severity}, count)
    for change in verdicts.changes[:MOST_SHOWN]:
        _add_change(change, families)
        _add_cases(change, verdicts.labels, families)


def _add_change(change: Change, families: Families) -> None:
    finding = change.finding
    first, labels = finding.moves[0], {"change": change.id}
    about = {
        "node": one_line(listed(change.nodes)),
        "storage": one_line(listed(change.storages)),
        "kind": finding.kind,
        "severity": change.severity,
        "since": f"{datetime.fromtimestamp(finding.time, UTC):%Y-%m-%d}",
        "summary": change.summary,
    }
    surest = min(move.p_value for move in finding.moves)
    families.add(catalog.CHANGE_INFO, labels | about, 1)
    families.add(catalog.CHANGE_CASES, labels, len(set(finding.cases)))
    families.add(catalog.CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(catalog.CHANGE_EFFECT_LOW, labels, as_ratio(first.low, first.figure))
    families.add(catalog.CHANGE_EFFECT_HIGH, labels, as_ratio(first.high, first.figure))
    families.add(catalog.CHANGE_CONFIDENCE, labels, 1 - surest)
    families.add(catalog.CHANGE_SINCE, labels, finding.time)


def _add_cases(change: Change, labels: Mapping[str, Mapping[str, str]], families: Families) -> None:
    """Name the cases that a change has moved; a figure's name is no part of theirs."""
    for case in dict.fromkeys(change.finding.cases):
        if case in labels:
            where = {name: labels[case][name] for name in ("node", "scenario", "workload")}
            families.add(catalog.CHANGE_CASE, {"change": change.id} | where, 1)
