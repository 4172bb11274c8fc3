"""A look at a canary as text and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pvebench.advice.gate import GateResult
from pvebench.advice.gate_bound import LEAST_BEFORE, Bound, Decision
from pvebench.model.units import count_text
from pvebench.verdicts.fastest_text import moment_text

EXIT_CODES: Final = {Decision.PASS: 0, Decision.STOP: 1, Decision.UNDECIDED: 10}
_LISTED: Final = 5
"""Maximum single cases of a look."""
_HEADS: Final = {
    Decision.PASS: "Go on: a loss of {tolerance} or more is excluded",
    Decision.STOP: "Stop: the loss is above {tolerance}",
    Decision.UNDECIDED: "Undecided: neither a loss above {tolerance} nor its absence is certain",
}
_HEADS_BACK: Final = {
    Decision.PASS: "Go on: the update did not cause a loss of {tolerance} or more",
    Decision.STOP: "Stop: a loss above {tolerance} began with the update and ended without it",
    Decision.UNDECIDED: "Undecided: a loss above {tolerance} by the update is uncertain",
}


def gate_lines(result: GateResult, now: datetime) -> Iterator[str]:
    """Yield the lines of a look."""
    yield f"{_head(result)} ({result.canary})."
    against = f"{', '.join(result.peers)} at the same time."
    if not result.peers:
        against = "its own past only: without peers, a fault of a shared storage looks the same."
    yield f"Upgraded {_moment(result.since)}; compared with {against}"
    yield from (f"Regression by the verdict: {text}" for text in result.regressions)
    if result.back is not None:
        returned = _moment(result.back.since)
        yield f"Returned to the environment before on {returned} (A B B A)."
        yield "Relative to the time before the upgrade:"
        yield from _bound_lines(result)
        yield "Relative to the time after the return:"
    elif not result.regressions:
        yield "Verdict: no confirmed regression since the upgrade."
    yield from _bound_lines(result.back or result)
    if result.decision is Decision.UNDECIDED:
        yield _until(result, (result.back or result).groups, now)
    if result.unpaired:
        count = count_text(len(result.unpaired), "case")
        runs = "paired runs" if result.peers else "runs"
        yield f"Not judged, fewer than {LEAST_BEFORE} {runs} before the upgrade: {count}."


def _moment(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def _head(result: GateResult) -> str:
    """Return the decision with its cause, which is the verdict if no series is above."""
    if result.back is None and result.decision is Decision.STOP and not result.stops:
        return "Stop: the verdict confirmed a regression since the upgrade"
    heads = _HEADS if result.back is None else _HEADS_BACK
    return heads[result.decision].format(tolerance=f"{100 * result.tolerance:g}%")


def _bound_lines(result: GateResult) -> Iterator[str]:
    """Yield all groups, and the first cases with a loss above the tolerance."""
    stops = [case for case in result.cases if case.decision is Decision.STOP]
    yield from map(_bound_text, (*result.groups, *stops[:_LISTED]))
    if len(stops) > _LISTED:
        yield f"- {len(stops) - _LISTED} more cases: stop (--format json)"


def _bound_text(bound: Bound) -> str:
    """Return `- bus scsi (4 cases): loss 9.8% (4.2 to 15.0%), 6 runs: stop`."""
    series, runs = bound.series, count_text(len(bound.series.after), "run")
    begin = f"- {series.name} ({count_text(series.cases, 'case')}):"
    if bound.loss is None:
        return f"{begin} {runs}, too few"
    loss, low, high = (100 * ratio for ratio in bound.loss)
    return f"{begin} loss {loss:.1f}% ({low:.1f} to {high:.1f}%), {runs}: {bound.decision}"


def _until(result: GateResult, groups: Sequence[Bound], now: datetime) -> str:
    """Return when an undecided look will be decided, or what it lacks."""
    if not result.groups:
        return "Measure first: no case has enough paired runs before the upgrade."
    if not groups:
        return f"Install the update again: fewer than {LEAST_BEFORE} runs with it cannot decide."
    if result.wait is not None:
        first, last = (moment_text(now + timedelta(seconds=end), now) for end in result.wait)
        when = f"about {first}" if first == last else f"between {first} and {last}"
        return f"Expected decision: {when}, if the loss stays the same."
    before = min(len(group.series.before) for group in groups)
    enough = [group.enough or 0 for group in groups if group.seconds is None]
    if min(enough) == 0 or max(enough) <= before:
        return "When it will be decided is unknown: the loss is too near to the tolerance."
    return (
        f"More runs cannot decide: the {count_text(before, 'run')} before are too few. With this "
        f"loss, about {max(enough)} before and as many after do; until then, add peers or raise "
        "the tolerance."
    )


def gate_data(result: GateResult, now: datetime) -> dict[str, Any]:
    """Return a look as plain data."""
    wait = result.wait if result.decision is Decision.UNDECIDED else None
    times = [(now + timedelta(seconds=end)).isoformat(timespec="seconds") for end in wait or ()]
    return {
        "canary": result.canary,
        "decision": str(result.decision),
        "exit_code": EXIT_CODES[result.decision],
        "since": datetime.fromtimestamp(result.since, UTC).isoformat(),
        "tolerance_ratio": result.tolerance,
        "peers": list(result.peers),
        "expected_between": times or None,
        "regressions": list(result.regressions),
        "groups": [_bound_data(group) for group in result.groups],
        "cases": [_bound_data(case) for case in result.cases],
        "not_judged": list(result.unpaired),
        "back": None if result.back is None else gate_data(result.back, now),
    }


def _bound_data(bound: Bound) -> dict[str, Any]:
    loss, low, high = bound.loss or (None, None, None)
    return {
        "name": bound.series.name,
        "cases": bound.series.cases,
        "loss_ratio": loss,
        "low_ratio": low,
        "high_ratio": high,
        "runs_before": len(bound.series.before),
        "runs_after": len(bound.series.after),
        "decision": str(bound.decision),
    }
