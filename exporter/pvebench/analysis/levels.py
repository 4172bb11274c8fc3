"""Robust levels of runs, and the removal of glitches: outliers between runs that agree."""

from __future__ import annotations

import math
from typing import Final

from pvebench.analysis.arrays import Matrix, Places, np

# --- robust levels: one or two glitches in a window hardly change them ---
#
# All functions use matrices of logarithms, one row per case and one column per run, so that a whole
# node costs hardly more than one case. A *place* t is the border before run t.

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
    windows, counts = trailing(values, min(window, values.shape[1]))
    middle = middles(windows, counts)[..., None]
    scale = np.maximum(MAD_TO_SIGMA * middles(np.abs(windows - middle), counts), TINY)
    reach = CLIP * scale[..., None]
    level = np.nansum(np.clip(windows, middle - reach, middle + reach), axis=-1) / counts
    found = np.full((2, len(values), values.shape[1] + 1), np.nan)
    found[:, :, least:] = level[:, least - 1 :], scale[:, least - 1 :]
    return found[0], found[1]


def trailing(values: Matrix, window: int) -> tuple[Matrix, Places]:
    """Return the latest `window` runs up to each run, and their number.

    Args:
        values: [..., runs].

    Returns:
        [..., runs, window], the first ones NaN where there are fewer runs; [runs].
    """
    none = np.full((*values.shape[:-1], window - 1), np.nan)
    padded = np.concatenate([none, values], axis=-1)
    counts: Places = np.minimum(np.arange(values.shape[-1]) + 1, window)
    return np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1), counts


def middles(windows: Matrix, counts: Places) -> Matrix:
    """Return the medians over the last axis, of the `counts` entries that are not NaN."""
    ordered, rows = np.sort(windows, axis=-1), np.arange(len(counts))
    medians: Matrix = (ordered[..., rows, (counts - 1) // 2] + ordered[..., rows, counts // 2]) / 2
    return medians


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
