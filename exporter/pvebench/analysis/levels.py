"""Runs without their glitches: one or two far off between others that agree are cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, Places, np

# --- Robust levels: what a window of runs says, whatever one or two glitches in it say.
#
# Everything works on matrices of logarithms, one row a case and one column a run, so that a whole
# fleet costs hardly more than one case. A *place* t is the border before run t.

MAD_TO_SIGMA: Final = 1.4826
"""Median absolute deviation of a normal distribution, inverted."""
CLIP: Final = 1.5
"""Huber's constant: runs further than this from the median count as if they were this far."""
GLITCH: Final = 6.0
"""Scales from a block's own median beyond which a run is a glitch and does not count at all."""
GUARD: Final = 0.3
"""Share of the least-shifted run in the guarded shift: a level has moved only if all its runs
have, which one glitch cannot fake."""
WARY: Final = 5
"""Runs up to which a block needs the whole guard."""
LEAST: Final = 12
"""Runs a level needs."""
TINY: Final = 1e-9
"""Smallest scale, as a logarithm: figures that never vary are judged too."""


def references(values: Matrix, *, window: int, least: int) -> tuple[Matrix, Matrix]:
    """Return level and scale of the runs before each place.

    Args:
        values: [cases, runs].
        window: how many runs before the place count at most.
        least: how many there must be; places with fewer are NaN.

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
    """Return how far each block of runs lies from the level before it.

    Args:
        values: [cases, runs].
        level, scale: of `references`.
        block: runs a block.

    Returns:
        Two matrices [cases, runs - block + 1], by the place where the block begins: the shift
        of the block's Huberised mean, and the guarded shift, which mixes in the r-th
        least-shifted run, r = ceil(0.2 block). NaN where there is no level.
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
    # A long block outvotes a glitch by itself; the least-shifted run only adds noise there.
    weight = GUARD * min(1.0, WARY / block)
    mixed = side * ((1 - weight) * mean + weight * least)
    # Two glitches among three runs make a mean, yet the third run stays where it was.
    guarded = side * np.minimum(mixed, side * least + reach)
    return mean, guarded


def agreed(mean: Matrix, guarded: Matrix) -> Matrix:
    """Return the guarded shifts that count: on the other side of zero the runs disagree.

    Placebos are not treated so: what is left out of them would be missing in their scale.
    """
    counting: Matrix = np.where(np.sign(mean) == np.sign(guarded), guarded, 0.0)
    return counting


def spread(placebos: Matrix) -> Matrix:
    """Return the scale of each row of placebo shifts, [cases]; NaN entries do not count.

    The larger of two quantiles, each as sigma of a normal distribution: the inner one misses
    rare excursions, the outer one alone would be noisy in a short history.
    """
    sizes = np.abs(placebos[:, ~np.isnan(placebos).all(axis=0)])
    return np.maximum(
        np.maximum(quantile(sizes, 0.68) / 0.9945, quantile(sizes, 0.90) / 1.6449), TINY
    )


def median(values: Matrix) -> Matrix:
    """Return the medians over the last axis; of finite values, which saves much of numpy's time."""
    middle, odd = divmod(values.shape[-1], 2)
    wanted = [middle] if odd else [middle - 1, middle]
    ordered = np.partition(values, wanted, axis=-1)
    found: Matrix = (ordered[..., wanted[0]] + ordered[..., wanted[-1]]) / 2
    return found


def quantile(sizes: Matrix, share: float) -> Matrix:
    """Return the nearest quantile of each row: numpy's own costs more than all the rest here."""
    rank = round(share * (sizes.shape[-1] - 1))
    found: Matrix = np.partition(sizes, rank, axis=-1)[..., rank]
    return found


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
    found: Matrix = np.maximum(np.maximum(scale, STEADY * 1.2533 * mean), TINY)
    return found


def middles(ordered: Matrix, counts: Matrix) -> Matrix:
    """Return the medians of rows that are in order, of the first `counts` of each."""
    rows = np.arange(len(ordered))
    found: Matrix = (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) / 2
    return found


def _within(values: Matrix, others: list[Matrix], scale: Matrix) -> Matrix:
    low, high = np.min(others, axis=0) - scale, np.max(others, axis=0) + scale
    found: Matrix = np.clip(values, low, high)
    return found
