"""How far the figures of a group of cases have moved."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pvebench.analysis.event import EventShift
from pvebench.analysis.events import Event
from pvebench.analysis.figures import FIGURES
from pvebench.analysis.findings import Move
from pvebench.analysis.groups import Group
from pvebench.analysis.together import Changed
from pvebench.analysis.verdict import CaseStep

Shifts = Sequence[tuple[Event, str, EventShift]]
"""(event, figure, what it did)."""
Effect = tuple[float, float, float]
"""effect, low, high."""


def moves_of(
    time: float, group: Group | None, members: Sequence[Changed], shifts: Shifts
) -> tuple[Move, ...]:
    """Return how far each figure moved: as the group was found to, else as its cases did."""
    own = _pooled(time, group, shifts)
    # A group is found against the other cases: what moved everything has moved it too.
    shared = _pooled(time, (), shifts) if group else {}
    found = []
    for figure in FIGURES.values():
        steps = [step for verdict, step in members if verdict.history.figure is figure]
        if not steps:
            continue
        effect, low, high = own.get(figure.name) or _median(steps)
        if figure.name in own and figure.name in shared:
            effect, low, high = _sum(own[figure.name], shared[figure.name])
        runs = min(step.runs for step in steps)
        found.append(
            Move(figure=figure, effect=effect, low=low, high=high, cases=len(steps), runs=runs)
        )
    return tuple(found)


def _pooled(time: float, group: Group | None, shifts: Shifts) -> dict[str, Effect]:
    """Return figure -> how far a group was found to have moved at an event."""
    return {
        name: (named.shift.effect, named.shift.low, named.shift.high)
        for event, name, shift in shifts
        if event.time == time
        for named in shift.groups
        if named.shift.group == group
    }


def _sum(one: Effect, other: Effect) -> Effect:
    effect = one[0] + other[0]
    reach = math.hypot((one[2] - one[1]) / 2, (other[2] - other[1]) / 2)
    return effect, effect - reach, effect + reach


def _median(steps: Sequence[CaseStep]) -> Effect:
    middle = statistics.median_low([step.effect for step in steps])
    step = next(step for step in steps if step.effect == middle)
    return step.effect, step.low, step.high
