"""Changes of a node that one event caused, joined to one change.

Detection groups cases by their labels, by metric, and by when they changed back. After one upgrade,
most cases may be one group, some are listed one by one, and some of them again with another metric:
users see one event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.case_history import common_group
from pvebench.analysis.change import Change, joined, similar_size
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.step_groups import labels_of, sharing
from pvebench.analysis.verdict import Verdict
from pvebench.model.judged import JUDGED

SAME_EVENT_SECONDS: Final = 86400.0
"""Maximum time between the starts of changes with one cause; a later upgrade is another event."""
_RANKS: Final = {name: rank for rank, name in enumerate(JUDGED)}


def of_one_event(report: NodeReport) -> tuple[Change, ...]:
    """Return the changes of a node in their order, those of one event joined to the first.

    One event: the same new versions at one time, and the same metric moved the same way about as
    far, or a less important metric of the same cases moved. Open and closed changes stay separate:
    what lasts needs attention.
    """
    changes: list[Change] = []
    for change in (_simplified(change, report.verdicts) for change in report.findings):
        for place, one in enumerate(changes):
            whole = _whole(one, change, report.verdicts)
            if whole is not None:
                changes[place] = whole
                break
        else:
            changes.append(change)
    return tuple(changes)


def _whole(change: Change, other: Change, verdicts: Sequence[Verdict]) -> Change | None:
    """Return both changes as one; None: they may have different causes."""
    near = abs(change.begin - other.begin) <= SAME_EVENT_SECONDS
    named = change.known and other.known and not (change.all_but or other.all_but)
    if not (near and named and _traits(change) == _traits(other)):
        return None
    first, second = sorted((change, other), key=lambda one: (_rank(one), -len(one.cases)))
    if set(second.cases) <= set(first.cases):
        moved = {move.figure.name for move in first.moves}
        more = [move for move in second.moves if move.figure.name not in moved]
        return replace(first, moves=(*first.moves, *more))
    if similar_size(first.moves[0], second.moves[0]):
        return _regrouped(joined(first, second), first.end, verdicts)
    return None


def _traits(change: Change) -> tuple[object, ...]:
    better = change.moves[0].effect > 0
    return change.kind, change.state, change.back, change.implausible, change.came_with, better


def _rank(change: Change) -> int:
    """Return the rank of the metric that a change is about; 0 is the most important one."""
    return _RANKS[change.moves[0].figure.name]


def _regrouped(change: Change, end: float | None, verdicts: Sequence[Verdict]) -> Change:
    """Return a joined change whose group and size follow from all of its cases."""
    figure = change.moves[0].figure
    judged = labels_of(verdicts, figure, judged=True)
    everyone = labels_of(verdicts, figure, judged=False).values()
    changed = [judged[case] for case in change.cases if case in judged]
    group = common_group(changed, judged.values(), everyone) if changed else None
    return replace(change, group=group, of=sharing(group, judged), end=end)


def _simplified(change: Change, verdicts: Sequence[Verdict]) -> Change:
    """Return a change whose group omits the labels that all cases with its metric have."""
    if not change.group:
        return change
    labels = labels_of(verdicts, change.moves[0].figure, judged=False).values()
    telling = [pair for pair in change.group if any(pair not in one.items() for one in labels)]
    return replace(change, group=tuple(telling)) if labels else change
