"""Shifts of every block at every place, in the scale that blocks of their length have had.

The largest of them is measured in the scale that the largest has had: the history pays for the
looking, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.levels import quantile, references, shifts, spread
from pvebench.analysis.placebo import LEAST

if TYPE_CHECKING:
    from pvebench.analysis.levels import Matrix, Places

    Shifts = tuple[Matrix, Matrix]

BLOCKS: Final = (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20)
"""Runs after a change that are looked at. Three at least: one point is never a change."""
PENALTY: Final = {3: 1.35, 4: 1.2, 5: 1.07, 10: 1.1, 12: 1.3, 14: 1.45, 17: 1.6, 20: 1.7}
"""What a block's scale is multiplied by: short ones agree by accident more often than it tells,
and of long ones there were too few in any history to know how far they stray by themselves."""
WINDOW: Final = 80
SHORTER: Final = {1: 0.772, 2: 0.908}
"""Blocks that are too short to judge, of which there are many: what scale a guarded shift of three
runs would have, from theirs, if runs were independent (0.78 of theirs without a guard)."""
PRIOR: Final = 1000.0
"""How many independent blocks the scale of shorter blocks is worth. Large, since a history has
few long blocks, and an uncertain scale costs more than a wrong one, which `usual_size` mends."""
INDEPENDENT: Final = 1.85
"""The scan's usual size where runs are independent."""
BELIEF: Final = 200.0
"""How many independent maxima that is worth; `SPACING` runs give one."""
SPACING: Final = 10.0
USUAL: Final = 0.8
"""Quantile of the scan's earlier maxima that is its scale."""
RENEWED: Final = 5
"""Runs that make a level after a change: too few to be sure of it, which is reckoned with, but
without any, a second change soon after the first would go unseen."""
WORTH: Final = 2.0
"""Standard deviations, by the level's own noise, below which a block is not looked at."""
ENOUGH: Final = 40
"""Earlier maxima that make a scale; before there are so many, nothing is said."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Shifts of every block at every place: {block: (shift, guarded shift)}, each [places].

    `start` is where the last segment begins.
    """

    values: Matrix
    parts: dict[int, Shifts]
    segments: tuple[float, ...]
    noise: Matrix
    start: int

    def worth_judging(self) -> list[int]:
        """Return the numbers of runs after which any block stands out at all.

        Far below what makes a change, and far cheaper: most runs end here.
        """
        import numpy as np

        out = np.zeros(len(self.values) + 1, dtype=bool)
        for block in BLOCKS:
            if block not in self.parts:
                break
            guard = self.parts[block][1]
            usual = np.sqrt(1 / block + 1 / WINDOW) * self.noise[: len(guard)]
            out[block:] |= np.abs(guard) > WORTH * usual
        return [int(runs) for runs in np.flatnonzero(out)]


def trace_of(values: Sequence[float], starts: Sequence[int]) -> Trace:
    """Return the shifts at all places; a place uses only runs before the end of its block."""
    import numpy as np

    row = np.asarray(values, dtype=float)[None, :]
    runs = row.shape[1]
    level, scale = (np.full((1, runs + 1), np.nan) for _ in range(2))
    length = np.ones(runs + 1)
    for start, end in zip(starts, [*starts[1:], runs], strict=True):
        least = LEAST if start == 0 else RENEWED
        part = references(row[:, start:end], window=WINDOW, least=least)
        level[:, start : end + 1], scale[:, start : end + 1] = part
        length[start : end + 1] = np.clip(np.arange(end - start + 1), 1, WINDOW)
    parts = {}
    for block in (*SHORTER, *BLOCKS):
        if block > runs:
            break
        mean, guard = (part[0] for part in shifts(row, level, scale, block=block))
        # A level of twelve runs is less sure of itself than one of eighty.
        sure = np.sqrt((1 / block + 1 / WINDOW) / (1 / block + 1 / length[: len(guard)]))
        parts[block] = (mean, guard * sure)
    medians = (np.median(row[0, a:b]) for a, b in itertools.pairwise([*starts, runs]) if b > a)
    segments = tuple(float(median) for median in medians)
    return Trace(row[0], parts, segments, scale[0], starts[-1])


def scales_of(trace: Trace, runs: int, first: int) -> dict[int, float]:
    """Return each block's scale from its earlier places, leaning on that of shorter blocks."""
    import numpy as np

    learnt, scales = 0.0, {}
    for block, (_, guard) in trace.parts.items():
        place = runs - block
        if place < 0 or np.isnan(guard[place]):
            continue
        past = guard[first : place - block + 1]
        past = past[~np.isnan(past)]
        if len(past) < max(15, block):
            continue
        root = np.sqrt(1 / block + 1 / WINDOW)
        seen = float(spread(past[None, :])[0] / root) ** 2
        seen *= SHORTER.get(block, 1.0) ** 2
        weight = len(past) / block
        learnt = (PRIOR * (learnt or seen) + weight * seen) / (PRIOR + weight)
        if block not in SHORTER:
            scales[block] = float(root * np.sqrt(learnt)) * PENALTY.get(block, 1.0)
    return scales


def usual_size(trace: Trace, scales: dict[int, float], ends: Places) -> tuple[float, float] | None:
    """Return the usual and the largest size of the scan's maximum over the earlier `ends`.

    None if there are too few of them.
    """
    import numpy as np

    largest = np.zeros(len(ends))
    for block, scale in scales.items():
        places = ends - block
        inside = places >= 0
        sizes = np.nan_to_num(np.abs(trace.parts[block][1][places[inside]])) / scale
        largest[inside] = np.maximum(largest[inside], sizes)
    largest = largest[largest > 0]
    if len(largest) < ENOUGH:
        return None
    # In a short history this quantile swings by a twentieth, and every twentieth costs alarms.
    weight = len(largest) / SPACING
    square = BELIEF * INDEPENDENT**2 + weight * float(quantile(largest, USUAL)) ** 2
    return math.sqrt(square / (BELIEF + weight)), float(largest.max())
