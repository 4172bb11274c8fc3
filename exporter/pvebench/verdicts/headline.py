"""Verdicts as plain data: UTC, ratios with plus for better."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

from pvebench.analysis.change import Change, Move
from pvebench.analysis.difference import size_text
from pvebench.analysis.performance_index import EnvironmentLevel
from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio, count_text
from pvebench.store import Decision
from pvebench.verdicts.summary import LEAST_JUDGED
from pvebench.verdicts.text import issue_text, sentence
from pvebench.verdicts.verdicts import Verdicts

# --- The verdict in one line, for a page's top and for the first line of a command.

WORDS: Final = {
    VerdictState.IMPLAUSIBLE: "implausiblely faster",
    VerdictState.SLOWER: "slower",
    VerdictState.GRADUALLY_SLOWER: "slowly getting slower",
    VerdictState.POSSIBLY_SLOWER: "maybe slower",
    VerdictState.FASTER: "faster",
    VerdictState.GRADUALLY_FASTER: "slowly getting faster",
    VerdictState.POSSIBLY_FASTER: "maybe faster",
    VerdictState.UNCHANGED: "the same",
    VerdictState.INCONCLUSIVE: "cannot tell",
}
"""State -> how it is said."""
Standing = Literal["regression", "ok", "partial", "inconclusive"]
WORSE: Final = {VerdictState.IMPLAUSIBLE, VerdictState.SLOWER, VerdictState.GRADUALLY_SLOWER}


def headline(verdicts: Verdicts, *, evidence: bool = True) -> str:
    """Return the most important thing in one sentence; `evidence` as of `words.sentence`."""
    regressions = verdicts.regressions
    if regressions:
        more = f" (and {len(regressions) - 1} more)" if len(regressions) > 1 else ""
        return _dated(regressions[0], evidence=evidence) + more
    return calm(verdicts)


def _dated(finding: Change, *, evidence: bool) -> str:
    """Return the sentence with its day, which it leaves out where it names an upgrade instead."""
    text = sentence(finding, evidence=evidence)
    if finding.slow or not finding.came_with:
        return text
    return f"Since {datetime.fromtimestamp(finding.time, UTC):%Y-%m-%d}: {text}"


def standing(verdicts: Verdicts) -> Standing:
    """Return in one word what the headline says."""
    if verdicts.regressions:
        return "regression"
    if verdicts.failed:
        return "inconclusive"
    unknown = verdicts.counts().get(VerdictState.INCONCLUSIVE, 0)
    if unknown == len(verdicts.verdicts):
        return "inconclusive"
    return "partial" if unknown else "ok"


def calm(verdicts: Verdicts) -> str:
    """Return what can be said where no change wants a look: no more than is known.

    Figures may be slower all the same: what they come from is over, or before the days asked for.
    """
    if verdicts.failed:
        return "Cannot tell whether anything got slower: the latest judging failed; see the log."
    counts = verdicts.counts()
    further = " further" if WORSE & counts.keys() else ""
    if not counts:
        return f"Nothing has been judged yet: a verdict takes {LEAST_JUDGED} runs of a case."
    unknown = [one for one in verdicts.verdicts if one.state is VerdictState.INCONCLUSIVE]
    if not unknown:
        widest = max((one.excluded for one in verdicts.verdicts if one.state.code == 0), default=0)
        claim = f", and no change above {size_text(widest)}" if widest and not further else ""
        return f"Nothing{further} got slower{claim}: {counts_text(verdicts)}."
    first = min(unknown, key=lambda one: (not one.more_runs, one.more_runs))
    why = f"{first.history.name}: {first.reason}."
    if len(unknown) == sum(counts.values()):
        cases = count_text(len({one.history.of for one in unknown}), "case")
        of = f"{count_text(len(unknown), 'figure')} of {cases}"
        return f"Cannot tell yet whether anything got slower, in {of}. {why}"
    begin = f"Nothing{further} is known to have got slower, but not all can be told"
    return f"{begin}: {counts_text(verdicts)}. {why}"


def counts_text(verdicts: Verdicts) -> str:
    """Return how many figures have which state: `12 the same, 3 maybe slower`."""
    counts = verdicts.counts()
    return ", ".join(f"{counts[state]} {word}" for state, word in WORDS.items() if state in counts)


# --- A verdict as a row of a table, for terminals, forums and the page.

COLUMNS: Final = ("direction", "metric", "verdict", "change", "95 % interval", "runs")


def verdict_row(verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of `COLUMNS`; plus is better, empty where there is no verdict."""
    history = verdict.history
    change = interval = ""
    if verdict.state.judged:
        change = f"{verdict.ratio:+.1%}"
        low, high = (as_ratio(end, history.figure) for end in (verdict.low, verdict.high))
        interval = f"{low:+.1%} … {high:+.1%}"
    word = WORDS[verdict.state]
    return (
        history.direction,
        history.figure.name,
        f"{word} ({verdict.reason})" if verdict.reason else word,
        change,
        interval,
        str(verdict.runs or verdict.baseline_runs),
    )


def verdict_sign(state: VerdictState) -> str:
    """Return what stands before a verdict; a gain too good to be true is none."""
    if state is VerdictState.IMPLAUSIBLE:
        return "!"
    return "" if state.code == 0 else "▲" if state.code > 0 else "▼"


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


def finding_data(finding: Change) -> Data:
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
