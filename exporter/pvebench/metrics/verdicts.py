"""Verdicts as metrics. Pure; made once for every judging, not for every scrape."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.metrics import catalog
from pvebench.metrics.catalog import Metric
from pvebench.metrics.families import Families
from pvebench.sanitize import one_line
from pvebench.verdicts import Verdicts
from pvebench.verdicts.headline import headline, standing
from pvebench.verdicts.verdicts import SEVERITIES, OpenChange, listed

# --- The open changes and the verdict on everything as metrics: few series, each with its sentence.

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


def _add_change(change: OpenChange, families: Families) -> None:
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


def _add_cases(
    change: OpenChange, labels: Mapping[str, Mapping[str, str]], families: Families
) -> None:
    """Name the cases that a change has moved; a figure's name is no part of theirs."""
    for case in dict.fromkeys(change.finding.cases):
        if case in labels:
            where = {name: labels[case][name] for name in ("node", "scenario", "workload")}
            families.add(catalog.CHANGE_CASE, {"change": change.id} | where, 1)


BASELINES: Final[Mapping[str, tuple[Metric, Mapping[str, str]]]] = {
    "throughput": (catalog.BASELINE_IOPS, {}),
    "latency_p99": (catalog.BASELINE_LATENCY, {"percentile": "99"}),
    "cpu_cost": (catalog.BASELINE_CPU, {}),
}


def collect_verdicts(verdicts: Verdicts, families: Families) -> None:
    """What was said of every case, of every storage, and when."""
    collect_changes(verdicts, families)
    counts: dict[tuple[str, str, VerdictState], int] = {}
    shown: set[str] = set()
    for verdict in verdicts.verdicts:
        labels = verdicts.labels[verdict.history.of]
        place = (labels["node"], labels["storage"], verdict.state)
        counts[place] = counts.get(place, 0) + 1
        if verdict.state.judged:
            _add_open_change(verdict, labels, families)
        if verdict.baseline is not None:
            _add_baseline(verdict, labels, families, first=verdict.history.of not in shown)
            shown.add(verdict.history.of)
    for (node, storage, state), count in counts.items():
        labels = {"node": node, "storage": storage, "state": str(state)}
        families.add(catalog.VERDICT_CASES, labels, count)
    _add_levels(verdicts, families)
    if verdicts.reports:
        newest = max(report.judged_until for report in verdicts.reports)
        families.add(catalog.VERDICT_TIMESTAMP, {}, newest)


def _add_open_change(verdict: Verdict, labels: Mapping[str, str], families: Families) -> None:
    history = verdict.history
    where = {**labels, "direction": history.direction, "metric": history.figure.name}
    worse = verdict.state in {VerdictState.SLOWER, VerdictState.GRADUALLY_SLOWER}
    families.add(catalog.CHANGE, where, verdict.ratio)
    families.add(catalog.CHANGE_THRESHOLD, where, verdict.threshold)
    families.add(catalog.CHANGE_STATE, where, verdict.state.code)
    if verdict.creep is not None:
        families.add(catalog.CHANGE_GRADUAL, where, as_ratio(verdict.creep.effect, history.figure))
    families.add(catalog.REGRESSION, where, worse)
    families.add(catalog.IMPLAUSIBLE_GAIN, where, verdict.state is VerdictState.IMPLAUSIBLE)


def _add_baseline(
    verdict: Verdict, labels: Mapping[str, str], families: Families, *, first: bool
) -> None:
    """Add the level compared with; `first`: also what all figures of a case share."""
    history = verdict.history
    if first:
        families.add(catalog.BASELINE_RUNS, labels, verdict.baseline_runs)
        families.add(catalog.BASELINE_START, labels, verdict.baseline_start)
    metric, more = BASELINES.get(history.figure.name, (None, {}))
    if metric is not None and verdict.baseline is not None:
        where = {**labels, **more, "direction": history.direction}
        families.add(metric, where, verdict.baseline)


def _add_levels(verdicts: Verdicts, families: Families) -> None:
    for report in verdicts.reports:
        for level in report.levels:
            labels = {
                "node": report.node,
                "storage": level.storage,
                "environment": verdicts.environments.get(level.environment, level.environment),
            }
            families.add(catalog.PERFORMANCE_INDEX, labels, level.index)
