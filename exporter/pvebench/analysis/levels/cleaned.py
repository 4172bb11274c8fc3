"""Runs without their glitches: one or two far off between others that agree are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.levels.robust import MAD_TO_SIGMA, TINY, median

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Matrix

AROUND: Final = 5
"""Runs whose median a run is held against, itself in the middle."""
SCALE_RUNS: Final = 41
"""Runs that tell how far a run strays from that median as a rule."""
OUTSIDE: Final = 4.0
"""Such scales beyond which a run is cut."""
NARROWER: Final = 1.15
"""How much less than sigma runs stray from a median that they are part of."""
STEADY: Final = 0.7
"""Share of the mean deviation that a scale has at least: of quantised values most are alike."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A history's runs, [runs].

    Attributes:
        runs: cut where both neighbours are known.
        newest, second: what the newest run, and the one before it, count as when each run is
            the newest: their neighbours to come are not known then.
        scale: from run to run.
    """

    runs: Matrix
    newest: Matrix
    second: Matrix
    scale: Matrix


def cleaned(values: Matrix) -> Cleaned:
    """Return the runs of a history with glitches cut; each scale is of earlier runs only."""
    import numpy as np

    windows = np.lib.stride_tricks.sliding_window_view
    half = AROUND // 2
    middle = median(windows(np.pad(values, half, mode="edge"), AROUND))
    scale = _scale(np.abs(values - middle))
    runs = np.clip(values, middle - OUTSIDE * scale, middle + OUTSIDE * scale)
    back = [np.concatenate([np.repeat(values[:1], lag), values])[: len(values)] for lag in range(5)]
    newest = _within(back[0], back[1:4], scale)
    second = _within(back[1], [back[0], *back[2:5]], scale)
    return Cleaned(runs, newest, second, scale)


def _scale(away: Matrix) -> Matrix:
    import numpy as np

    padded = np.concatenate([np.full(SCALE_RUNS - 1, np.nan), away])
    windows = np.lib.stride_tricks.sliding_window_view(padded, SCALE_RUNS)
    ordered = np.sort(windows, axis=-1)
    counts = np.minimum(np.arange(len(away)) + 1, SCALE_RUNS)
    scale = MAD_TO_SIGMA * NARROWER * middles(ordered, counts)
    cut = np.minimum(windows, 6 * scale[:, None] + TINY)
    mean = np.nansum(cut, axis=-1) / counts
    found: Matrix = np.maximum(np.maximum(scale, STEADY * 1.2533 * mean), TINY)
    return found


def middles(ordered: Matrix, counts: Matrix) -> Matrix:
    """Return the medians of rows that are in order, of the first `counts` of each."""
    import numpy as np

    rows = np.arange(len(ordered))
    found: Matrix = (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2
    return found


def _within(values: Matrix, others: list[Matrix], scale: Matrix) -> Matrix:
    import numpy as np

    low, high = np.min(others, axis=0) - scale, np.max(others, axis=0) + scale
    found: Matrix = np.clip(values, low, high)
    return found
