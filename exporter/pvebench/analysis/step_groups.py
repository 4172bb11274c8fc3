"""Group the steps of all cases into changes, each with its causes and its state."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pvebench.analysis.case_history import CaseStep, ChangeKind, Group, common_group
from pvebench.analysis.change import (
    Change,
    Difference,
    Move,
    NearbyEvent,
    candidates,
    gaps,
    known_issues,
)
from pvebench.analysis.event_effects import EventShift
from pvebench.analysis.events import CameWith, Event, came_with
from pvebench.analysis.group_effects import GroupShift
from pvebench.analysis.metric_verdict import Verdict
from pvebench.analysis.step_course import StepCourse, gain_reason, step_course
from pvebench.model.environment import KnownIssue, concerns
from pvebench.model.judged import JUDGED, Judged

# --- Grouping: steps at one time, drifts, and cases with shared labels.

Changed = tuple[Verdict, CaseStep]
GroupKey = tuple[Group | None, bool]
"""Shared labels of cases, and whether they moved for the worse."""


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Steps of one kind at one event or time, or drifts; `time` in Unix seconds."""

    time: float
    known: bool
    kind: ChangeKind
    changed: tuple[Changed, ...]


def change_groups(verdicts: Sequence[Verdict]) -> Iterator[ChangeGroup]:
    """Yield the groups of all steps and drifts, in no order."""
    steps = [
        (verdict, step) for verdict in verdicts for step in (*verdict.accepted, *verdict.steps)
    ]
    for time, pairs in _by_time([pair for pair in steps if pair[1].known]):
        yield ChangeGroup(time, known=True, kind="level", changed=tuple(pairs))
    unknown = [pair for pair in steps if not pair[1].known]
    # A switch between usual levels is no change of the other cases.
    for mode in (False, True):
        yield from _unknown([pair for pair in unknown if pair[1].mode is mode])
    yield from _gradual(verdicts)


def _gradual(verdicts: Sequence[Verdict]) -> Iterator[ChangeGroup]:
    """Yield the groups of gradual changes and of changes of a part of the runs."""
    creeps = [(verdict, verdict.creep) for verdict in verdicts if verdict.creep is not None]
    kinds: tuple[ChangeKind, ...] = ("mode", "bursts")
    for kind in kinds:
        yield from _unknown([pair for pair in creeps if pair[1].kind == kind], kind)
    if drifts := [pair for pair in creeps if pair[1].slow]:
        # How far back a drift is visible hardly shows when it began: they are reported as one.
        time = statistics.median_low([step.time for _, step in drifts])
        yield ChangeGroup(time, known=False, kind="drift", changed=tuple(drifts))


def _by_time(pairs: Sequence[Changed]) -> Iterator[tuple[float, list[Changed]]]:
    ordered = sorted(pairs, key=lambda pair: pair[1].time)
    for time, same_time in itertools.groupby(ordered, key=lambda pair: pair[1].time):
        yield time, list(same_time)


def _unknown(pairs: Sequence[Changed], kind: ChangeKind = "level") -> Iterator[ChangeGroup]:
    """Yield the groups of steps at unknown times; those within one cycle are one group."""
    groups: list[list[Changed]] = []
    for time, same_time in _by_time(pairs):
        if groups and _within_a_cycle(groups[-1][0], time):
            groups[-1] += same_time
        else:
            groups.append(same_time)
    for group in groups:
        yield ChangeGroup(group[0][1].time, known=False, kind=kind, changed=tuple(group))


def _within_a_cycle(first: Changed, time: float) -> bool:
    verdict, step = first
    return verdict.history.runs_between(time, step.time) <= 1


def by_group(
    pairs: Sequence[Changed], verdicts: Sequence[Verdict]
) -> dict[GroupKey, list[Changed]]:
    """Return (group, whether for the worse) -> its cases, over all metrics.

    All metrics of one case are reported together: a case that moved with a group in one metric
    and alone in another belongs to the group.
    """
    groups = {verdict.history.of: step.group for verdict, step in pairs if step.group is not None}
    members: dict[GroupKey, list[Changed]] = {}
    worse = _worse(pairs)
    for verdict, step in pairs:
        group = step.group if step.group is not None else groups.get(verdict.history.of)
        members.setdefault((group, worse[verdict.history.of]), []).append((verdict, step))
    for key in [key for key in members if key[0] is None]:
        shared = _in_common(members[key], verdicts)
        if shared is not None and (shared, key[1]) not in members:
            members[shared, key[1]] = members.pop(key)
    return members


def first_figure(pairs: Sequence[Changed]) -> str:
    """Return the name of the most important metric that moved."""
    return min((verdict.history.figure.name for verdict, _ in pairs), key=list(JUDGED).index)


def _in_common(members: Sequence[Changed], verdicts: Sequence[Verdict]) -> Group | None:
    """Return the labels that identify cases which were detected one by one, if any do."""
    changed = {verdict.history.of: verdict.history.labels for verdict, _ in members}
    judged, everyone = (labels_of(verdicts, judged=only).values() for only in (True, False))
    return common_group(list(changed.values()), judged, everyone)


def labels_of(
    verdicts: Sequence[Verdict], figure: Judged | None = None, *, judged: bool
) -> dict[str, Mapping[str, str]]:
    """Return case -> labels, of the cases with a metric; None: any.

    Args:
        judged: only of those with a conclusive verdict.
    """
    return {
        verdict.history.of: verdict.history.labels
        for verdict in verdicts
        if (verdict.state.judged or not judged) and figure in {None, verdict.history.figure}
    }


def sharing(group: Group | None, labels: Mapping[str, Mapping[str, str]]) -> int:
    """Return how many cases have all labels of a group."""
    return 0 if group is None else sum(set(group) <= label.items() for label in labels.values())


def _worse(pairs: Sequence[Changed]) -> dict[str, bool]:
    """Return case -> whether its most important metric moved for the worse."""
    order = list(JUDGED)
    first: dict[str, tuple[int, float]] = {}
    for verdict, step in pairs:
        ranked = (order.index(verdict.history.figure.name), step.effect)
        first[verdict.history.of] = min(ranked, first.get(verdict.history.of, ranked))
    return {case: effect < 0 for case, (_, effect) in first.items()}


# --- Changes: causes, state and size of each group.

Shifts = Sequence[tuple[Event, str, EventShift]]
"""(event, metric, its effect)."""
Effect = tuple[float, float, float]
"""effect, low, high."""


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
        verdicts: of all cases and metrics.
        shifts: the effect of every event on every metric.
        node: empty: unknown.
        environment_changes: of the node, oldest first, before events close together were merged.
        accepted_until: case -> time up to which its changes are accepted, Unix seconds.
    """
    events = {event.time: event for event, _, _ in shifts}
    changes: list[Change] = []
    for occasion in change_groups(verdicts):
        event = events.get(occasion.time) if occasion.known else None
        changes += [
            _change(
                occasion,
                _came_with(event, members, environment_changes),
                group,
                members,
                verdicts,
                shifts,
                issues,
            )
            for (group, _), members in by_group(occasion.changed, verdicts).items()
        ]
    decided = [
        replace(_decided(change, accepted_until), nodes=(node,) if node else ())
        for change in changes
    ]
    return tuple(
        sorted(decided, key=lambda one: (-one.begin, not one.regression, one.group is None))
    )


def _decided(change: Change, accepted_until: Mapping[str, float]) -> Change:
    accepted = all(accepted_until.get(case, -math.inf) >= change.begin for case in change.cases)
    return replace(change, state="accepted") if accepted else change


def _change(
    occasion: ChangeGroup,
    came: CameWith | None,
    group: Group | None,
    members: list[Changed],
    verdicts: Sequence[Verdict],
    shifts: Shifts,
    issues: Sequence[KnownIssue],
) -> Change:
    # Group effects of events do not apply to a change at another time.
    at = math.nan if came is None else occasion.time
    moves = moves_of(at, group, members, shifts)
    histories = {verdict.history.of: verdict.history for verdict, _ in members}
    change = Change(
        begin=occasion.time,
        nodes=(),
        known=came is not None,
        kind=occasion.kind,
        share=statistics.median([step.share for _, step in members]),
        group=group,
        all_but=_all_but(at, group, shifts),
        cases=tuple(histories),
        names=tuple(history.name for history in histories.values()),
        of=sharing(group, labels_of(verdicts, moves[0].figure, judged=True)),
        moves=moves,
    )
    change = _with_course(change, members)
    if came is not None:
        return _with_cause(change, came, [history.labels for history in histories.values()], issues)
    near = () if occasion.kind == "drift" else _near(members[0], shifts)
    return replace(change, candidates=near)


def _with_course(change: Change, members: Sequence[Changed]) -> Change:
    """Return a change with its state, by the cases of its most important metric."""
    figure = change.moves[0].figure
    first = [
        (verdict, (*verdict.accepted, *verdict.steps), step)
        for verdict, step in members
        if verdict.history.figure is figure
    ]
    courses = [step_course(steps, step) for _, steps, step in first]
    reasons = (gain_reason(verdict.history, steps, step) for verdict, steps, step in first)
    ends = [course.end for course in courses if course.end is not None]
    ended = most([course.end is not None for course in courses])
    back = most([course.back for course in courses])
    return replace(
        change,
        reason=next(filter(None, reasons), ""),
        state="resolved" if ended or back or not _is_shown(first, courses) else "open",
        end=statistics.median_low(ends) if ended else None,
        back=back,
    )


def _is_shown(
    members: Sequence[tuple[Verdict, Sequence[CaseStep], CaseStep]], courses: Sequence[StepCourse]
) -> bool:
    """Return whether the step of a case is certain and not accepted."""
    certain = (member for course, member in zip(courses, members, strict=True) if course.certain)
    return any(step not in verdict.accepted for verdict, _, step in certain)


def _with_cause(
    change: Change,
    came: CameWith,
    labels: Sequence[Mapping[str, str]],
    issues: Sequence[KnownIssue],
) -> Change:
    """Return a change with the events that it came with, and the known issues of these."""
    matches = known_issues(
        issues,
        came.events[0].before,
        came.events[-1].after,
        {move.figure.name: move.effect for move in change.moves},
        labels,
    )
    return replace(
        change,
        # A change with a single event has that event's time.
        begin=came.events[0].time if len(came.events) == 1 else change.begin,
        came_with=_differences(came, {label.get("storage", "") for label in labels}),
        events_apart=came.runs,
        issues=matches,
    )


def _differences(came: CameWith, storages: Collection[str]) -> tuple[tuple[Difference, ...], ...]:
    """Return the differences at each event, without options of other storages if it has others."""
    events = [event.differences for event in came.events]
    differences = [
        tuple(difference for difference in event if concerns(difference.fact, storages))
        for event in events
    ]
    return tuple(some or event for some, event in zip(differences, events, strict=True))


def _came_with(
    event: Event | None, members: Sequence[Changed], environment_changes: Sequence[Event]
) -> CameWith | None:
    """Return the events that may have caused a change; None: no event is known at its time."""
    if event is None:
        return None
    figure = JUDGED[first_figure(members)]
    moved = [
        (verdict.history, step, (*verdict.accepted, *verdict.steps))
        for verdict, step in members
        if verdict.history.figure is figure
    ]
    return came_with(moved, event, environment_changes)


def _all_but(time: float, group: Group | None, shifts: Shifts) -> bool:
    return any(shift.all_but for _, shift in _group_shifts(time, group, shifts))


def _near(changed: Changed, shifts: Shifts) -> tuple[NearbyEvent, ...]:
    """Return the events near a change at an unknown time."""
    verdict, step = changed
    times = verdict.history.times()
    nearby = [
        NearbyEvent(
            event.time,
            "environment",
            ", ".join(difference.fact for difference in event.differences),
        )
        for event in {event.time: event for event, _, _ in shifts}.values()
    ]
    index = verdict.history.split(step.time)
    return candidates(times, index, [*nearby, *gaps(times)])


def moves_of(
    time: float, group: Group | None, members: Sequence[Changed], shifts: Shifts
) -> tuple[Move, ...]:
    """Return how far each metric moved: the effect on the group, else the median of its cases."""
    own = _pooled(time, group, shifts)
    # A group is detected relative to the other cases: what moved all of them moved it too.
    shared = _pooled(time, (), shifts) if group else {}
    p_values = {name: shift.p_value for name, shift in _group_shifts(time, group, shifts)}
    moves = []
    for figure in JUDGED.values():
        steps = [step for verdict, step in members if verdict.history.figure is figure]
        if not steps:
            continue
        effect, low, high = own.get(figure.name) or _median(steps)
        if figure.name in own and figure.name in shared:
            effect, low, high = _sum(own[figure.name], shared[figure.name])
        clearest = min(1.0, len(steps) * min(step.p_value for step in steps))
        moves.append(
            Move(
                figure=figure,
                effect=effect,
                low=low,
                high=high,
                cases=len(steps),
                runs=min(step.runs for step in steps),
                p_value=min(clearest, p_values.get(figure.name, 1.0)),
            )
        )
    return tuple(moves)


def _pooled(time: float, group: Group | None, shifts: Shifts) -> dict[str, Effect]:
    """Return metric -> effect of an event on a group."""
    return {
        name: (shift.effect, shift.low, shift.high)
        for name, shift in _group_shifts(time, group, shifts)
    }


def _group_shifts(
    time: float, group: Group | None, shifts: Shifts
) -> Iterator[tuple[str, GroupShift]]:
    """Yield (metric, effect of an event on a group)."""
    for event, name, shift in shifts:
        if event.time == time:
            yield from (
                (name, group_shift) for group_shift in shift.groups if group_shift.group == group
            )


def _sum(one: Effect, other: Effect) -> Effect:
    effect = one[0] + other[0]
    reach = math.hypot((one[2] - one[1]) / 2, (other[2] - other[1]) / 2)
    return effect, effect - reach, effect + reach


def _median(steps: Sequence[CaseStep]) -> Effect:
    middle = statistics.median_low([step.effect for step in steps])
    step = next(step for step in steps if step.effect == middle)
    return step.effect, step.low, step.high


def most(votes: Sequence[bool]) -> bool:
    """Return whether more than half of the votes are True."""
    return 2 * sum(votes) > len(votes)
