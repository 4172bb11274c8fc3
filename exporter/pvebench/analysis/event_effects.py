"""Effect of one event on one metric of all cases, after one run and after more."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, LEAST_MEMBERS, CaseHistory, CaseStep
from pvebench.analysis.group_effects import NOTHING, Common, shift_of_cases
from pvebench.analysis.levels import TINY
from pvebench.analysis.noise_patterns import like_hours, spread_out, without_hours
from pvebench.analysis.placebos import Past

MOST_AFTER: Final = 30
"""Maximum number of runs after a change to examine."""
RUNGS: Final = (1, 2, 3, 5, 8, 13, 20)
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


def around(histories: Sequence[CaseHistory], at: float, until: float) -> list[CaseHistory]:
    """Return the histories up to the first runs from the time `at` on, without those `until`.

    Few cases do not show what the host shares: of them, only runs at hours that also occur before.
    """
    histories = [history.before(until) for history in histories]
    if len(histories) < SHARED:
        return [_like_with_like(history, at) for history in histories]
    return [
        replace(history, points=history.points[: history.split(at) + MOST_AFTER])
        for history in histories
    ]


def _like_with_like(history: CaseHistory, at: float) -> CaseHistory:
    split, times = history.split(at), history.times()
    kept = like_hours(times[max(0, split - MOST_BEFORE) : split], times[split:])[:MOST_AFTER]
    if len(kept) == len(times) - split:
        return history
    return replace(history, points=history.points.chosen(np.append(np.arange(split), split + kept)))


def judge_event(
    histories: Sequence[CaseHistory], at: float, *, strictness: float = 1.0
) -> dict[str, CaseStep]:
    """Return case -> its step at an event at the time `at`, confirmed or not.

    Cases that lack a baseline or runs after the event have none.

    Args:
        histories: histories of one metric and node `around` it, with earlier steps leveled out.
        strictness: number of metrics that are tested for the same event.
    """
    left, steps = list(histories), dict[str, CaseStep]()
    while (aligned := _align(left, at)) is not None:
        steps |= _at_rungs(aligned, at, strictness)
        # Cases that missed too many cycles are compared with each other instead.
        left = [history for history in left if history.case not in steps]
    return steps


def _at_rungs(aligned: _Aligned, at: float, strictness: float) -> dict[str, CaseStep]:
    """Return the steps after all runs, with earlier confirmations whose level has persisted."""
    shared = np.zeros(aligned.before.shape[1])
    level = np.median(aligned.before[:, -LEVEL:], axis=1)[:, None]
    if aligned.shared:
        shared = np.median(aligned.before - level, axis=0)
    past = Past(aligned.before - shared)
    most = max(map(len, aligned.after))
    steps: dict[str, CaseStep] = {}
    for runs in (*(rung for rung in RUNGS if rung < most), most):
        after, counts = aligned.first(runs)
        host = NOTHING
        if aligned.shared:
            # What all cases share at each cycle, such as a load of the host, is none of theirs.
            common = np.median(after - level, axis=0)
            after = after - common
            times = aligned.times(runs, len(common))
            host = common_of(np.append(shared, common), times, len(shared))
        known = past.at(after, counts)
        later = shift_of_cases(known, aligned.histories, at, host=host, strictness=strictness)
        steps = later | _upheld(steps, later, aligned.histories[0].figure.least_effect)
    return steps


def _upheld(
    earlier: Mapping[str, CaseStep], later: Mapping[str, CaseStep], least_effect: float
) -> dict[str, CaseStep]:
    """Return the later steps of the cases whose earlier confirmations alone have persisted."""
    steps = {}
    for case, old in earlier.items():
        new = later[case]
        persists = old.confirmed and new.effect / old.effect > 1 / 2
        if persists and not new.confirmed and abs(new.effect) >= least_effect:
            steps[case] = replace(new, confirmed=True, group=old.group)
    return steps


@dataclass(frozen=True, slots=True)
class _Aligned:
    """Histories aligned around one time, as logarithms.

    Attributes:
        before: [cases, cycles], gaps filled with the previous run.
        after: of each case, the runs after the time.
        cycles: times of the cycles.
        ended: of each case, times of the runs after.
    """

    histories: Sequence[CaseHistory]
    before: Matrix
    after: Sequence[Matrix]
    cycles: Sequence[float]
    ended: Sequence[Sequence[float]]

    @property
    def shared(self) -> bool:
        """Whether these are enough cases to show what the host shares."""
        return len(self.histories) >= SHARED

    def first(self, runs: int) -> tuple[Matrix, Matrix]:
        """Return the first runs after the time, padded with the case's median; and their number."""
        counts = np.minimum([len(own) for own in self.after], runs)
        most = int(np.median(counts))
        after = [_padded(own[:runs], most) for own in self.after]
        return np.array(after), np.minimum(counts, most).astype(float)

    def times(self, runs: int, most: int) -> list[float]:
        """Return the times of the cycles and of the latest `most` of the first `runs` after."""
        typical = min((ended for ended in self.ended if len(ended) >= most), key=len)
        return [*self.cycles, *typical[:runs][-most:]]


def _align(histories: Sequence[CaseHistory], at: float) -> _Aligned | None:
    """Return the histories with a baseline before `at` and runs after it, aligned by cycles.

    A cycle here is the time between two runs of the case with the most runs: a disturbance of the
    whole host in it affects all cases. None if no history can be used.
    """
    able = [
        history
        for history in histories
        if LEAST_BASELINE <= history.split(at) < len(history.points)
    ]
    if not able:
        return None
    clock = max(able, key=lambda history: history.split(at))
    split = clock.split(at)
    cycles = clock.times()[max(0, split - MOST_BEFORE) : split]
    kept, before, after = [], [], []
    for history in able:
        split = history.split(at)
        logs = history.logs() if len(able) >= SHARED else _without_own_hours(history, split)
        row = _by_cycle(history, logs, split, np.asarray(cycles))
        if row is not None:
            kept.append(history)
            before.append(row)
            after.append(logs[split:])
    ended = [history.times()[history.split(at) :] for history in kept]
    return _Aligned(kept, np.array(before), after, cycles, ended)


def _without_own_hours(history: CaseHistory, split: int) -> Matrix:
    """Return the runs as logarithms without the effects of their hours."""
    logs = history.logs()
    shift = float(np.median(logs[split:]) - np.median(logs[max(0, split - LEVEL) : split]))
    return without_hours(logs, history.times(), [(split, shift)])


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
            return replace(NOTHING, scale=max(TINY, float(np.std(before))), load=load)
        most = NEW * float(np.max(np.abs(before - np.median(before))))
    counts = np.array([len(like)])
    known = Past(even[None, :split]).at(even[None, split:][:, like], counts)
    return Common(float(known.shift[0, 0]), float(known.scale[0, 0]), known.degrees, load, most)


def _by_cycle(history: CaseHistory, logs: Matrix, split: int, cycles: Matrix) -> Matrix | None:
    """Return one value per cycle; None if too many cycles have none."""
    first = bisect_left(history.times(), cycles[0], hi=split)
    values = logs[first:split]
    if len(values) == len(cycles):
        return values
    times = np.array(history.times()[first:split])
    rounds = np.clip(np.searchsorted(cycles, times, side="right") - 1, 0, None)
    known = np.unique(rounds)
    if len(known) < (1 - MOST_MISSING) * len(cycles):
        return None
    row = np.full(len(cycles), np.nan)
    row[rounds] = values
    latest = np.maximum.accumulate(np.where(np.isnan(row), -1, np.arange(len(cycles))))
    filled: Matrix = row[np.where(latest < 0, known[0], latest)]
    return filled


def _padded(values: Matrix, most: int) -> Matrix:
    newest = values[-most:]
    if len(newest) == most:
        return newest
    return np.append(newest, [statistics.median(newest)] * (most - len(newest)))
