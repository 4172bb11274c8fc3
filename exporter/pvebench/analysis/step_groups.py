"""Group the steps of all cases into changes, each with its causes and its state."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pvebench.analysis.case_history import LEAST_MEMBERS, CaseStep, Group, common_group
from pvebench.analysis.change import (
    Change,
    ChangeState,
    FactDifference,
    Move,
    NearbyEvent,
    candidates,
    gaps,
    known_issues,
)
from pvebench.analysis.events import Event, came_with
from pvebench.analysis.group_effects import EventShift, GroupShift
from pvebench.analysis.verdict import Verdict
from pvebench.model.environment import KnownIssue, concerns
from pvebench.model.figure import VerdictFigure
from pvebench.model.figures import JUDGED

# --- Grouping: steps at one time, drifts, and cases with shared labels.

Changed = tuple[Verdict, CaseStep]
GroupKey = tuple[Group | None, bool]
"""Shared labels of cases, and whether they moved for the worse."""


def of_one_occasion(verdicts: Sequence[Verdict]) -> Iterator[list[Changed]]:
    """Yield the steps of one kind at one event or within one cycle, and all drifts, in no order."""
    steps = [(verdict, step) for verdict in verdicts for step in verdict.steps]
    steps += [(verdict, verdict.creep) for verdict in verdicts if verdict.creep is not None]
    kinds: dict[object, list[Changed]] = {}
    for pair in steps:
        # A switch between usual levels is no change of the other cases.
        known, kind, mode = pair[1].known, pair[1].kind, pair[1].mode
        kinds.setdefault((pair[1].time,) if known else (kind, mode), []).append(pair)
    for pairs in kinds.values():
        # How far back a drift is visible hardly shows when it began: they are reported as one.
        yield from [pairs] if pairs[0][1].known or pairs[0][1].slow else _by_cycle(pairs)


def _by_cycle(pairs: Sequence[Changed]) -> Iterator[list[Changed]]:
    """Yield the steps at unknown times that are within one cycle."""
    group: list[Changed] = []
    for verdict, step in sorted(pairs, key=lambda pair: pair[1].time):
        if group and group[0][0].history.runs_between(step.time, group[0][1].time) > 1:
            yield group
            group = []
        group.append((verdict, step))
    yield group


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


def _in_common(members: Sequence[Changed], verdicts: Sequence[Verdict]) -> Group | None:
    """Return the labels that identify cases which were detected one by one, if any do."""
    changed = {verdict.history.of: verdict.history.labels for verdict, _ in members}
    if len(changed) < LEAST_MEMBERS:
        return None
    judged, everyone = (labels_of(verdicts, judged=only).values() for only in (True, False))
    return common_group(list(changed.values()), judged, everyone)


def labels_of(
    verdicts: Sequence[Verdict], figure: VerdictFigure | None = None, *, judged: bool
) -> dict[str, Mapping[str, str]]:
    """Return case -> labels, of the cases with a metric; None: any.

    Args:
        judged: only of those with a conclusive verdict.
    """
    return {
        verdict.history.of: verdict.history.labels
        for verdict in verdicts
        if (verdict.state.judged or not judged) and figure in (None, verdict.history.figure)
    }


def sharing(group: Group | None, verdicts: Sequence[Verdict], figure: VerdictFigure) -> int:
    """Return how many judged cases with a metric have all labels of a group."""
    if group is None:
        return 0
    labels = labels_of(verdicts, figure, judged=True).values()
    return sum(set(group) <= label.items() for label in labels)


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


def find_changes(
    verdicts: Sequence[Verdict],
    shifts: Shifts,
    issues: Sequence[KnownIssue],
    *,
    node: str,
    environment_changes: Sequence[Event] = (),
) -> tuple[Change, ...]:
    """Return every confirmed change, the newest first.

    Args:
        verdicts: of all cases and metrics.
        shifts: the effect of every event on every metric.
        node: empty: unknown.
        environment_changes: of the node, oldest first, before events close together were merged.
    """
    events = {event.time: event for event, _, _ in shifts}
    changes: list[Change] = []
    for changed in of_one_occasion(verdicts):
        event = events.get(changed[0][1].time) if changed[0][1].known else None
        for (group, _), members in by_group(changed, verdicts).items():
            change = _with_course(_change(event, group, members, shifts), members)
            change = replace(
                change,
                nodes=(node,) if node else (),
                of=sharing(group, verdicts, change.moves[0].figure),
            )
            if event is not None:
                change = _with_cause(change, event, members, environment_changes, issues)
            elif not change.slow:
                change = replace(change, candidates=_near(members[0], events.values()))
            changes.append(change)
    changes.sort(key=lambda change: (-change.begin, not change.regression, change.group is None))
    return tuple(changes)


def _change(
    event: Event | None, group: Group | None, members: Sequence[Changed], shifts: Shifts
) -> Change:
    # Group effects of events do not apply to a change at another time.
    own = _group_shifts(event, group, shifts)
    # A group is detected relative to the other cases: what moved all of them moved it too.
    shared = _group_shifts(event, (), shifts) if group else {}
    histories = {verdict.history.of: verdict.history for verdict, _ in members}
    kind, times = members[0][1].kind, [step.time for _, step in members]
    return Change(
        begin=statistics.median_low(times) if kind == "drift" else min(times),
        nodes=(),
        known=event is not None,
        kind=kind,
        share=statistics.median([step.share for _, step in members]),
        group=group,
        all_but=any(shift.all_but for shift in own.values()),
        cases=tuple(histories),
        names=tuple(history.name for history in histories.values()),
        of=0,
        moves=tuple(_moves(members, own, shared)),
    )


def _with_course(change: Change, members: Sequence[Changed]) -> Change:
    """Return a change with its state, by the cases of its most important metric."""
    figure = change.moves[0].figure
    steps = [step for verdict, step in members if verdict.history.figure is figure]
    ends = [step.end for step in steps if step.end is not None]
    ended, back = 2 * len(ends) > len(steps), 2 * sum(step.back for step in steps) > len(steps)
    shown = any(step.certain and not step.accepted for step in steps)
    state: ChangeState = "resolved" if ended or back or not shown else "open"
    if all(step.accepted for _, step in members):
        state = "accepted"
    return replace(
        change,
        reason=next((step.reason for step in steps if step.reason), ""),
        state=state,
        end=statistics.median_low(ends) if ended else None,
        back=back,
    )


def _with_cause(
    change: Change,
    event: Event,
    members: Sequence[Changed],
    environment_changes: Sequence[Event],
    issues: Sequence[KnownIssue],
) -> Change:
    """Return a change with the events that it came with, and the known issues of these."""
    figure = change.moves[0].figure
    moved = [
        (verdict.history, step, verdict.steps)
        for verdict, step in members
        if verdict.history.figure is figure
    ]
    events, apart = came_with(moved, event, environment_changes)
    labels = [*{verdict.history.of: verdict.history.labels for verdict, _ in members}.values()]
    matches = known_issues(
        issues,
        events[0].before,
        events[-1].after,
        {move.figure.name: move.effect for move in change.moves},
        labels,
    )
    return replace(
        change,
        # A change with a single event has that event's time.
        begin=events[0].time if len(events) == 1 else change.begin,
        came_with=_differences(events, {label.get("storage", "") for label in labels}),
        events_apart=apart,
        issues=matches,
    )


def _differences(
    events: Sequence[Event], storages: Collection[str]
) -> tuple[tuple[FactDifference, ...], ...]:
    """Return the differences at each event, without options of other storages if it has others."""
    own = [
        tuple(known for known in event.differences if concerns(known.fact, storages))
        for event in events
    ]
    return tuple(some or event.differences for some, event in zip(own, events, strict=True))


def _near(changed: Changed, events: Iterable[Event]) -> tuple[NearbyEvent, ...]:
    """Return the events near a change at an unknown time."""
    verdict, step = changed
    times = verdict.history.times()
    nearby = [
        NearbyEvent(
            event.time,
            "environment",
            ", ".join(difference.fact for difference in event.differences),
        )
        for event in events
    ]
    return candidates(times, verdict.history.split(step.time), [*nearby, *gaps(times)])


def _group_shifts(
    event: Event | None, group: Group | None, shifts: Shifts
) -> dict[str, GroupShift]:
    """Return metric -> effect of an event on a group."""
    return {
        name: group_shift
        for other_event, name, shift in shifts
        if other_event is event
        for group_shift in shift.groups
        if group_shift.group == group
    }


def _moves(
    members: Sequence[Changed], own: Mapping[str, GroupShift], shared: Mapping[str, GroupShift]
) -> Iterator[Move]:
    """Yield how far each metric moved: the effect on the group, else the median of its cases."""
    for figure in JUDGED.values():
        steps = [step for verdict, step in members if verdict.history.figure is figure]
        if not steps:
            continue
        middle = statistics.median_low([step.effect for step in steps])
        group, host = own.get(figure.name), shared.get(figure.name)
        shown = group or next(step for step in steps if step.effect == middle)
        effect, reach = shown.effect, shown.high - shown.effect
        if group is not None and host is not None:
            effect, reach = effect + host.effect, math.hypot(reach, host.high - host.effect)
        clearest = min(1.0, len(steps) * min(step.p_value for step in steps))
        yield Move(
            figure=figure,
            effect=effect,
            low=effect - reach,
            high=effect + reach,
            cases=len(steps),
            runs=min(step.runs for step in steps),
            p_value=clearest if group is None else min(clearest, group.p_value),
        )
