"""Changes of a node that one event caused, joined to one change.

Detection groups cases by their labels and by when they changed back. After one upgrade, most cases
may be one group, some are listed one by one, and others end later: users see one event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.case_history import common_group
from pvebench.analysis.change import Change, joined, similar_size
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.verdict import Verdict

SAME_EVENT_SECONDS: Final = 86400.0
"""Maximum time between the starts of changes with one cause; a later upgrade is another event."""


def of_one_event(report: NodeReport) -> tuple[Change, ...]:
    """Return the changes of a node in their order, those of one event joined to the first.

    One event: the same new versions at one time, and the same metric moved the same way about as
    far. Open and closed changes stay separate: what lasts needs attention.
    """
    changes: list[Change] = []
    for change in report.findings:
        place = next((i for i, one in enumerate(changes) if _same_event(one, change)), None)
        if place is None:
            changes.append(change)
        else:
            changes[place] = _joined(changes[place], change, report.verdicts)
    return tuple(changes)


def _same_event(change: Change, other: Change) -> bool:
    near = abs(change.begin - other.begin) <= SAME_EVENT_SECONDS
    separable = change.known and other.known and not (change.all_but or other.all_but)
    alike = near and separable and _traits(change) == _traits(other)
    return alike and similar_size(change.moves[0], other.moves[0])


def _traits(change: Change) -> tuple[object, ...]:
    return change.kind, change.state, change.back, change.implausible, change.came_with


def _joined(change: Change, other: Change, verdicts: Sequence[Verdict]) -> Change:
    """Return both as one; its group and size follow from all of its cases."""
    first, second = sorted((change, other), key=lambda one: -len(one.cases))
    whole = joined(first, second)
    labels = {
        one.history.of: one.history.labels
        for one in verdicts
        if one.state.judged and one.history.figure is whole.moves[0].figure
    }
    changed = [labels[case] for case in whole.cases if case in labels]
    group = common_group(changed, list(labels.values())) if changed else None
    sharing = [one for one in labels.values() if group is not None and set(group) <= one.items()]
    return replace(whole, group=group, of=len(sharing), issues=first.issues or second.issues)
