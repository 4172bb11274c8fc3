"""Slow degradation: a level that creeps, too slowly for a scan whose level creeps along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pvebench.analysis.levels import TINY
from pvebench.analysis.placebo import critical, two_sided

if TYPE_CHECKING:
    from pvebench.analysis.levels import Matrix

WINDOWS: Final = (80, 120, 160, 240, 320, 480, 640)
"""Newest runs that are looked at: a creep may have begun lately, or long ago."""
LEVELS: Final = 16
"""Levels that a window is made of."""
WANDER: Final = 4.0
"""How many times further a level that wanders by itself (a random walk) strays from where it
was than its scatter about a line tells; measured, see `bench/judging/creep.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A level that creeps; logarithms, plus for better.

    Attributes:
        start: index of the first run of the window.
        runs: of the window.
        effect, low, high: change over the window and its 95 % interval.
        p_value: of a line as steep in a level that only wanders.
    """

    start: int
    runs: int
    effect: float
    low: float
    high: float
    p_value: float


def slow_trend(values: Sequence[float], *, least: int = WINDOWS[0]) -> Trend | None:
    """Return the clearest creep of the newest runs; None if there are too few of them.

    A line through the medians of equal parts of a window, held against their scatter about
    it: whatever swings to and fro within the window pays for it. What a level that wanders
    would do by itself is paid for by `WANDER`. Half a swing looks like a creep all the same.

    Args:
        values: [runs], oldest first; known steps are levelled out.
        least: runs that a window must have.
    """
    import numpy as np

    row = np.asarray(values, dtype=float)
    found = [_line(row, runs) for runs in WINDOWS if least <= runs <= len(row)]
    if not found:
        return None
    best = min(found, key=lambda one: one.p_value)
    return replace(best, p_value=min(1.0, len(WINDOWS) * best.p_value))


def _line(values: Matrix, runs: int) -> Trend:
    """Return the line through the newest `runs`, as a change from their first to their last."""
    import numpy as np

    size = runs // LEVELS
    levels = np.median(values[len(values) - LEVELS * size :].reshape(LEVELS, size), axis=1)
    place = np.arange(LEVELS) - (LEVELS - 1) / 2
    power = float(place @ place)
    slope = float(place @ levels) / power
    rest = levels - levels.mean() - slope * place
    degrees = LEVELS - 2
    error = max(math.sqrt(float(rest @ rest) / degrees / power), TINY)
    effect, reach = LEVELS * slope, LEVELS * critical(0.05, degrees) * error
    return Trend(
        start=len(values) - LEVELS * size, runs=LEVELS * size, effect=effect,
        low=effect - reach, high=effect + reach,
        p_value=float(two_sided(slope / error / WANDER, degrees)),
    )  # fmt: skip
