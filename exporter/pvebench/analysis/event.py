"""One event and one figure: what it did to every case, alone and in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.align import Aligned, align
from pvebench.analysis.fleet import CASE_LEVEL, LEAST_RUNS, FleetShift, judge_fleet
from pvebench.analysis.groups import Group, GroupShift
from pvebench.analysis.placebo import Known, critical, known_shifts
from pvebench.analysis.series import History

if TYPE_CHECKING:
    from pvebench.analysis.levels import Matrix

MAYBE: Final = 0.01
"""p-value below which a single case is worth a second look."""
CONTRARY: Final = 2.0
"""Scales by which a member of a group must differ from it to be left out of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseShift:
    """What an event did to one case and figure; effects are logarithms, plus for better.

    Attributes:
        runs: after the event that it rests on.
        effect, low, high: shift and its 95 % interval.
        p_value, q_value: of the case alone, beside its groups.
        confirmed: beyond doubt, by itself or with its group.
        maybe: worth a second look.
        group: the group it moved with, or None.
        noise: sigma from run to run.
    """

    history: History
    runs: int
    effect: float
    low: float
    high: float
    p_value: float
    q_value: float
    confirmed: bool
    maybe: bool
    group: Group | None
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedGroup:
    """A group that moved, with its cases; `shift` as of `judge_fleet`."""

    shift: GroupShift
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventShift:
    """What an event did to all cases of one figure.

    Attributes:
        groups: that moved.
        cases: case -> its shift; cases without a baseline or without a run after are absent.
    """

    groups: tuple[NamedGroup, ...]
    cases: Mapping[str, CaseShift]


def judge_event(
    histories: Sequence[History], at: float, *, until: float, strictness: float = 1.0
) -> EventShift:
    """Return what an event at the time `at` did; runs from `until` on belong to the next one.

    Args:
        histories: of one figure and node; known earlier steps are levelled already.
        strictness: how many such questions are asked of the same event.
    """
    groups: list[NamedGroup] = []
    cases: dict[str, CaseShift] = {}
    left = [history.before(until) for history in histories]
    while left:
        aligned = align(left, at)
        if aligned is None:
            break
        chosen = [left[row] for row in aligned.rows]
        _judge_together(chosen, aligned, groups, cases, strictness)
        # Those that missed too many rounds are compared with one another instead.
        left = [left[row] for row in range(len(left)) if row not in set(aligned.rows)]
    return EventShift(groups=tuple(groups), cases=cases)


def _judge_together(
    histories: Sequence[History], aligned: Aligned, groups: list[NamedGroup],
    cases: dict[str, CaseShift], strictness: float,
) -> None:  # fmt: skip
    known = known_shifts(aligned.before, aligned.after, aligned.counts)
    fleet = judge_fleet(known, [history.labels for history in histories], strictness=strictness)
    named = [
        group for group in fleet.groups
        if abs(group.effect) >= histories[0].figure.least_effect
    ]  # fmt: skip
    moved_with = {
        row: group
        for group in reversed(named)
        for row in group.members
        if _goes_along(known, row, group.effect)
    }
    groups += [
        NamedGroup(shift=group, cases=tuple(histories[row].case for row in group.members))
        for group in named
    ]
    for row, history in enumerate(histories):
        cases[history.case] = _case_shift(
            history, row, known, fleet, moved_with.get(row), aligned.counts, strictness
        )


def _goes_along(known: Known, row: int, effect: float) -> bool:
    """Tell whether a member of a group has moved itself, as far as its own noise shows."""
    away = effect - float(known.shift[row])
    other_way = abs(away) > abs(effect) / 2 and away * effect > 0
    return not (other_way and abs(away) > CONTRARY * float(known.scale[row]))


def _case_shift(
    history: History, row: int, known: Known, fleet: FleetShift, group: GroupShift | None,
    counts: Matrix, strictness: float,
) -> CaseShift:  # fmt: skip
    figure, runs = history.figure, int(counts[row])
    # What the whole host shares at the event is its noise, unless it was found to be an effect.
    effect = float(known.shift[row]) - fleet.common
    reach = critical(0.05, known.degrees) * float(known.scale[row])
    p_value, q_value = float(fleet.p_values[row]), float(fleet.q_values[row])
    large = abs(effect) >= figure.least_effect
    alone = large and runs >= LEAST_RUNS and q_value <= CASE_LEVEL / strictness
    return CaseShift(
        history=history, runs=runs, effect=effect, low=effect - reach, high=effect + reach,
        p_value=p_value, q_value=q_value, confirmed=alone or (group is not None and large),
        maybe=large and p_value <= MAYBE, group=None if group is None else group.group,
        noise=float(known.noise[row]),
    )  # fmt: skip
