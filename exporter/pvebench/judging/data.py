"""Verdicts as plain data: UTC, ratios with plus for better."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pvebench.analysis.levels.performance_index import EnvironmentLevel
from pvebench.analysis.together.findings import Finding, Move
from pvebench.analysis.verdict import Verdict, as_ratio
from pvebench.analysis.words import issue_text, sentence
from pvebench.judging.verdicts import Verdicts
from pvebench.store import Decision

Data = dict[str, Any]


def verdicts_data(verdicts: Verdicts) -> Data:
    """Return everything that was said."""
    return {
        "run": verdicts.version,
        "failed": verdicts.failed,
        "regression": bool(verdicts.regressions),
        "counts": {str(state): count for state, count in verdicts.counts().items()},
        "changes": [finding_data(finding) for finding in verdicts.findings],
        "verdicts": [verdict_data(verdict) for verdict in verdicts.verdicts],
        "levels": [
            {"node": report.node, **level_data(level)}
            for report in verdicts.reports
            for level in report.levels
        ],
        "definition_changes": [
            {"case_key": one.key, "time": moment(one.at.timestamp()), "text": one.text}
            for one in verdicts.definition_changes
        ],
        "decisions": [decision_data(decision) for decision in verdicts.decisions],
    }


def moment(time: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


def finding_data(finding: Finding) -> Data:
    """Return a change."""
    return {
        "text": sentence(finding),
        "kind": finding.kind,
        "regression": finding.regression,
        "accepted": finding.accepted,
        "time": moment(finding.time),
        "known_time": finding.known,
        "slow": finding.slow,
        "shared": None if finding.group is None else dict(finding.group),
        "all_but": finding.all_but,
        "case_keys": list(finding.cases),
        "moves": [_move_data(move) for move in finding.moves],
        "differences": [
            {"fact": one.fact, "before": one.before, "after": one.after}
            for one in finding.differences
        ],
        "separable": len(finding.came_with) < 2,
        "candidates": [
            {"kind": one.happening.kind, "text": one.happening.text, "runs": one.runs}
            for one in finding.candidates
        ],
        "meanwhile": [{"text": one.text, "numbers": one.numbers} for one in finding.meanwhile],
        "known_issues": [
            {
                "id": match.issue.id,
                "text": issue_text(match),
                "ends": match.ends,
                "fixed_in": match.fixed_in,
                "workaround": match.issue.workaround,
                "source": match.issue.source,
            }
            for match in finding.issues
        ],
    }


def _move_data(move: Move) -> Data:
    return {
        "metric": move.figure.name,
        "change_ratio": as_ratio(move.effect, move.figure),
        "low_ratio": as_ratio(move.low, move.figure),
        "high_ratio": as_ratio(move.high, move.figure),
        "cases": move.cases,
        "runs": move.runs,
    }


def verdict_data(verdict: Verdict) -> Data:
    """Return the verdict on one case and figure; numbers are null where there is none."""
    judged = verdict.state.judged
    return {
        "case_key": verdict.history.of,
        "case": verdict.history.name,
        "direction": verdict.history.direction,
        "metric": verdict.history.figure.name,
        "state": str(verdict.state),
        "reason": verdict.reason,
        "change_ratio": verdict.ratio if judged else None,
        "low_ratio": as_ratio(verdict.low, verdict.history.figure) if judged else None,
        "high_ratio": as_ratio(verdict.high, verdict.history.figure) if judged else None,
        "p_value": verdict.p_value if judged else None,
        "runs": verdict.runs,
        "more_runs": verdict.more_runs,
        "baseline": verdict.baseline if judged else None,
        "baseline_runs": verdict.baseline_runs,
        "accepted_changes": len(verdict.accepted),
    }


def level_data(level: EnvironmentLevel) -> Data:
    """Return the level of a storage in one environment."""
    return {
        "storage": level.storage,
        "environment": level.environment,
        "index_ratio": level.index,
        "cases": level.cases,
        "runs": level.runs,
        "since": moment(level.start),
    }


def decision_data(decision: Decision) -> Data:
    """Return a decision about baselines."""
    return {
        "made": decision.made.isoformat(timespec="seconds"),
        "kind": decision.kind,
        "cases": decision.cases,
        "until": decision.until.isoformat(timespec="seconds"),
        "reason": decision.reason,
    }
