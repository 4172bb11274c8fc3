"""Slow degradation: a level that creeps, too slowly for a scan whose level creeps along."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trend:
    """A slow change of level over a whole segment; logarithms, plus for better.

    Attributes:
        effect: level of the last eighth against that of the first.
        per_run: slope.
        runs: of the segment.
    """

    effect: float
    per_run: float
    runs: int


def slow_trend(values: Sequence[float]) -> Trend | None:
    """Return the creeping change of a segment, or None.

    Eight levels in a row that rise (or fall) without exception, by more than their own noise:
    too slow for the scan, whose level before creeps along. A daily or seasonal swing looks
    the same for a while, so that a trend is a reason to look, never a confirmed change.
    """
    size = len(values) // 8
    if size < 5:
        return None
    used = values[len(values) - 8 * size :]
    levels = [statistics.median(used[size * i : size * (i + 1)]) for i in range(8)]
    steps = [after - before for before, after in itertools.pairwise(levels)]
    if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
        return None
    effect = levels[-1] - levels[0]
    if abs(effect) < 4 * statistics.stdev(steps):
        return None
    return Trend(effect, effect / (7 * size), len(used))
