"""From steps to findings: what moved together is told together, once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.case_history import CaseStep
from pvebench.analysis.causes import Candidate, Happening, Match, candidates, gaps, known_issues
from pvebench.analysis.figures import FIGURES, Figure
from pvebench.analysis.groups import Group
from pvebench.analysis.known_times.came_with import CameWith, came_with
from pvebench.analysis.known_times.event_shift import EventShift
from pvebench.analysis.known_times.events import Event
from pvebench.analysis.known_times.fleet import GroupShift
from pvebench.analysis.together.findings import ChangeKind, Finding, Move
from pvebench.analysis.together.occasions import (
    Changed,
    Occasion,
    first_figure,
    occasions,
    together,
)
from pvebench.analysis.too_good import too_good
from pvebench.analysis.verdict import Verdict
from pvebench.model.known_issue import KnownIssue

Shifts = Sequence[tuple[Event, str, EventShift]]
"""(event, figure, what it did)."""
Effect = tuple[float, float, float]
"""effect, low, high."""
LEFT: Final = 0.5
"""Share of a change that must be left for it to be one still."""


def find_changes(
    verdicts: Sequence[Verdict],
    shifts: Shifts,
    issues: Sequence[KnownIssue],
    *,
    node: str,
    environment_changes: Sequence[Event] = (),
    accepted_until: Mapping[str, float],
) -> tuple[Finding, ...]:
    """Return every confirmed change, the newest first.

    Args:
        verdicts: of all cases and figures.
        shifts: what every event did to every figure.
        environment_changes: of the node, oldest first, before those close together were made one.
        accepted_until: case -> time up to which its changes have been accepted.
    """
    events = {event.time: event for event, _, _ in shifts}
    found: list[Finding] = []
    for occasion in occasions(verdicts):
        event = events.get(occasion.time) if occasion.known else None
        found += [
            _finding(
                occasion,
                _came_with(event, members, environment_changes),
                group,
                members,
                verdicts,
                shifts,
                issues,
            )
            for (group, _), members in together(occasion.changed, verdicts).items()
        ]
    accepted = [replace(_accepted(one, accepted_until), node=node) for one in found]
    return tuple(
        sorted(accepted, key=lambda one: (-one.time, not one.regression, one.group is None))
    )


def _finding(
    occasion: Occasion,
    came: CameWith | None,
    group: Group | None,
    members: list[Changed],
    verdicts: Sequence[Verdict],
    shifts: Shifts,
    issues: Sequence[KnownIssue],
) -> Finding:
    # What events did to groups says nothing of a change that came at another time.
    at = math.nan if came is None else occasion.time
    moves = moves_of(at, group, members, shifts)
    histories = {verdict.history.of: verdict.history for verdict, _ in members}
    courses = [course(*one) for one in members if one[0].history.figure is moves[0].figure]
    suspicious = [one.reason for one in courses if one.reason]
    matches: tuple[Match, ...] = ()
    if came is not None:
        matches = known_issues(
            issues,
            came.events[0].before,
            came.events[-1].after,
            {move.figure.name: move.effect for move in moves},
            [history.labels for history in histories.values()],
        )
    return Finding(
        # What came with one event alone is told at its time.
        time=came.events[0].time if came is not None and len(came.events) == 1 else occasion.time,
        node="",
        known=came is not None,
        slow=occasion.slow,
        kind=_kind(moves, suspicious=bool(suspicious)),
        group=group,
        all_but=_all_but(at, group, shifts),
        cases=tuple(histories),
        names=tuple(history.name for history in histories.values()),
        of=_sharing(group, verdicts, moves[0].figure),
        moves=moves,
        came_with=tuple(event.differences for event in came.events) if came is not None else (),
        events_apart=came.runs if came is not None else 0,
        candidates=() if came is not None or occasion.slow else _near(members[0], shifts),
        issues=matches,
        reason=suspicious[0] if suspicious else "",
        over=most([one.over for one in courses]),
        until=max((one.until for one in courses), default=0.0),
        back=most([one.back for one in courses]),
    )


def _came_with(
    event: Event | None, members: Sequence[Changed], environment_changes: Sequence[Event]
) -> CameWith | None:
    """Return the events that may have brought a change; None: at its time nothing is known."""
    if event is None:
        return None
    figure = FIGURES[first_figure(members)]
    moved = [
        (verdict.history, step, (*verdict.accepted, *verdict.steps))
        for verdict, step in members
        if verdict.history.figure is figure
    ]
    return came_with(moved, event, environment_changes)


def _kind(moves: Sequence[Move], *, suspicious: bool) -> ChangeKind:
    if suspicious:
        return "suspicious"
    first = moves[0]
    if first.figure.kind == "speed":
        return "slower" if first.effect < 0 else "faster"
    return first.figure.kind


def _all_but(time: float, group: Group | None, shifts: Shifts) -> bool:
    return any(found.all_but for _, found in _group_shifts(time, group, shifts))


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


def _near(changed: Changed, shifts: Shifts) -> tuple[Candidate, ...]:
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


def moves_of(
    time: float, group: Group | None, members: Sequence[Changed], shifts: Shifts
) -> tuple[Move, ...]:
    """Return how far each figure moved: as the group was found to, else as its cases did."""
    own = _pooled(time, group, shifts)
    # A group is found against the other cases: what moved everything has moved it too.
    shared = _pooled(time, (), shifts) if group else {}
    chances = {name: found.p_value for name, found in _group_shifts(time, group, shifts)}
    found = []
    for figure in FIGURES.values():
        steps = [step for verdict, step in members if verdict.history.figure is figure]
        if not steps:
            continue
        effect, low, high = own.get(figure.name) or _median(steps)
        if figure.name in own and figure.name in shared:
            effect, low, high = _sum(own[figure.name], shared[figure.name])
        clearest = min(1.0, len(steps) * min(step.p_value for step in steps))
        found.append(
            Move(
                figure=figure,
                effect=effect,
                low=low,
                high=high,
                cases=len(steps),
                runs=min(step.runs for step in steps),
                p_value=min(clearest, chances.get(figure.name, 1.0)),
            )
        )
    return tuple(found)


def _pooled(time: float, group: Group | None, shifts: Shifts) -> dict[str, Effect]:
    """Return figure -> how far a group was found to have moved at an event."""
    return {
        name: (found.effect, found.low, found.high)
        for name, found in _group_shifts(time, group, shifts)
    }


def _group_shifts(
    time: float, group: Group | None, shifts: Shifts
) -> Iterator[tuple[str, GroupShift]]:
    """Yield (figure, what an event did to a group of it)."""
    for event, name, shift in shifts:
        if event.time == time:
            for named in shift.groups:
                if named.shift.group == group:
                    yield name, named.shift


def _sum(one: Effect, other: Effect) -> Effect:
    effect = one[0] + other[0]
    reach = math.hypot((one[2] - one[1]) / 2, (other[2] - other[1]) / 2)
    return effect, effect - reach, effect + reach


def _median(steps: Sequence[CaseStep]) -> Effect:
    middle = statistics.median_low([step.effect for step in steps])
    step = next(step for step in steps if step.effect == middle)
    return step.effect, step.low, step.high


@dataclass(frozen=True, slots=True)
class Course:
    """A step among those before and after it.

    Attributes:
        over: later steps have taken back the better half of it.
        until: time of the step that did; 0 if none has.
        back: it takes back the better half of what was there before.
        reason: why the gain that it led to was too good to be true; empty: it was not.
    """

    over: bool
    until: float
    back: bool
    reason: str


def course(verdict: Verdict, step: CaseStep) -> Course:
    """Return what a step of a case means among all that the case has had."""
    steps = (*verdict.accepted, *verdict.steps)
    before = sum(one.effect for one in steps if one.time < step.time)
    until = 0.0 if step.slow else _ended(steps, step)
    back = abs(before + step.effect) < LEFT * abs(before)
    gained = step.effect > 0 and not back
    reason = too_good(verdict.history, before + step.effect) if gained else ""
    return Course(until > 0, until, back, reason)


def _ended(steps: Sequence[CaseStep], step: CaseStep) -> float:
    """Return when later steps had taken back the better half of one."""
    left = step.effect
    for later in steps:
        if later.time > step.time:
            left += later.effect
            if left / step.effect < LEFT:
                return later.time
    return 0.0


def most(votes: Sequence[bool]) -> bool:
    """Tell whether most say yes."""
    return 2 * sum(votes) > len(votes)
