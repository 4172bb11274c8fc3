"""A verdict as a row of a table, for terminals, forums and the page."""

from __future__ import annotations

from typing import Final

from pvebench.analysis.verdict import Verdict, VerdictState, as_ratio
from pvebench.judging.headline import WORDS

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
    if state is VerdictState.SUSPICIOUS:
        return "!"
    return "" if state.code == 0 else "▲" if state.code > 0 else "▼"
