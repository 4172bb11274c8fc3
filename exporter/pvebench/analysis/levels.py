"""Robust levels of runs, and the removal of glitches: outliers between runs that agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, Places, np

# --- robust levels: one or two glitches in a window hardly change them ---
#
# All functions use matrices of logarithms, one row per case and one column per run, so that a whole
# fleet costs hardly more than one case. A *place* t is the border before run t.

MAD_TO_SIGMA: Final = 1.4826
"""Median absolute deviation of a normal distribution, inverted."""
MEAN_TO_SIGMA: Final = 1.2533
"""Mean absolute deviation of a normal distribution, inverted."""
CLIP: Final = 1.5
"""Huber's constant: runs further than this from the median are clipped to this distance."""
GLITCH: Final = 6.0
"""Scales from the median of a block beyond which a run is a glitch and ignored."""
GUARD: Final = 0.3
"""Weight of the least-shifted run in the guarded shift: a level has shifted only if all its runs
have, which one glitch cannot imitate."""
WARY: Final = 5
"""Maximum block size with the full guard."""
LEAST: Final = 12
"""Minimum runs of a level."""
TINY: Final = 1e-9
"""Smallest scale, as a logarithm, for metrics that never vary."""


def references(values: Matrix, *, window: int, least: int) -> tuple[Matrix, Matrix]:
    """Return level and scale of the runs before each place.

    Args:
        values: [cases, runs].
        window: maximum number of runs before the place.
        least: minimum number of runs; places with fewer are NaN.

    Returns:
        Two matrices [cases, runs + 1]: Huber's one-step mean, and sigma from the MAD.
    """
    cases, runs = values.shape
    level = np.full((cases, runs + 1), np.nan)
    scale = np.full((cases, runs + 1), np.nan)
    short = np.arange(least, min(window, runs + 1))
    if len(short):
        level[:, short], scale[:, short] = _growing(values, short)
    if runs >= window:
        windows = np.lib.stride_tricks.sliding_window_view(values, window, axis=1)
        level[:, window:], scale[:, window:] = _level(windows)
    return level, scale


def _level(windows: Matrix) -> tuple[Matrix, Matrix]:
    """Return level and scale over the last axis."""
    middle = np.median(windows, axis=-1, keepdims=True)
    scale = MAD_TO_SIGMA * np.median(np.abs(windows - middle), axis=-1, keepdims=True)
    scale = np.maximum(scale, TINY)
    clipped = np.clip(windows, middle - CLIP * scale, middle + CLIP * scale)
    return clipped.mean(axis=-1), scale[..., 0]


def _growing(values: Matrix, counts: Places) -> tuple[Matrix, Matrix]:
    """Return level and scale of the first `counts` runs, all counts at once."""
    width = int(counts[-1])
    inside = np.arange(width) < counts[:, None]
    windows = np.broadcast_to(values[:, None, :width], (len(values), *inside.shape))
    middle = _median_inside(windows, inside, counts)
    scale = MAD_TO_SIGMA * _median_inside(np.abs(windows - middle), inside, counts)
    scale = np.maximum(scale, TINY)
    clipped = np.clip(windows, middle - CLIP * scale, middle + CLIP * scale)
    return np.where(inside, clipped, 0.0).sum(axis=-1) / counts, scale[..., 0]


def _median_inside(windows: Matrix, inside: Flags, counts: Places) -> Matrix:
    ordered = np.sort(np.where(inside, windows, np.inf), axis=-1)
    rows = np.arange(len(counts))
    middle: Matrix = (ordered[:, rows, (counts - 1) // 2] + ordered[:, rows, counts // 2]) / 2
    return middle[..., None]


def shifts(values: Matrix, level: Matrix, scale: Matrix, *, block: int) -> tuple[Matrix, Matrix]:
    """Return the shift of each block of runs from the level before it.

    Args:
        values: [cases, runs].
        level, scale: results of `references`.
        block: runs per block.

    Returns:
        Two matrices [cases, runs - block + 1], by the place where the block begins: the shift
        of the block's Huber mean, and the guarded shift, which includes the r-th least-shifted
        run, r = ceil(0.2 block). NaN where there is no level.
    """
    places = values.shape[1] - block + 1
    before, reach = level[:, :places], CLIP * scale[:, :places]
    blocks = np.sort(np.lib.stride_tricks.sliding_window_view(values, block, axis=1), axis=-1)
    middle = (blocks[..., (block - 1) // 2] + blocks[..., block // 2]) / 2
    away = blocks - middle[..., None]
    near = np.abs(away) <= (GLITCH / CLIP) * reach[..., None]
    away = np.clip(away, -reach[..., None], reach[..., None])
    mean = middle + (away * near).sum(axis=-1) / np.maximum(near.sum(axis=-1), 1) - before
    rank = math.ceil(0.2 * block)
    least = np.where(mean > 0, blocks[..., rank - 1], blocks[..., block - rank]) - before
    side = np.sign(mean)
    # A long block is robust against a glitch; the least-shifted run would only add noise.
    weight = GUARD * min(1.0, WARY / block)
    mixed = side * ((1 - weight) * mean + weight * least)
    # Two glitches among three runs shift the mean, but not the third run.
    guarded = side * np.minimum(mixed, side * least + reach)
    return mean, guarded


def agreed(mean: Matrix, guarded: Matrix) -> Matrix:
    """Return the guarded shifts, 0 where their sign differs from the mean: the runs disagree.

    Placebos are not treated this way, because their scale would become too small.
    """
    counting: Matrix = np.where(np.sign(mean) == np.sign(guarded), guarded, 0.0)
    return counting


def spread(placebos: Matrix) -> Matrix:
    """Return the scale of each row of placebo shifts, [cases]; NaN entries are ignored.

    The larger of two quantiles, each as sigma of a normal distribution: the inner one misses
    rare excursions, the outer one alone would be noisy in a short history.
    """
    sizes = np.abs(placebos[:, ~np.isnan(placebos).all(axis=0)])
    return np.maximum(
        np.maximum(quantile(sizes, 0.68) / 0.9945, quantile(sizes, 0.90) / 1.6449), TINY
    )


def median(values: Matrix) -> Matrix:
    """Return the medians over the last axis; only for finite values, much faster than numpy's."""
    middle, odd = divmod(values.shape[-1], 2)
    ranks = [middle] if odd else [middle - 1, middle]
    ordered = np.partition(values, ranks, axis=-1)
    medians: Matrix = (ordered[..., ranks[0]] + ordered[..., ranks[-1]]) / 2
    return medians


def quantile(sizes: Matrix, share: float) -> Matrix:
    """Return the nearest quantile of each row; much faster than numpy's."""
    rank = round(share * (sizes.shape[-1] - 1))
    quantiles: Matrix = np.partition(sizes, rank, axis=-1)[..., rank]
    return quantiles


# --- removal of glitches ---

AROUND: Final = 5
"""Runs of the median that a run is compared with, itself in the middle."""
SCALE_RUNS: Final = 41
"""Runs that estimate the typical distance from that median."""
OUTSIDE: Final = 4.0
"""Scales beyond which a run is clipped."""
NARROWER: Final = 1.15
"""Correction of the scale: runs are closer to a median that includes them."""
STEADY: Final = 0.7
"""Minimum scale as a share of the mean deviation, since most quantized values are equal."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Runs of a history without glitches, [runs].

    Attributes:
        runs: clipped by the neighbors on both sides.
        newest, second: value of the latest run, and of the one before it, if each run were the
            latest: later neighbors are then unknown.
        scale: scale from run to run.
    """

    runs: Matrix
    newest: Matrix
    second: Matrix
    scale: Matrix


def cleaned(values: Matrix) -> Cleaned:
    """Return the runs of a history with glitches clipped; each scale uses only earlier runs."""
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
    padded = np.concatenate([np.full(SCALE_RUNS - 1, np.nan), away])
    windows = np.lib.stride_tricks.sliding_window_view(padded, SCALE_RUNS)
    ordered = np.sort(windows, axis=-1)
    counts = np.minimum(np.arange(len(away)) + 1, SCALE_RUNS)
    scale = MAD_TO_SIGMA * NARROWER * middles(ordered, counts)
    cut = np.minimum(windows, 6 * scale[:, None] + TINY)
    mean = np.nansum(cut, axis=-1) / counts
    scales: Matrix = np.maximum(np.maximum(scale, STEADY * 1.2533 * mean), TINY)
    return scales


def middles(ordered: Matrix, counts: Matrix) -> Matrix:
    """Return the medians of rows that are in order, of the first `counts` of each."""
    rows = np.arange(len(ordered))
    medians: Matrix = (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2
    return medians


def _within(values: Matrix, others: list[Matrix], scale: Matrix) -> Matrix:
    low, high = np.min(others, axis=0) - scale, np.max(others, axis=0) + scale
    clipped: Matrix = np.clip(values, low, high)
    return clipped
