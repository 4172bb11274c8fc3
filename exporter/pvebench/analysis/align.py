"""Histories side by side around one moment, round by round: what the fleet's noise is seen in."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.series import LEAST_BASELINE, History

if TYPE_CHECKING:
    from pvebench.analysis.levels import Matrix

MOST_AFTER: Final = 30
"""Runs after a change that are looked at: the newest ones."""
MOST_BEFORE: Final = 200
"""Rounds before a change that are looked at: the newest ones."""
MOST_MISSING: Final = 0.3
"""Share of rounds that a case may have missed to be compared with the fleet round by round."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """Histories side by side around one moment.

    Attributes:
        rows: index of each row's history in what was given.
        before: [rows, rounds] logarithms, gaps filled with the run before them;
            at most `MOST_BEFORE`.
        after: [rows, runs after], padded with the row's median.
        counts: [rows] real runs after.
    """

    rows: tuple[int, ...]
    before: Matrix
    after: Matrix
    counts: Matrix


def align(histories: Sequence[History], at: float) -> Aligned | None:
    """Return the histories that have a baseline before `at` and runs after it, by rounds.

    A round is the time between two runs of the case that has the most of them: that is when
    a disturbance of the whole host is felt by all. None if no history can be used.
    """
    import numpy as np

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
    ticks = np.array([point.time for point in histories[clock].points[first : splits[clock]]])
    rows, before = [], []
    for index in able:
        row = _by_round(histories[index], splits[index], ticks)
        if row is not None:
            rows.append(index)
            before.append(row)
    counts = np.array([len(histories[i].points) - splits[i] for i in rows], dtype=float)
    most = min(int(np.median(counts)), MOST_AFTER)
    after = np.array([_padded(histories[i].logs()[splits[i] :], most) for i in rows])
    return Aligned(tuple(rows), np.array(before), after, np.minimum(counts, most))


def _by_round(history: History, split: int, ticks: Matrix) -> Matrix | None:
    """Return one value a round, or None if too many rounds are without one."""
    import numpy as np

    first = bisect_left(history.points, ticks[0], hi=split, key=lambda point: point.time)
    values = np.array(history.logs()[first:split])
    if len(values) == len(ticks):
        return values
    times = np.array([point.time for point in history.points[first:split]])
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
