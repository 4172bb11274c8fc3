"""From steps to findings: what moved together is told together, once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pvebench.analysis.attribution import Match, known_issues
from pvebench.analysis.causes import Candidate, Happening, candidates, gaps
from pvebench.analysis.course import course, most
from pvebench.analysis.event import EventShift
from pvebench.analysis.events import Event
from pvebench.analysis.figures import Figure
from pvebench.analysis.findings import Finding, Kind, Move
from pvebench.analysis.groups import Group
from pvebench.analysis.moves import moves_of
from pvebench.analysis.together import Changed, Moment, moments, together
from pvebench.analysis.verdict import Verdict
from pvebench.model.known_issue import KnownIssue


def find_changes(
    verdicts: Sequence[Verdict], shifts: Sequence[tuple[Event, str, EventShift]],
    issues: Sequence[KnownIssue], *, node: str, accepted_until: Mapping[str, float],
) -> tuple[Finding, ...]:  # fmt: skip
    """Return every confirmed change, the newest first.

    Args:
        verdicts: of all cases and figures.
        shifts: what every event did to every figure.
        accepted_until: case -> time up to which its changes have been accepted.
    """
    events = {event.time: event for event, _, _ in shifts}
    found: list[Finding] = []
    for moment in moments(verdicts):
        event = events.get(moment.time) if moment.known else None
        found += [
            _finding(moment, event, group, members, verdicts, shifts, issues)
            for (group, _), members in together(moment.changed, verdicts).items()
        ]
    accepted = [replace(_accepted(one, accepted_until), node=node) for one in found]
    return tuple(
        sorted(accepted, key=lambda one: (-one.time, not one.regression, one.group is None))
    )


def _finding(
    moment: Moment, event: Event | None, group: Group | None, members: list[Changed],
    verdicts: Sequence[Verdict], shifts: Sequence[tuple[Event, str, EventShift]],
    issues: Sequence[KnownIssue],
) -> Finding:  # fmt: skip
    # What events did to groups says nothing of a change that came at another time.
    at = math.nan if event is None else moment.time
    moves = moves_of(at, group, members, shifts)
    histories = {verdict.history.of: verdict.history for verdict, _ in members}
    courses = [course(*one) for one in members if one[0].history.figure is moves[0].figure]
    suspicious = [one.reason for one in courses if one.reason]
    matches: tuple[Match, ...] = ()
    if event is not None:
        matches = known_issues(
            issues, event.before, event.after,
            {move.figure.name: move.effect for move in moves},
            [history.labels for history in histories.values()],
        )  # fmt: skip
    return Finding(
        time=moment.time, node="", known=event is not None, slow=moment.slow,
        kind=_kind(moves, suspicious=bool(suspicious)),
        group=group, all_but=_all_but(at, group, shifts), cases=tuple(histories),
        names=tuple(history.name for history in histories.values()),
        of=_sharing(group, verdicts, moves[0].figure), moves=moves,
        differences=event.differences if event is not None else (),
        candidates=() if event is not None or moment.slow else _near(members[0], shifts),
        issues=matches, reason=suspicious[0] if suspicious else "",
        over=most([one.over for one in courses]), back=most([one.back for one in courses]),
    )  # fmt: skip


def _kind(moves: Sequence[Move], *, suspicious: bool) -> Kind:
    if suspicious:
        return "suspicious"
    first = moves[0]
    if first.figure.kind == "speed":
        return "slower" if first.effect < 0 else "faster"
    return first.figure.kind


def _all_but(
    time: float, group: Group | None, shifts: Sequence[tuple[Event, str, EventShift]]
) -> bool:
    return any(
        named.shift.all_but
        for event, _, shift in shifts
        if event.time == time
        for named in shift.groups
        if named.shift.group == group
    )


def _sharing(group: Group | None, verdicts: Sequence[Verdict], figure: Figure) -> int:
    """Return how many cases with a verdict on a figure have what a group shares."""
    if group is None:
        return 0
    return len(
        {
            verdict.history.of
            for verdict in verdicts
            if verdict.state.judged
            and verdict.history.figure is figure
            and all(verdict.history.labels.get(key) == value for key, value in group)
        }
    )


def _near(
    changed: Changed, shifts: Sequence[tuple[Event, str, EventShift]]
) -> tuple[Candidate, ...]:
    """Return what happened near a change at an unknown time."""
    verdict, step = changed
    times = verdict.history.times()
    happenings = [
        Happening(event.time, "environment", ", ".join(one.fact for one in event.differences))
        for event in {event.time: event for event, _, _ in shifts}.values()
    ]
    index = verdict.history.split(step.time)
    return candidates(times, index, [*happenings, *gaps(times)])


def _accepted(finding: Finding, accepted_until: Mapping[str, float]) -> Finding:
    done = all(accepted_until.get(case, float("-inf")) >= finding.time for case in finding.cases)
    return replace(finding, accepted=done)
