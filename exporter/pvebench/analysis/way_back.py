"""The way back to the level before the last step, however restless the runs between were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pvebench.analysis.levels.robust import MAD_TO_SIGMA, TINY

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Flags, Matrix

LONG: Final = 14
"""Newest runs that must be back: more than a pause between two bursts of load."""
NEARER: Final = 0.85
"""Share of them that must be nearer to the earlier level than to the one after the step."""
WITHIN: Final = 0.35
"""Share of the step within which their middle must lie from the earlier level."""
APART: Final = 2.0
"""Scales of the earlier runs by which a step must be large, so that every run tells its side."""
BY_CHANCE: Final = 3e-8
"""p-value of as many runs, each a scale off, at the level after the step."""
SHORTEST: Final = 3
"""Runs between a step and the way back."""
WINDOW: Final = 80
"""Runs before the step that tell how far one strays."""


def back_again(runs: Matrix, since: int, at: int, level: float, effect: float) -> Flags:
    """Tell for every run as the newest one whether the newest `LONG` are at the earlier level.

    What was measured after a step may be restless, as a neighbour's load is, and then says
    little of its own level; the runs before the step know theirs, and how far they stray.

    Args:
        runs: [runs] logarithms, without glitches.
        since: first run of the level that was left.
        at: first run after the step.
        level: that was left.
        effect: of the step.
    """
    import numpy as np

    found = np.zeros(len(runs), dtype=bool)
    first = at + SHORTEST
    if len(runs) < first + LONG:
        return found
    earlier = runs[max(since, at - WINDOW) : at]
    scale = MAD_TO_SIGMA * float(np.median(np.abs(earlier - level)))
    if abs(effect) < APART * max(scale, TINY):
        return found
    away = np.lib.stride_tricks.sliding_window_view(runs[first:], LONG) - level
    near = np.mean(np.abs(away) < abs(effect) / 2, axis=-1) >= NEARER
    middle = np.abs(np.median(away, axis=-1)) < WITHIN * abs(effect)
    found[first + LONG - 1 :] = near & middle
    return found
