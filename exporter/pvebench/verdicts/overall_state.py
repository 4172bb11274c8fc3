"""Headline, state, severity and exit code of all verdicts, and their plain data.

Page, API, metrics, notifications and commands all derive from here, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pvebench.analysis.change import Change, Move, Severity
from pvebench.analysis.difference import size_text
from pvebench.analysis.performance_index import EnvironmentLevel
from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.model.units import count_text, show_day
from pvebench.sanitize import one_line
from pvebench.store.changes import Decision
from pvebench.verdicts.change_text import BRIEF, brief, issue_text, sentence
from pvebench.verdicts.fastest_text import LEAST_JUDGED
from pvebench.verdicts.node_verdicts import Verdicts

# --- One change: its severity, its mark, its summary.

WIDESPREAD: Final = 0.2
"""Share of a storage's cases from which a change is critical."""
LEAST_CASES: Final = 10
"""Minimum cases of a storage to call a change widespread."""


def severity_of(
    change: Change, moved: Mapping[tuple[str, str], int], judged: Mapping[tuple[str, str], int]
) -> Severity:
    """Return how urgent a change is.

    Args:
        moved: (node, storage) -> number of cases that changed.
        judged: (node, storage) -> number of cases with a verdict.
    """
    if not change.regression:
        return "info"
    if change.implausible or change.moves[0].figure.kind not in {"speed", "stall"}:
        return "warning"
    widespread = any(
        judged.get(place, 0) >= LEAST_CASES and count > WIDESPREAD * judged[place]
        for place, count in moved.items()
    )
    return "critical" if widespread else "warning"


def mark(change: Change) -> str:
    """Return the sign of a change in lists: `×` regression, `+` better, `-` closed regression."""
    if change.regression:
        return "×"
    closed = change.worse or change.implausible or change.state == "accepted"
    return "-" if closed else "+"


def summary(change: Change) -> str:
    """Return the sentence of a change on one line, without what differs with every run."""
    return one_line(sentence(change, evidence=False))


# --- All verdicts: state, headline, exit code.

OverallState = Literal["regression", "ok", "partial", "inconclusive"]
BRIEFLY: Final[dict[OverallState, str]] = {
    "regression": "Regressions",
    "ok": "No regressions",
    "partial": "No confirmed regressions",
    "inconclusive": "No verdict yet",
}
"""Overall state in a few words."""
INCONCLUSIVE_EXIT: Final = 10
"""Exit code with `--strict` if some results are inconclusive; lower ones are of errors."""
WORSE: Final = {VerdictState.IMPLAUSIBLE_GAIN, VerdictState.SLOWER, VerdictState.GRADUALLY_SLOWER}


def overall_state(verdicts: Verdicts) -> OverallState:
    """Return the overall state."""
    if verdicts.regressions:
        return "regression"
    if verdicts.failed:
        return "inconclusive"
    unknown = verdicts.counts().get(VerdictState.INCONCLUSIVE, 0)
    if unknown == len(verdicts.verdicts):
        return "inconclusive"
    return "partial" if unknown else "ok"


def exit_code(verdicts: Verdicts, *, strict: bool) -> int:
    """Return the exit code of `verdict` and `judge`."""
    state = overall_state(verdicts)
    if state == "regression":
        return 1
    return INCONCLUSIVE_EXIT if strict and state != "ok" else 0


def headline(verdicts: Verdicts, *, dated: bool = True, evidence: bool = True) -> str:
    """Return the most important statement.

    Args:
        dated: with the date of an upgrade that a regression names.
        evidence: as of `change_text.sentence`.
    """
    if not verdicts.regressions:
        return count_line(verdicts)
    first = verdicts.regressions[0]
    text = sentence(first, evidence=evidence)
    if dated and first.came_with and not first.slow:
        text = f"{show_day(first.begin)}: {text}"
    return text + _more(verdicts)


def brief_headline(verdicts: Verdicts) -> str:
    """Return the headline in at most 60 characters, without names of single cases."""
    regressions = verdicts.regressions
    if regressions:
        text, more = brief(regressions[0]), _more(verdicts)
        return text + more if len(text + more) <= BRIEF else text
    state, measured = overall_state(verdicts), {verdict.history.of for verdict in verdicts.verdicts}
    if state == "inconclusive" and measured and not verdicts.failed:
        return f"{count_text(len(measured), 'case')} measured, no verdict yet"
    return BRIEFLY[state]


def _more(verdicts: Verdicts) -> str:
    more = len(verdicts.regressions) - 1
    return f" (and {more} more)" if more else ""


def count_line(verdicts: Verdicts) -> str:
    """Return how many open regressions there are; without any no more than is known.

    Metrics may be slower all the same: their change is accepted or resolved, or outside `--since`.
    """
    regressions, counts = verdicts.regressions, verdicts.counts()
    if regressions:
        return f"{count_text(len(regressions), 'regression')}: {counts_text(verdicts)}"
    if verdicts.failed:
        return "Verdict unknown: the latest update failed; see the log."
    kind = "open" if WORSE & counts.keys() else ""
    if not counts:
        return f"No verdict yet. Each case needs {LEAST_JUDGED} runs."
    unknown = verdicts.inconclusive
    if not unknown:
        return f"{_ruled_out(verdicts, kind)}: {counts_text(verdicts)}."
    first = min(unknown, key=lambda verdict: (not verdict.more_runs, verdict.more_runs))
    why = f"Closest to a verdict: {first.reason}."  # the case's slug says little on a wall
    if len(unknown) == sum(counts.values()):
        cases = count_text(len({verdict.history.of for verdict in unknown}), "case")
        return f"Inconclusive: {count_text(len(unknown), 'metric')} of {cases}. {why}"
    begin = f"No {kind or 'confirmed'} regressions; some results are inconclusive"
    return f"{begin}: {counts_text(verdicts)}. {why}"


def _ruled_out(verdicts: Verdicts, kind: str) -> str:
    states = (verdict for verdict in verdicts.verdicts if verdict.state.code == 0)
    widest = max((verdict.excluded for verdict in states), default=0)
    if kind or not widest:
        return f"No {kind or 'confirmed'} regressions"
    return f"No regressions. Changes above {size_text(widest)} ruled out"


def counts_text(verdicts: Verdicts, *, without: VerdictState | None = None) -> str:
    """Return the number of metrics per state: `3 possibly slower, 12 unchanged`."""
    counts = {state: count for state, count in verdicts.counts().items() if state is not without}
    return ", ".join(f"{counts[state]} {state.words}" for state in VerdictState if state in counts)


def progress_lines(verdicts: Verdicts) -> Iterator[str]:
    """Yield what is known and what is missing; nothing if all is known."""
    unknown = verdicts.inconclusive
    if not unknown:
        return
    known = counts_text(verdicts, without=VerdictState.INCONCLUSIVE)
    yield f"Known: {known or f'no verdict yet; each case needs {LEAST_JUDGED} runs'}"
    waiting = [verdict for verdict in unknown if verdict.more_runs]
    if waiting:
        least, most = (pick(verdict.more_runs for verdict in waiting) for pick in (min, max))
        span = f"{least} to {most}" if least < most else str(least)
        missing = f"{count_text(len(waiting), 'metric')} with {span} more runs each"
        measured = {"node": "", "storage": ""} not in verdicts.labels.values()
        yield f"Missing: {missing}" + ", by the schedule of `pvebench serve`" * measured
    stuck = [verdict for verdict in unknown if not verdict.more_runs]
    if stuck:
        example = f"{stuck[0].history.name}: {stuck[0].reason}"
        yield f"Undecidable: {count_text(len(stuck), 'metric')}, such as {example}"


# --- A verdict as a table row, for terminals, forums and the web UI.

COLUMNS: Final = ("direction", "metric", "verdict", "change", "95% CI", "runs")


def verdict_row(verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of `COLUMNS`; plus is better; empty without a verdict."""
    history = verdict.history
    change = interval = ""
    if verdict.state.judged:
        change = f"{verdict.ratio:+.1%}"
        low, high = (as_ratio(end, history.figure) for end in (verdict.low, verdict.high))
        interval = f"{low:+.1%} … {high:+.1%}"
    word = verdict.state.words
    return (
        history.direction,
        history.figure.name,
        f"{word} ({verdict.reason})" if verdict.reason else word,
        change,
        interval,
        str(verdict.runs or verdict.baseline_runs),
    )


def verdict_sign(state: VerdictState) -> str:
    """Return the sign before a verdict; an implausible improvement counts as a warning."""
    if state is VerdictState.IMPLAUSIBLE_GAIN:
        return "!"
    return "" if state.code == 0 else "▲" if state.code > 0 else "▼"


# --- Plain data: UTC, ratios with plus for better.

Data = dict[str, Any]


def verdicts_data(verdicts: Verdicts) -> Data:
    """Return everything for `--format json` and the API."""
    return {
        "run": verdicts.version,
        "failed": verdicts.failed,
        "state": overall_state(verdicts),
        "headline": headline(verdicts),
        "regression": bool(verdicts.regressions),
        "counts": {str(state): count for state, count in verdicts.counts().items()},
        "changes": [change_data(change) for change in verdicts.changes],
        "verdicts": [verdict_data(verdict) for verdict in verdicts.verdicts],
        "levels": [
            {"node": report.node, **level_data(level)}
            for report in verdicts.reports
            for level in report.levels
        ],
        "outages": [
            {"node": outage.node, "begin": moment(outage.begin), "end": moment(outage.end)}
            for outage in verdicts.outages
        ],
        "definition_changes": [
            {
                "case_key": definition_change.key,
                "time": moment(definition_change.at.timestamp()),
                "text": definition_change.text,
            }
            for definition_change in verdicts.definition_changes
        ],
        "decisions": [decision_data(decision) for decision in verdicts.decisions],
    }


def moment(time: float) -> str:
    """Return Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


def change_data(change: Change) -> Data:
    """Return a change."""
    return {
        "id": change.id,
        "text": sentence(change),
        "kind": change.kind,
        "share_ratio": change.share,
        "state": change.state,
        "severity": change.severity,
        "regression": change.regression,
        "accepted": change.state == "accepted",
        "nodes": list(change.nodes),
        "time": moment(change.begin),
        "end": None if change.end is None else moment(change.end),
        "known_time": change.known,
        "slow": change.slow,
        "shared": None if change.group is None else dict(change.group),
        "all_but": change.all_but,
        "case_keys": list(change.cases),
        "moves": [_move_data(move) for move in change.moves],
        "differences": [asdict(difference) for difference in change.differences],
        "separable": len(change.came_with) < 2,
        "candidates": [
            {"kind": candidate.kind, "text": candidate.text, "runs": candidate.runs}
            for candidate in change.candidates
        ],
        "meanwhile": [asdict(concurrent_change) for concurrent_change in change.meanwhile],
        "known_issues": [
            {
                "id": match.issue.id,
                "text": issue_text(match),
                "ends": match.ends,
                "fixed_in": match.fixed_in,
                "workaround": match.issue.workaround,
                "source": match.issue.source,
            }
            for match in change.issues
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
    """Return the verdict on one metric of a case; numbers are null without a verdict."""
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
