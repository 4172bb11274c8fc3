"""Verdicts as metrics. Pure; made once per verdict update, not per scrape."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pvebench.analysis.change import Change
from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.metrics import catalog
from pvebench.metrics.catalog import Metric
from pvebench.metrics.families import Families
from pvebench.sanitize import one_line
from pvebench.verdicts import Verdicts
from pvebench.verdicts.headline import headline, standing, summary
from pvebench.verdicts.text import listed
from pvebench.verdicts.verdicts import SEVERITIES

# --- Open changes and the overall verdict: few series, each with its sentence.

MOST_SHOWN: Final = 50
"""Maximum changes with own series, seven and their cases each; more are only counted."""


def collect_changes(verdicts: Verdicts, families: Families) -> None:
    """Add the headline, the most severe changes, and their number."""
    overall = {"state": standing(verdicts), "summary": one_line(headline(verdicts, evidence=False))}
    families.add(catalog.VERDICT_INFO, overall, 1)
    changes = verdicts.open_changes
    for severity in SEVERITIES:
        count = sum(change.severity == severity for change in changes)
        families.add(catalog.CHANGES, {"severity": severity}, count)
    for change in changes[:MOST_SHOWN]:
        _add_change(change, families)
        _add_cases(change, verdicts.labels, families)


def _add_change(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    about = {
        "node": one_line(listed(change.nodes)),
        "storage": one_line(listed(change.storages)),
        "kind": change.kind,
        "severity": change.severity,
        "since": f"{datetime.fromtimestamp(change.begin, UTC):%Y-%m-%d}",
        "summary": summary(change),
    }
    lowest = min(move.p_value for move in change.moves)
    families.add(catalog.CHANGE_INFO, labels | about, 1)
    families.add(catalog.CHANGE_CASES, labels, len(set(change.cases)))
    families.add(catalog.CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(catalog.CHANGE_EFFECT_LOW, labels, as_ratio(first.low, first.figure))
    families.add(catalog.CHANGE_EFFECT_HIGH, labels, as_ratio(first.high, first.figure))
    families.add(catalog.CHANGE_CONFIDENCE, labels, 1 - lowest)
    families.add(catalog.CHANGE_SINCE, labels, change.begin)


def _add_cases(change: Change, labels: Mapping[str, Mapping[str, str]], families: Families) -> None:
    """Add the cases of a change."""
    for case in dict.fromkeys(change.cases):
        if case in labels:
            where = {name: labels[case][name] for name in ("node", "scenario", "workload")}
            families.add(catalog.CHANGE_CASE, {"change": change.id} | where, 1)


BASELINES: Final[Mapping[str, tuple[Metric, Mapping[str, str]]]] = {
    "throughput": (catalog.BASELINE_IOPS, {}),
    "latency_p99": (catalog.BASELINE_LATENCY, {"percentile": "99"}),
    "cpu_cost": (catalog.BASELINE_CPU, {}),
}


def collect_verdicts(verdicts: Verdicts, families: Families) -> None:
    """Add the verdicts on every case and storage, and their time."""
    collect_changes(verdicts, families)
    counts: dict[tuple[str, str, VerdictState], int] = {}
    shown: set[str] = set()
    for verdict in verdicts.verdicts:
        labels = verdicts.labels[verdict.history.of]
        place = (labels["node"], labels["storage"], verdict.state)
        counts[place] = counts.get(place, 0) + 1
        if verdict.state.judged:
            _add_figures(verdict, labels, families)
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


def _add_figures(verdict: Verdict, labels: Mapping[str, str], families: Families) -> None:
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
    """Add the baseline; `first`: also what all metrics of a case share."""
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
