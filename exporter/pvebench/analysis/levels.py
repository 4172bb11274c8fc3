"""Robust levels of runs, and the removal of glitches: outliers between runs that agree."""

from __future__ import annotations

from typing import Final

from pvebench.analysis.arrays import Matrix, np

# --- robust levels: one or two glitches in a window hardly change them ---

MAD_TO_SIGMA: Final = 1.4826
"""Median absolute deviation of a normal distribution, inverted."""
MEAN_TO_SIGMA: Final = 1.2533
"""Mean absolute deviation of a normal distribution, inverted."""
CLIP: Final = 1.5
"""Huber's constant: runs further than this from the median are clipped to this distance."""
TINY: Final = 1e-9
"""Smallest scale, as a logarithm, for metrics that never vary."""


def median(values: Matrix) -> Matrix:
    """Return the medians over the last axis; only for finite values, much faster than numpy's."""
    middle, odd = divmod(values.shape[-1], 2)
    ranks = [middle] if odd else [middle - 1, middle]
    ordered = np.partition(values, ranks, axis=-1)
    medians: Matrix = (ordered[..., ranks[0]] + ordered[..., ranks[-1]]) / 2
    return medians


# --- separation of two levels ---

NEAR: Final = 60
"""Maximum runs on each side of a step whose own level counts …"""
CROSSING: Final = 0.35
"""… and share of the step from which a run is not at its own level."""


def crossing(logs: Matrix, begin: int, place: int, end: int) -> tuple[float, float]:
    """Return the share of the runs before and after a step that are not at their own level."""
    before, after = logs[max(begin, place - NEAR) : place], logs[place : min(end, place + NEAR)]
    effect = float(np.median(after) - np.median(before))
    across = (before - np.median(before)) * effect, (np.median(after) - after) * effect
    early, late = (float(np.mean(side > CROSSING * effect**2)) for side in across)
    return early, late


# --- removal of glitches ---

AROUND: Final = 5
"""Runs of the median that a run is compared with, itself in the middle."""
OUTSIDE: Final = 4.0
"""Scales beyond which a run is clipped."""
NARROWER: Final = 1.15
"""Correction of the scale: runs are closer to a median that includes them."""
STEADY: Final = 0.7
"""Minimum scale as a share of the mean deviation, since most quantized values are equal."""
FARTHEST: Final = 6.0
"""Scales to which a deviation counts in this mean."""


def cleaned(values: Matrix) -> tuple[Matrix, float]:
    """Return the runs of a history with glitches clipped, and the scale of a single run.

    The later neighbors of the latest runs are unknown: these stay near the runs before them.
    """
    half = AROUND // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, half, mode="edge"), AROUND)
    middle = median(windows)
    away = np.abs(values - middle)
    scale = max(TINY, MAD_TO_SIGMA * NARROWER * float(np.median(away)))
    scale = max(scale, STEADY * MEAN_TO_SIGMA * float(np.minimum(away, FARTHEST * scale).mean()))
    runs = np.clip(values, middle - OUTSIDE * scale, middle + OUTSIDE * scale)
    for place in range(len(values) - half, len(values)):
        others = np.delete(values[place - half : place + half + 1], half)
        runs[place] = np.clip(values[place], others.min() - scale, others.max() + scale)
    return runs, scale
