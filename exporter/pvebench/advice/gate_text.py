"""A look at a canary as text and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pvebench.advice.gate import GateResult, JudgedSeries
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
    started = datetime.fromtimestamp(result.since, UTC)
    against = ", ".join(result.peers)
    yield f"Upgraded {started:%Y-%m-%d %H:%M} UTC; compared with " + (
        f"{against} at the same time."
        if against
        else "its own past only: without peers, a fault of a shared storage looks the same."
    )
    yield from (f"Regression by the verdict: {text}" for text in result.regressions)
    if result.back is not None:
        returned = datetime.fromtimestamp(result.back.since, UTC)
        yield f"Returned to the environment before on {returned:%Y-%m-%d %H:%M} UTC (A B B A)."
        yield "Relative to the time before the upgrade:"
    elif not result.regressions:
        yield "Verdict: no confirmed regression since the upgrade."
    yield from _judged_lines(result)
    if result.back is not None:
        yield "Relative to the time after the return:"
        yield from _judged_lines(result.back)
    if result.decision is Decision.UNDECIDED:
        yield _until(result, now)
    if result.unpaired:
        count = count_text(len(result.unpaired), "case")
        runs = "paired runs" if result.peers else "runs"
        yield f"Not judged, fewer than {LEAST_BEFORE} {runs} before the upgrade: {count}."


def _head(result: GateResult) -> str:
    """Return the decision with its cause, which is the verdict if no series is above."""
    lost = [
        judged
        for judged in (*result.groups, *result.cases)
        if judged.bound.decision is Decision.STOP
    ]
    if result.back is None and result.decision is Decision.STOP and not lost:
        return "Stop: the verdict confirmed a regression since the upgrade"
    heads = _HEADS if result.back is None else _HEADS_BACK
    return heads[result.decision].format(tolerance=f"{100 * result.tolerance:g}%")


def _judged_lines(result: GateResult) -> Iterator[str]:
    """Yield all groups, and the first cases with a loss above the tolerance."""
    stops = [case for case in result.cases if case.bound.decision is Decision.STOP]
    for judged in (*result.groups, *stops[:_LISTED]):
        yield judged_text(judged)
    if len(stops) > _LISTED:
        yield f"- {len(stops) - _LISTED} more cases: stop (--format json)"


def judged_text(judged: JudgedSeries) -> str:
    """Return `- bus scsi (4 cases): loss 9.8% (4.2 to 15.0%), 6 runs: stop`."""
    bound, runs = judged.bound, count_text(judged.bound.after, "run")
    begin = f"- {judged.name} ({count_text(judged.cases, 'case')}):"
    if math.isnan(bound.loss):
        return f"{begin} {runs}, too few"
    return (
        f"{begin} loss {bound.loss:.1%} ({100 * bound.low:.1f} to {100 * bound.high:.1f}%), "
        f"{runs}: {bound.decision}"
    )


def _until(result: GateResult, now: datetime) -> str:
    if not result.groups:
        return "Measure first: no case has enough paired runs before the upgrade."
    least = min((result.back or result).groups, key=lambda judged: judged.bound.before).bound
    if least.before < LEAST_BEFORE:
        return (
            f"Measure first: {count_text(least.before, 'run')} before; {LEAST_BEFORE} are needed."
        )
    if result.wait is None:
        return _limit(least.before, [judged.bound for judged in (result.back or result).groups])
    first, last = (moment_text(now + timedelta(seconds=one), now) for one in result.wait)
    when = f"about {first}" if first == last else f"between {first} and {last}"
    return f"Expected decision: {when}, if the loss stays the same."


def _limit(before: int, bounds: Sequence[Bound]) -> str:
    """Return what limits the groups that more runs after the upgrade do not decide."""
    limited = [bound for bound in bounds if bound.more is None]
    enough = [bound.enough for bound in limited if bound.enough is not None]
    if len(enough) < len(limited) or max(enough) <= before:
        return "When it will be decided is unknown: the loss is too near to the tolerance."
    return (
        f"More runs cannot decide: the {count_text(before, 'run')} before are too few. With this "
        f"loss, about {max(enough)} before and as many after do; until then, add peers or raise "
        "the tolerance."
    )


def gate_data(result: GateResult, now: datetime) -> dict[str, Any]:
    """Return a look as plain data."""
    wait = result.wait if result.decision is Decision.UNDECIDED else None
    times = [(now + timedelta(seconds=one)).isoformat(timespec="seconds") for one in wait or ()]
    return {
        "canary": result.canary,
        "decision": str(result.decision),
        "exit_code": EXIT_CODES[result.decision],
        "since": datetime.fromtimestamp(result.since, UTC).isoformat(),
        "tolerance_ratio": result.tolerance,
        "peers": list(result.peers),
        "expected_between": times or None,
        "regressions": list(result.regressions),
        "groups": [_judged_data(group) for group in result.groups],
        "cases": [_judged_data(case) for case in result.cases],
        "not_judged": list(result.unpaired),
        "back": None if result.back is None else gate_data(result.back, now),
    }


def _judged_data(judged: JudgedSeries) -> dict[str, Any]:
    bound = judged.bound
    return {
        "name": judged.name,
        "cases": judged.cases,
        "loss_ratio": _number(bound.loss),
        "low_ratio": _number(bound.low),
        "high_ratio": _number(bound.high),
        "runs_before": bound.before,
        "runs_after": bound.after,
        "decision": str(bound.decision),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
