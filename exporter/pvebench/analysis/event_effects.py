"""Effect of one event on one metric of all cases, alone and in groups."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, LEAST_MEMBERS, CaseHistory, CaseStep
from pvebench.analysis.difference import critical
from pvebench.analysis.group_effects import (
    CASE_LEVEL,
    LEAST_RUNS,
    NOTHING,
    Common,
    GroupShift,
    NodeShift,
    PlaceShifts,
    judge_cases,
    shifts_at_place,
)
from pvebench.analysis.levels import TINY
from pvebench.analysis.noise_patterns import like_hours, spread_out, without_hours

MOST_AFTER: Final = 30
"""Maximum number of runs after a change to examine."""
RUNGS: Final = (1, 2, 3, 5, 8, 13, 20, MOST_AFTER)
"""Numbers of runs after a change at which it is judged; confirmed effects stay confirmed."""
MOST_BEFORE: Final = 200
"""Maximum number of cycles before a change to examine."""
LEVEL: Final = 40
"""Runs before a change that give a rough estimate of its size."""
NEW: Final = 1.2
"""Minimum size of a shift of all cases as a multiple of what any earlier hour had."""
SHARED: Final = 2 * LEAST_MEMBERS
"""Minimum cases that show what the host shares."""
MOST_MISSING: Final = 0.3
"""Maximum share of missed cycles of a case that is compared with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventShift:
    """Effect of an event on one metric of all cases.

    Attributes:
        groups: groups that shifted.
        cases: case -> its step, confirmed or not; without cases that lack a baseline or runs after
            the event.
    """

    groups: tuple[GroupShift, ...]
    cases: Mapping[str, CaseStep]


def judge_event(
    histories: Sequence[CaseHistory], at: float, *, until: float, strictness: float = 1.0
) -> EventShift:
    """Return the effect of an event at the time `at`; runs from `until` on belong to the next one.

    Args:
        histories: histories of one metric and node, with known earlier steps leveled out.
        strictness: number of metrics that are tested for the same event.
    """
    groups: list[GroupShift] = []
    cases: dict[str, CaseStep] = {}
    left = [history.before(until) for history in histories]
    while left:
        aligned = align(left, at)
        if aligned is None:
            break
        chosen = [left[row] for row in aligned.rows]
        _judge_together(chosen, aligned, groups, cases, strictness)
        # Cases that missed too many cycles are compared with each other instead.
        left = [left[row] for row in range(len(left)) if row not in set(aligned.rows)]
    return EventShift(groups=tuple(groups), cases=cases)


def like_with_like(history: CaseHistory, at: float, until: float) -> CaseHistory:
    """Return the history up to `until`; after `at` only with runs at hours that also occur before.

    At most `MOST_AFTER` of those.
    """
    history, split = history.before(until), history.split(at)
    times = history.times()
    known, after = times[max(0, split - MOST_BEFORE) : split], times[split:]
    kept = like_hours(known, after)[:MOST_AFTER]
    if len(kept) == len(after):
        return history
    return replace(history, points=history.points.chosen(np.append(np.arange(split), split + kept)))


def _compared(history: CaseHistory, split: int) -> Matrix:
    """Return the runs as logarithms without the effects of their hours."""
    logs = history.logs()
    if not 0 < split < len(logs):
        return logs
    shift = float(np.median(logs[split:]) - np.median(logs[max(0, split - LEVEL) : split]))
    return without_hours(logs, history.times(), [(split, shift)])


def at_rung(history: CaseHistory, at: float, until: float, rung: int) -> CaseHistory:
    """Return the history with at most the first `rung` runs after the time `at`."""
    end = min(history.split(until), history.split(at) + rung)
    return history if end == len(history.points) else replace(history, points=history.points[:end])


def rungs_of(histories: Sequence[CaseHistory], at: float, until: float) -> list[int]:
    """Return the rungs that the runs after the time `at` have reached or, the last one, begun."""
    most = max((history.split(until) - history.split(at) for history in histories), default=0)
    passed = [rung for rung in RUNGS if rung < most]
    return [*passed, *RUNGS[len(passed) : len(passed) + 1]] if most else []


def upheld(earlier: EventShift, later: EventShift, least_effect: float) -> EventShift:
    """Return the later effects, with earlier confirmations whose level has persisted."""
    cases = dict(later.cases)
    for case, old in earlier.cases.items():
        new = cases.get(case)
        if new is None:
            cases[case] = old
        elif old.confirmed and not new.confirmed:
            persists = new.effect / old.effect > 1 / 2 and abs(new.effect) >= least_effect
            cases[case] = replace(new, confirmed=True, group=old.group) if persists else new
    known = {(group.group, group.all_but) for group in later.groups}
    kept = [
        group
        for group in earlier.groups
        if (group.group, group.all_but) not in known
        and any(cases[case].group == group.group for case in group.cases)
    ]
    return EventShift(groups=(*later.groups, *kept), cases=cases)


def _judge_together(
    histories: Sequence[CaseHistory],
    aligned: Aligned,
    groups: list[GroupShift],
    cases: dict[str, CaseStep],
    strictness: float,
) -> None:
    known = shifts_at_place(aligned.before, aligned.after, aligned.counts)
    labels = [history.labels for history in histories]
    of_node = judge_cases(known, labels, host=aligned.host, strictness=strictness)
    named = [
        group for group in of_node.groups if abs(group.effect) >= histories[0].figure.least_effect
    ]
    moved_with = {row: group for group in reversed(named) for row in group.members}
    groups += [
        replace(group, cases=tuple(histories[row].case for row in group.members)) for group in named
    ]
    for row, history in enumerate(histories):
        cases[history.case] = _case_step(
            history, row, known, of_node, moved_with.get(row), aligned, strictness
        )


def _case_step(
    history: CaseHistory,
    row: int,
    known: PlaceShifts,
    of_node: NodeShift,
    group: GroupShift | None,
    aligned: Aligned,
    strictness: float,
) -> CaseStep:
    least, runs = history.figure.least_effect, int(aligned.counts[row])
    # The common shift of the whole host is noise, unless it was detected as an effect.
    effect = float(known.shift[row]) - of_node.common
    reach = critical(0.05, known.degrees) * float(known.scale[row])
    p_value, q_value = float(of_node.p_values[row]), float(of_node.q_values[row])
    large = abs(effect) >= least
    alone = large and runs >= LEAST_RUNS and q_value <= CASE_LEVEL / strictness
    return CaseStep(
        time=aligned.at,
        known=True,
        runs=runs,
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=p_value,
        confirmed=alone or (group is not None and large),
        group=None if group is None else group.group,
    )


@dataclass(frozen=True, slots=True)
class Aligned:
    """Histories aligned around one time.

    Attributes:
        rows: index of each row's history in the input.
        before: [rows, cycles] logarithms, gaps filled with the previous run;
            at most `MOST_BEFORE`.
        after: [rows, runs after], padded with the row's median.
        counts: [rows] actual runs after.
        at: the time.
        host: what the rows share, which is taken from them if there are enough.
    """

    rows: tuple[int, ...]
    before: Matrix
    after: Matrix
    counts: Matrix
    at: float
    host: Common


def align(histories: Sequence[CaseHistory], at: float) -> Aligned | None:
    """Return the histories with a baseline before `at` and runs after it, aligned by cycles.

    A cycle here is the time between two runs of the case with the most runs: a disturbance of the
    whole host in it affects all cases. None if no history can be used.
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
    shared = len(able) >= SHARED
    logs = {
        index: histories[index].logs() if shared else _compared(histories[index], splits[index])
        for index in able
    }
    for index in able:
        row = _by_round(histories[index], logs[index], splits[index], ticks)
        if row is not None:
            rows.append(index)
            before.append(row)
    counts = np.array([len(histories[i].points) - splits[i] for i in rows], dtype=float)
    most = min(int(np.median(counts)), MOST_AFTER)
    after = np.array([_padded(logs[i][splits[i] :].tolist(), most) for i in rows])
    aligned = Aligned(tuple(rows), np.array(before), after, np.minimum(counts, most), at, NOTHING)
    if not shared or len(rows) < SHARED:
        return aligned
    typical = min(rows, key=lambda index: abs(len(histories[index].points) - splits[index] - most))
    times = histories[typical].times()[splits[typical] :][-most:]
    return _without_host(aligned, [*ticks.tolist(), *times])


def _without_host(aligned: Aligned, times: Sequence[float]) -> Aligned:
    """Return the rows without what they share at each cycle, such as a load of the host."""
    split = aligned.before.shape[1]
    level = np.median(aligned.before[:, -LEVEL:], axis=1)[:, None]
    before, after = (np.median(part - level, axis=0) for part in (aligned.before, aligned.after))
    host = common_of(np.concatenate([before, after]), times, split)
    return replace(aligned, before=aligned.before - before, after=aligned.after - after, host=host)


def common_of(series: Matrix, times: Sequence[float], split: int) -> Common:
    """Return what all cases share from place `split` on.

    Args:
        series: [cycles] median distance of the cases from their levels.
        times: of the cycles, Unix seconds.
    """
    before, after = series[:split], series[split:]
    load = float(np.median(after) - np.median(before))
    even = series
    like, most = np.arange(len(after)), 0.0
    if spread_out(times):
        even = without_hours(series, times, [(split, load)])
        like = like_hours(times[:split], times[split:])
        if not len(like):
            return Common(0.0, max(TINY, float(np.std(before))), 1.0, load, math.inf)
        most = NEW * float(np.max(np.abs(before - np.median(before))))
    known = shifts_at_place(even[None, :split], even[None, split:][:, like])
    return Common(float(known.shift[0]), float(known.scale[0]), known.degrees, load, most)


def _by_round(history: CaseHistory, logs: Matrix, split: int, ticks: Matrix) -> Matrix | None:
    """Return one value per cycle; None if too many cycles have none."""
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
