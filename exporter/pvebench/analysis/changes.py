"""From steps to findings: what moved together is told together, once."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.case_history import FIGURES, CaseStep, Figure, Group, common_group
from pvebench.analysis.change import (
    Candidate,
    Change,
    ChangeKind,
    Happening,
    Match,
    Move,
    candidates,
    gaps,
    known_issues,
)
from pvebench.analysis.event_effects import EventShift
from pvebench.analysis.events import CameWith, Event, came_with
from pvebench.analysis.group_effects import GroupShift
from pvebench.analysis.verdict import Verdict, too_good
from pvebench.model.environment import KnownIssue

# --- What is told together: steps of one moment, creeps, and cases that have much in common.

Changed = tuple[Verdict, CaseStep]
Named = tuple[Group | None, bool]
"""What cases share, and whether it was for the worse."""
FURTHER: Final = 1.5
"""Times as far as everything (in logarithms) that a group must have moved to be told apart."""


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """When something changed: at an event, at an unknown time, or slowly since then."""

    time: float
    known: bool
    slow: bool
    changed: tuple[Changed, ...]


def occasions(verdicts: Sequence[Verdict]) -> Iterator[ChangeGroup]:
    """Yield the occasions of all steps and creeps, in no order."""
    steps = [
        (verdict, step) for verdict in verdicts for step in (*verdict.accepted, *verdict.steps)
    ]
    for time, pairs in _by_time([pair for pair in steps if pair[1].known]):
        yield ChangeGroup(time, known=True, slow=False, changed=tuple(pairs))
    yield from _unknown([pair for pair in steps if not pair[1].known])
    creeps = [(verdict, verdict.creep) for verdict in verdicts if verdict.creep is not None]
    if creeps:
        # How far back a creep is seen says little of when it began: they are told as one.
        time = statistics.median_low([step.time for _, step in creeps])
        yield ChangeGroup(time, known=False, slow=True, changed=tuple(creeps))


def _by_time(pairs: Sequence[Changed]) -> Iterator[tuple[float, list[Changed]]]:
    ordered = sorted(pairs, key=lambda pair: pair[1].time)
    for time, here in itertools.groupby(ordered, key=lambda pair: pair[1].time):
        yield time, list(here)


def _unknown(pairs: Sequence[Changed]) -> Iterator[ChangeGroup]:
    """Yield the occasions of steps at unknown times; those within one round are one."""
    together: list[list[Changed]] = []
    for time, here in _by_time(pairs):
        if together and _within_a_round(together[-1][0], time):
            together[-1] += here
        else:
            together.append(here)
    for found in together:
        yield ChangeGroup(found[0][1].time, known=False, slow=False, changed=tuple(found))


def _within_a_round(first: Changed, time: float) -> bool:
    verdict, step = first
    return verdict.history.runs_between(time, step.time) <= 1


def together(pairs: Sequence[Changed], verdicts: Sequence[Verdict]) -> dict[Named, list[Changed]]:
    """Return (group, whether for worse) -> its cases, over all figures.

    The figures of one case are told together: whoever moved with a group in one figure and
    alone in another is told with the group.
    """
    groups = {verdict.history.of: step.group for verdict, step in pairs if step.group is not None}
    found: dict[Named, list[Changed]] = {}
    worse = _worse(pairs)
    for verdict, step in pairs:
        group = step.group if step.group is not None else groups.get(verdict.history.of)
        found.setdefault((group, worse[verdict.history.of]), []).append((verdict, step))
    for key in [key for key in found if key[0] is None]:
        name = _in_common(found[key], verdicts)
        if name is not None and (name, key[1]) not in found:
            found[name, key[1]] = found.pop(key)
    for worse_too in (True, False):
        _join_everything(found, worse=worse_too)
    return found


def _join_everything(found: dict[Named, list[Changed]], *, worse: bool) -> None:
    """Tell a group with everything, where that moved about as far: it is no story of its own."""
    everything = found.get(((), worse))
    if everything is None:
        return
    for key in [key for key in found if key[0] and key[1] == worse]:
        if _as_far(found[key], everything):
            everything += found.pop(key)


def _as_far(some: Sequence[Changed], others: Sequence[Changed]) -> bool:
    name = first_figure(others)
    effects = [
        statistics.median(
            [step.effect for verdict, step in pairs if verdict.history.figure.name == name]
        )
        for pairs in (some, others)
        if first_figure(pairs) == name
    ]
    return len(effects) == 2 and abs(effects[0]) < FURTHER * abs(effects[1])


def first_figure(pairs: Sequence[Changed]) -> str:
    """Return the name of the most telling figure that moved."""
    return min((verdict.history.figure.name for verdict, _ in pairs), key=list(FIGURES).index)


def _in_common(members: Sequence[Changed], verdicts: Sequence[Verdict]) -> Group | None:
    """Return what cases that were found one by one have in common, if that names them."""
    mine = {verdict.history.of: verdict.history.labels for verdict, _ in members}
    judged = {
        verdict.history.of: verdict.history.labels for verdict in verdicts if verdict.state.judged
    }
    return common_group(list(mine.values()), list(judged.values()))


def _worse(pairs: Sequence[Changed]) -> dict[str, bool]:
    """Return case -> whether its most telling figure has moved for the worse."""
    order = list(FIGURES)
    first: dict[str, tuple[int, float]] = {}
    for verdict, step in pairs:
        place = (order.index(verdict.history.figure.name), step.effect)
        first[verdict.history.of] = min(place, first.get(verdict.history.of, place))
    return {case: effect < 0 for case, (_, effect) in first.items()}


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
) -> tuple[Change, ...]:
    """Return every confirmed change, the newest first.

    Args:
        verdicts: of all cases and figures.
        shifts: what every event did to every figure.
        environment_changes: of the node, oldest first, before those close together were made one.
        accepted_until: case -> time up to which its changes have been accepted.
    """
    events = {event.time: event for event, _, _ in shifts}
    found: list[Change] = []
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
    occasion: ChangeGroup,
    came: CameWith | None,
    group: Group | None,
    members: list[Changed],
    verdicts: Sequence[Verdict],
    shifts: Shifts,
    issues: Sequence[KnownIssue],
) -> Change:
    # What events did to groups says nothing of a change that came at another time.
    at = math.nan if came is None else occasion.time
    moves = moves_of(at, group, members, shifts)
    histories = {verdict.history.of: verdict.history for verdict, _ in members}
    courses = [step_course(*one) for one in members if one[0].history.figure is moves[0].figure]
    implausible = [one.reason for one in courses if one.reason]
    matches: tuple[Match, ...] = ()
    if came is not None:
        matches = known_issues(
            issues,
            came.events[0].before,
            came.events[-1].after,
            {move.figure.name: move.effect for move in moves},
            [history.labels for history in histories.values()],
        )
    return Change(
        # What came with one event alone is told at its time.
        time=came.events[0].time if came is not None and len(came.events) == 1 else occasion.time,
        node="",
        known=came is not None,
        slow=occasion.slow,
        kind=_kind(moves, implausible=bool(implausible)),
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
        reason=implausible[0] if implausible else "",
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


def _kind(moves: Sequence[Move], *, implausible: bool) -> ChangeKind:
    if implausible:
        return "implausible"
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


def _accepted(finding: Change, accepted_until: Mapping[str, float]) -> Change:
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
class StepCourse:
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


def step_course(verdict: Verdict, step: CaseStep) -> StepCourse:
    """Return what a step of a case means among all that the case has had."""
    steps = (*verdict.accepted, *verdict.steps)
    before = sum(one.effect for one in steps if one.time < step.time)
    until = 0.0 if step.slow else _ended(steps, step)
    back = abs(before + step.effect) < LEFT * abs(before)
    gained = step.effect > 0 and not back
    reason = too_good(verdict.history, before + step.effect) if gained else ""
    return StepCourse(until > 0, until, back, reason)


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
