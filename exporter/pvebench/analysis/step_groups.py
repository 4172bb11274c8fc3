"""Group the steps of all cases into changes, each with its causes and its state."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.case_history import LEAST_MOVED, CaseStep, Group, GroupShift, common_group
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
from pvebench.analysis.verdict import Verdict
from pvebench.model.environment import KnownIssue, concerns
from pvebench.model.figure import VerdictFigure
from pvebench.model.run_metrics import JUDGED
from pvebench.model.units import DAY

Changed = tuple[Verdict, CaseStep]
_RANKS: Final = {name: rank for rank, name in enumerate(JUDGED)}


def find_changes(
    verdicts: Sequence[Verdict],
    events: Sequence[Event],
    issues: Sequence[KnownIssue],
    *,
    node: str,
    environment_changes: Sequence[Event] = (),
) -> tuple[Change, ...]:
    """Return every confirmed change, the newest first.

    Args:
        verdicts: of all cases and metrics.
        events: that the steps were attributed to.
        node: empty: unknown.
        environment_changes: of the node, oldest first, before events close together were merged.
    """
    by_time = {event.time: event for event in events}
    changes: list[Change] = []
    for changed in of_one_occasion(verdicts):
        event = by_time[changed[0][1].time] if changed[0][1].known else None
        for members in by_group(changed):
            change = _change(node, event, members)
            if event is not None:
                change = _with_cause(change, event, members, environment_changes, issues)
            elif not change.slow:
                change = replace(change, candidates=_near(members[0], events))
            changes.append(change)
    changes.sort(key=lambda change: (-change.begin, not change.regression, change.group is None))
    return of_one_event(changes, verdicts)


# --- Grouping: steps at one time, drifts, and groups that shifted together.


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


def by_group(pairs: Sequence[Changed]) -> Iterable[list[Changed]]:
    """Return the steps of each group that moved one way, and those of single cases.

    All metrics of one case are reported together: a case that moved with a group in one metric
    and alone in another belongs to the group. The most important metric decides which way.
    """
    groups = {verdict.history.of: step.group.labels for verdict, step in pairs if step.group}
    worse: dict[str, bool] = {}
    for verdict, step in sorted(pairs, key=lambda pair: _RANKS[pair[0].history.figure.name]):
        worse.setdefault(verdict.history.of, step.effect < 0)
    members: dict[object, list[Changed]] = {}
    for verdict, step in pairs:
        case = verdict.history.of
        group = step.group.labels if step.group else groups.get(case)
        members.setdefault((group, worse[case]), []).append((verdict, step))
    return members.values()


# --- One group: size, state and causes.


def _change(node: str, event: Event | None, members: Sequence[Changed]) -> Change:
    """Return a group as a change, whose state is that of the cases of its first metric."""
    moves, histories = tuple(_moves(members)), {v.history.of: v.history for v, _ in members}
    steps = [step for verdict, step in members if verdict.history.figure is moves[0].figure]
    ends = [step.end for step in steps if step.end is not None]
    ended, back = 2 * len(ends) > len(steps), 2 * sum(step.back for step in steps) > len(steps)
    shown = any(step.certain and not step.accepted for step in steps)
    state: ChangeState = "resolved" if ended or back or not shown else "open"
    if all(step.accepted for _, step in members):
        state = "accepted"
    kind, times = members[0][1].kind, [step.time for _, step in members]
    groups = [step.group for _, step in members if step.group is not None]
    return Change(
        begin=statistics.median_low(times) if kind == "drift" else min(times),
        end=statistics.median_low(ends) if ended else None,
        state=state,
        back=back,
        nodes=(node,) if node else (),
        known=event is not None,
        kind=kind,
        share=statistics.median([step.share for _, step in members]),
        reason=next((step.reason for step in steps if step.reason), ""),
        group=groups[0].labels if groups else None,
        all_but=any(group.all_but for group in groups),
        cases=tuple(histories),
        names=tuple(history.name for history in histories.values()),
        of=0,
        moves=moves,
    )


def _moves(members: Sequence[Changed]) -> Iterator[Move]:
    """Yield how far each metric moved: the effect on the group, else the median of its cases.

    Several groups of one event were found relative to each other: what the cases themselves
    exclude is not the effect on their group.
    """
    for figure in JUDGED.values():
        steps = [step for verdict, step in members if verdict.history.figure is figure]
        if not steps:
            continue
        middle = statistics.median_low([step.effect for step in steps])
        shown: GroupShift | CaseStep = next(step for step in steps if step.effect == middle)
        groups = [step.group for step in steps if step.group is not None]
        if groups and shown.low <= statistics.mode(groups).effect <= shown.high:
            shown = statistics.mode(groups)
        yield Move(
            figure=figure,
            effect=shown.effect,
            low=shown.low,
            high=shown.high,
            cases=len(steps),
            runs=min(step.runs for step in steps),
            p_value=min(
                [
                    1.0,
                    len(steps) * min(step.p_value for step in steps),
                    *(group.p_value for group in groups),
                ]
            ),
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


# --- The groups of one event as one change, and the labels that its cases share.

SAME_EVENT_SECONDS: Final = DAY
"""Maximum time between the starts of changes with one cause; a later upgrade is another event."""
ALIKE: Final = 1.5
"""Maximum ratio of the effects on two nodes that are reported as one change."""


def each_joined(
    changes: Iterable[Change], join: Callable[[Change, Change], Change | None]
) -> tuple[Change, ...]:
    """Return the changes, each as one with the first before it for which `join` returns one."""
    kept: list[Change] = []
    for change in changes:
        joins = ((place, join(earlier, change)) for place, earlier in enumerate(kept))
        whole = ((place, both) for place, both in joins if both is not None)
        place, both = next(whole, (len(kept), change))
        kept[place : place + 1] = [both]
    return tuple(kept)


def of_one_event(changes: Iterable[Change], verdicts: Sequence[Verdict]) -> tuple[Change, ...]:
    """Return the changes of a node in their order, those of one event joined to the first.

    One event: the same new versions at one time, and the same metric moved the same way about as
    far, or a less important metric of the same cases moved. Open and closed changes stay separate:
    what lasts needs attention.
    """
    return tuple(_labelled(change, verdicts) for change in each_joined(changes, _whole))


def _whole(change: Change, other: Change) -> Change | None:
    """Return both changes as one; None: they may have different causes."""
    near = abs(change.begin - other.begin) <= SAME_EVENT_SECONDS
    if not near or change.all_but or other.all_but or not change.may_be(other):
        return None
    first, second = sorted((change, other), key=lambda one: (_rank(one), -len(one.cases)))
    if set(second.cases) <= set(first.cases):
        moved = {move.figure.name for move in first.moves}
        more = [move for move in second.moves if move.figure.name not in moved]
        return replace(first, moves=(*first.moves, *more))
    if similar_size(first.moves[0], second.moves[0]):
        # The labels of one group are not those of both.
        return replace(joined(first, second), group=None, end=first.end)
    return None


def _rank(change: Change) -> int:
    """Return the rank of the metric that a change is about; 0 is the most important one."""
    return _RANKS[change.moves[0].figure.name]


def _labelled(change: Change, verdicts: Sequence[Verdict]) -> Change:
    """Return a change with the labels that its cases share, and the number of cases with these.

    Labels that all cases with its metric have are omitted. Cases without a verdict do not count,
    unless they changed.
    """
    figure, group, all_but = change.moves[0].figure, change.group, change.all_but
    everyone = _labels(verdicts, figure, judged=False)
    members = {case: everyone[case] for case in change.cases if case in everyone}
    judged = (_labels(verdicts, figure, judged=True) | members).values()
    # Several groups of one event may be what the others are not.
    if all_but and len(members) < LEAST_MOVED * _count(group, judged, all_but=True):
        group, all_but = None, False
    if group is None:
        group = common_group([*members.values()], judged, everyone.values())
    elif group:
        every = [label.items() for label in everyone.values()]
        group = tuple(pair for pair in group if any(pair not in labels for labels in every))
    of = _count(group, judged, all_but=all_but)
    return replace(change, group=group, all_but=all_but, of=of)


def _count(group: Group | None, cases: Iterable[Mapping[str, str]], *, all_but: bool) -> int:
    """Return how many cases have all labels of a group, or do not."""
    if group is None:
        return 0
    return sum((set(group) <= labels.items()) != all_but for labels in cases)


def _labels(
    verdicts: Sequence[Verdict], figure: VerdictFigure, *, judged: bool
) -> dict[str, Mapping[str, str]]:
    """Return case -> labels, of the cases with a metric; or only of those with a verdict on it."""
    return {
        verdict.history.of: verdict.history.labels
        for verdict in verdicts
        if (verdict.state.judged or not judged) and figure is verdict.history.figure
    }


# --- The same change of several nodes.


def merge_nodes(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes with equal ones of several nodes joined.

    Equal: the same new versions, the same group of cases, the same direction and about the same
    size. A change at an unknown time stays separate on each node.
    """
    return each_joined(changes, _of_nodes)


def _of_nodes(change: Change, other: Change) -> Change | None:
    separate = not set(other.nodes) & set(change.nodes)
    concurrent, other_concurrent = (
        {one.text for one in each.meanwhile} for each in (change, other)
    )
    cases = (change.group, change.all_but, concurrent) == (
        other.group,
        other.all_but,
        other_concurrent,
    )
    alike = cases and change.group is not None and change.may_be(other)
    return (
        joined(change, other)
        if separate and alike and similar_size(change.moves[0], other.moves[0])
        else None
    )


def similar_size(move: Move, other: Move) -> bool:
    """Return whether the same metric moved the same way and about as far."""
    if move.figure is not other.figure or move.effect * other.effect <= 0:
        return False
    return abs(math.log(move.effect / other.effect)) < math.log(ALIKE)


def joined(change: Change, other: Change) -> Change:
    """Return two changes of different cases as one; their labels stay those of the first."""
    ends = [end for end in (change.end, other.end) if end is not None]
    return replace(
        change,
        nodes=tuple(sorted({*change.nodes, *other.nodes})),
        begin=min(change.begin, other.begin),
        end=max(ends, default=None),
        cases=(*change.cases, *other.cases),
        names=(*change.names, *other.names),
        of=change.of + other.of,
        moves=tuple(_mean(move, other.moves) for move in change.moves),
    )


def _mean(move: Move, others: Sequence[Move]) -> Move:
    """Return a metric's move on both nodes, weighted by cases; the interval spans both."""
    other_move = next((one for one in others if one.figure is move.figure), None)
    if other_move is None:
        return move
    cases = move.cases + other_move.cases
    effect = (move.cases * move.effect + other_move.cases * other_move.effect) / cases
    return replace(
        move,
        effect=effect,
        low=min(move.low, other_move.low),
        high=max(move.high, other_move.high),
        cases=cases,
        runs=min(move.runs, other_move.runs),
        p_value=min(move.p_value, other_move.p_value),
    )
