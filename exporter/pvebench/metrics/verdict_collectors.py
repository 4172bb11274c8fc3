"""Collectors of verdicts and changes: from these to samples. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pvebench.advice.gate import EXIT_CODES, looks
from pvebench.analysis.change import Change
from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.metrics import state_metrics
from pvebench.metrics.result_collectors import Snapshot
from pvebench.model.figure import Metric
from pvebench.model.units import show_day
from pvebench.sanitize import one_line
from pvebench.verdicts.change_text import cause_text, listed
from pvebench.verdicts.node_verdicts import SEVERITIES, Verdicts
from pvebench.verdicts.overall_state import brief_headline, headline, overall_state, summary

if TYPE_CHECKING:
    from pvebench.metrics.exposition import Families


_GATE_LOSS: Final = (
    state_metrics.GATE_LOSS,
    state_metrics.GATE_LOSS_LOW,
    state_metrics.GATE_LOSS_HIGH,
)


def collect_gates(verdicts: Verdicts, snapshot: Snapshot, families: Families) -> None:
    """Add a look at each upgraded node, as `pvebench gate` prints it."""
    cases = {record.key: record.last.definition for record in snapshot.records}
    for result in looks(verdicts, cases, snapshot.view.periods, snapshot.now):
        labels = {"node": result.canary}
        families.add(state_metrics.GATE_EXIT_CODE, labels, EXIT_CODES[result.decision])
        for group in result.groups:
            where = {**labels, "group": group.series.name}
            for metric, ratio in zip(_GATE_LOSS, group.loss or (), strict=False):
                families.add(metric, where, ratio)


BASELINES: Final[Mapping[str, tuple[Metric, Mapping[str, str]]]] = {
    "throughput": (state_metrics.BASELINE_IOPS, {}),
    "latency_p99": (state_metrics.BASELINE_LATENCY, {"percentile": "99"}),
    "cpu_cost": (state_metrics.BASELINE_CPU, {}),
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
        families.add(state_metrics.VERDICT_CASES, labels, count)
    _add_levels(verdicts, families)
    if verdicts.reports:
        newest = max(report.judged_until for report in verdicts.reports)
        families.add(state_metrics.VERDICT_TIMESTAMP, {}, newest)


def _add_figures(verdict: Verdict, labels: Mapping[str, str], families: Families) -> None:
    history = verdict.history
    where = {**labels, "direction": history.direction, "metric": history.figure.name}
    worse = verdict.state in {VerdictState.SLOWER, VerdictState.GRADUALLY_SLOWER}
    families.add(state_metrics.CHANGE, where, verdict.ratio)
    families.add(state_metrics.CHANGE_THRESHOLD, where, verdict.threshold)
    families.add(state_metrics.CHANGE_STATE, where, verdict.state.code)
    if verdict.creep is not None:
        families.add(
            state_metrics.CHANGE_GRADUAL, where, as_ratio(verdict.creep.effect, history.figure)
        )
    families.add(state_metrics.REGRESSION, where, worse)
    families.add(
        state_metrics.IMPLAUSIBLE_GAIN, where, verdict.state is VerdictState.IMPLAUSIBLE_GAIN
    )


def _add_baseline(
    verdict: Verdict, labels: Mapping[str, str], families: Families, *, first: bool
) -> None:
    """Add the baseline; `first`: also what all metrics of a case share."""
    history = verdict.history
    if first:
        families.add(state_metrics.BASELINE_RUNS, labels, verdict.baseline_runs)
        families.add(state_metrics.BASELINE_START, labels, verdict.baseline_start)
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
            families.add(state_metrics.PERFORMANCE_INDEX, labels, level.index)


# --- Changes, open and closed, and the overall verdict.

MAX_SHOWN: Final = 50
"""Maximum open changes with own series, seven and their cases each; more are only counted."""
MAX_CLOSED: Final = 100
"""Maximum closed changes with own series, up to five each."""


def collect_changes(verdicts: Verdicts, families: Families) -> None:
    """Add the headline, the most severe open changes, their number, and the newest closed ones."""
    overall = {
        "state": overall_state(verdicts),
        "headline": one_line(brief_headline(verdicts)),
        "summary": one_line(headline(verdicts, evidence=False)),
    }
    families.add(state_metrics.VERDICT_INFO, overall, 1)
    changes = verdicts.open_changes
    for severity in SEVERITIES:
        count = sum(change.severity == severity for change in changes)
        families.add(state_metrics.CHANGES, {"severity": severity}, count)
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
        "since": show_day(change.begin),
        "summary": summary(change),
    }


def change_kind(change: Change) -> str:
    """Return the label `kind` of a change, which alerts use; gains may be implausible."""
    return "implausible" if change.implausible else change.kind


def _add_open(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    lowest = min(move.p_value for move in change.moves)
    families.add(state_metrics.CHANGE_INFO, _about(change) | {"severity": change.severity}, 1)
    families.add(state_metrics.CHANGE_CASES, labels, len(set(change.cases)))
    families.add(state_metrics.CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(state_metrics.CHANGE_EFFECT_LOW, labels, as_ratio(first.low, first.figure))
    families.add(state_metrics.CHANGE_EFFECT_HIGH, labels, as_ratio(first.high, first.figure))
    families.add(state_metrics.CHANGE_CONFIDENCE, labels, 1 - lowest)
    families.add(state_metrics.CHANGE_SINCE, labels, change.begin)


def _add_closed(change: Change, families: Families) -> None:
    first, labels = change.moves[0], {"change": change.id}
    more = {
        "state": change.state,
        "until": "" if change.end is None else show_day(change.end),
        "cause": one_line(cause_text(change)),
        "metric": first.figure.name,
    }
    families.add(state_metrics.CLOSED_CHANGE_INFO, _about(change) | more, 1)
    families.add(state_metrics.CLOSED_CHANGE_CASES, labels, len(set(change.cases)))
    families.add(state_metrics.CLOSED_CHANGE_EFFECT, labels, as_ratio(first.effect, first.figure))
    families.add(state_metrics.CLOSED_CHANGE_BEGIN, labels, change.begin)
    if change.end is not None:
        families.add(state_metrics.CLOSED_CHANGE_END, labels, change.end)


def _add_cases(change: Change, labels: Mapping[str, Mapping[str, str]], families: Families) -> None:
    """Add the cases of a change."""
    for case in dict.fromkeys(change.cases):
        if case in labels:
            where = {name: labels[case][name] for name in ("node", "scenario", "workload")}
            families.add(state_metrics.CHANGE_CASE, {"change": change.id} | where, 1)
