"""One event and one figure: what it did to every case, alone and in groups."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, Group
from pvebench.analysis.difference import critical
from pvebench.analysis.group_effects import (
    CASE_LEVEL,
    LEAST_RUNS,
    FleetShift,
    GroupShift,
    Known,
    judge_fleet,
    known_shifts,
)
from pvebench.analysis.noise_patterns import like_hours, spread_out, without_hours

MAYBE: Final = 0.01
"""p-value below which a single case is worth a second look."""
CONTRARY: Final = 2.0
"""Scales by which a member of a group must differ from it to be left out of it."""
MOST_AFTER: Final = 30
"""Runs after a change that are looked at: the newest ones."""
RUNGS: Final = (1, 2, 3, 5, 8, 13, 20, MOST_AFTER)
"""Runs after a change at which it is judged: what a rung has confirmed stays confirmed."""
MOST_BEFORE: Final = 200
"""Rounds before a change that are looked at: the newest ones."""
LEVEL: Final = 40
"""Runs before a change that tell its size roughly."""
MOST_MISSING: Final = 0.3
"""Share of rounds that a case may have missed to be compared with the fleet round by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseShift:
    """What an event did to one case and figure; effects are logarithms, plus for better.

    Attributes:
        since: the event's time.
        runs: after the event that it rests on.
        effect, low, high: shift and its 95 % interval.
        p_value, q_value: of the case alone, beside its groups.
        confirmed: beyond doubt, by itself or with its group.
        maybe: worth a second look.
        group: the group it moved with, or None.
        noise: sigma from run to run.
        least_effect: that counts, of its figure.
    """

    # No history: one is remembered for every event, and would keep all its runs in memory.
    since: float
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
    least_effect: float


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
    histories: Sequence[CaseHistory], at: float, *, until: float, strictness: float = 1.0
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


def like_with_like(history: CaseHistory, at: float, until: float) -> CaseHistory:
    """Return the history up to `until`, after the time `at` with only runs whose hour it knows.

    Of those no more than are ever looked at.
    """
    history, split = history.before(until), history.split(at)
    times = history.times()
    known, after = times[max(0, split - MOST_BEFORE) : split], times[split:]
    if not spread_out([*known, *after[:MOST_AFTER]]):
        return history
    kept = like_hours(known, after)[:MOST_AFTER]
    if len(kept) == len(after):
        return history
    return replace(history, points=history.points.chosen(np.append(np.arange(split), split + kept)))


def _compared(history: CaseHistory, split: int) -> Matrix:
    """Return the runs as logarithms without what their hours do."""
    logs = history.logs()
    if not 0 < split < len(logs):
        return logs
    shift = float(np.median(logs[split:]) - np.median(logs[max(0, split - LEVEL) : split]))
    return without_hours(logs, history.times(), [(split, shift)])


def at_rung(history: CaseHistory, at: float, until: float, rung: int) -> CaseHistory:
    """Return the history with no more than the first `rung` runs after the time `at`."""
    end = min(history.split(until), history.split(at) + rung)
    return history if end == len(history.points) else replace(history, points=history.points[:end])


def rungs_of(histories: Sequence[CaseHistory], at: float, until: float) -> list[int]:
    """Return the rungs that the runs after the time `at` have reached; the last may be halfway."""
    most = max((one.split(until) - one.split(at) for one in histories), default=0)
    passed = [rung for rung in RUNGS if rung < most]
    return [*passed, *RUNGS[len(passed) : len(passed) + 1]] if most else []


def upheld(earlier: EventShift, later: EventShift) -> EventShift:
    """Return what is said later, with what was confirmed earlier as long as its level stays."""
    cases = dict(later.cases)
    for case, old in earlier.cases.items():
        new = cases.get(case)
        if new is None:
            cases[case] = old
        elif old.confirmed and not new.confirmed and _stays(old, new):
            cases[case] = replace(new, confirmed=True, group=old.group)
    known = {(one.shift.group, one.shift.all_but) for one in later.groups}
    kept = [
        one
        for one in earlier.groups
        if (one.shift.group, one.shift.all_but) not in known
        and any(cases[case].group == one.shift.group for case in one.cases)
    ]
    return EventShift(groups=(*later.groups, *kept), cases=cases)


def _stays(old: CaseShift, new: CaseShift) -> bool:
    """Tell whether the better half of a shift is still there."""
    return new.effect / old.effect > 1 / 2 and abs(new.effect) >= old.least_effect


def _judge_together(
    histories: Sequence[CaseHistory],
    aligned: Aligned,
    groups: list[NamedGroup],
    cases: dict[str, CaseShift],
    strictness: float,
) -> None:
    known = known_shifts(aligned.before, aligned.after, aligned.counts)
    fleet = judge_fleet(known, [history.labels for history in histories], strictness=strictness)
    named = [
        group for group in fleet.groups if abs(group.effect) >= histories[0].figure.least_effect
    ]
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
            history, row, known, fleet, moved_with.get(row), aligned, strictness
        )


def _goes_along(known: Known, row: int, effect: float) -> bool:
    """Tell whether a member of a group has moved itself, as far as its own noise shows."""
    away = effect - float(known.shift[row])
    other_way = abs(away) > abs(effect) / 2 and away * effect > 0
    return not (other_way and abs(away) > CONTRARY * float(known.scale[row]))


def _case_shift(
    history: CaseHistory,
    row: int,
    known: Known,
    fleet: FleetShift,
    group: GroupShift | None,
    aligned: Aligned,
    strictness: float,
) -> CaseShift:
    least, runs = history.figure.least_effect, int(aligned.counts[row])
    # What the whole host shares at the event is its noise, unless it was found to be an effect.
    effect = float(known.shift[row]) - fleet.common
    reach = critical(0.05, known.degrees) * float(known.scale[row])
    p_value, q_value = float(fleet.p_values[row]), float(fleet.q_values[row])
    large = abs(effect) >= least
    alone = large and runs >= LEAST_RUNS and q_value <= CASE_LEVEL / strictness
    return CaseShift(
        since=aligned.at,
        runs=runs,
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=p_value,
        q_value=q_value,
        confirmed=alone or (group is not None and large),
        maybe=large and p_value <= MAYBE,
        group=None if group is None else group.group,
        noise=float(known.noise[row]),
        least_effect=least,
    )


@dataclass(frozen=True, slots=True)
class Aligned:
    """Histories side by side around one moment.

    Attributes:
        rows: index of each row's history in what was given.
        before: [rows, rounds] logarithms, gaps filled with the run before them;
            at most `MOST_BEFORE`.
        after: [rows, runs after], padded with the row's median.
        counts: [rows] real runs after.
        at: the moment.
    """

    rows: tuple[int, ...]
    before: Matrix
    after: Matrix
    counts: Matrix
    at: float


def align(histories: Sequence[CaseHistory], at: float) -> Aligned | None:
    """Return the histories that have a baseline before `at` and runs after it, by rounds.

    A round is the time between two runs of the case that has the most of them: that is when
    a disturbance of the whole host is felt by all. None if no history can be used.
    """
    splits = [history.split(at) for history in histories]
    able = [
        index
        for index, (history, split) in enumerate(zip(histories, splits, strict=True))
        if split >= LEAST_BASELINE and len(history.points) > split
    ]
    if not able:
        return None
    clock = max(able, key=lambda index: splits[index])
    first = max(0, splits[clock] - MOST_BEFORE)
    ticks = np.array(histories[clock].times()[first : splits[clock]])
    rows, before = [], []
    logs = {index: _compared(histories[index], splits[index]) for index in able}
    for index in able:
        row = _by_round(histories[index], logs[index], splits[index], ticks)
        if row is not None:
            rows.append(index)
            before.append(row)
    counts = np.array([len(histories[i].points) - splits[i] for i in rows], dtype=float)
    most = min(int(np.median(counts)), MOST_AFTER)
    after = np.array([_padded(logs[i][splits[i] :].tolist(), most) for i in rows])
    return Aligned(tuple(rows), np.array(before), after, np.minimum(counts, most), at)


def _by_round(history: CaseHistory, logs: Matrix, split: int, ticks: Matrix) -> Matrix | None:
    """Return one value a round, or None if too many rounds are without one."""
    first = bisect_left(history.times(), ticks[0], hi=split)
    values = logs[first:split]
    if len(values) == len(ticks):
        return values
    times = np.array(history.times()[first:split])
    rounds = np.clip(np.searchsorted(ticks, times, side="right") - 1, 0, None)
    known = np.unique(rounds)
    if len(known) < (1 - MOST_MISSING) * len(ticks):
        return None
    row = np.full(len(ticks), np.nan)
    row[rounds] = values
    latest = np.maximum.accumulate(np.where(np.isnan(row), -1, np.arange(len(ticks))))
    filled: Matrix = row[np.where(latest < 0, known[0], latest)]
    return filled


def _padded(values: list[float], most: int) -> list[float]:
    newest = values[-most:]
    return newest + [statistics.median(newest)] * (most - len(newest))
