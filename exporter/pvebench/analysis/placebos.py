"""Shifts of cases at an event, compared with those at all earlier places of the same history.

The latter are placebos: nothing changed there, so that their scale accounts for drift,
autocorrelation, modes and tails without assumptions about them. All functions use matrices of
logarithms, one row per case and one column per run; a *place* t is the border before run t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pvebench.analysis.arrays import Matrix, Places, np
from pvebench.analysis.levels import CLIP, MAD_TO_SIGMA, TINY

WINDOW: Final = 40
"""Maximum runs of the level before a place …"""
LEAST: Final = 12
"""… and minimum runs of it."""
BLOCKS: Final = (1, 2, 3, 5, 8, 13, 20)
"""Runs of the blocks whose shifts are compared."""
PRIOR: Final = 8.0
"""Weight of the scale of the next smaller block, in independent placebos."""
AT_ONCE: Final = 64
"""Cases whose windows are in memory at once."""
FEW: Final = 20
"""Minimum runs before an event to compute placebos."""
GLITCH: Final = 6.0
"""Scales from the median of a block beyond which a run is a glitch and ignored."""


@dataclass(frozen=True, slots=True)
class PlaceShifts:
    """Shift of each case at one place, plain and guarded; logarithms, positive is better.

    Attributes:
        shift: [2, cases] the shift, and its guarded form that one glitch cannot imitate.
        scale: [2, cases] their scales from the placebos.
        placebos: [2, cases, places] the same shifts at the earlier places.
        degrees: degrees of freedom of the scales.
        counts: [cases] actual runs after the place.
    """

    shift: Matrix
    scale: Matrix
    placebos: Matrix
    degrees: float
    counts: Matrix


class Past:
    """Runs before an event, and what they say about the runs after it.

    Args:
        before: [cases, runs], at least two runs.
    """

    def __init__(self, before: Matrix) -> None:
        self._before, self._many = before, before.shape[1] >= FEW
        self._variances: dict[int, Matrix] = {}
        """Block -> [2, cases] variances of the placebos, relative to those of independent runs."""
        if self._many:
            self._level, self._noise = _in_parts(_references, before)
        else:
            whole = partial(_references, least=before.shape[1])
            self._level, self._noise = _in_parts(whole, before)
            self._noise = self._noise_of_few()

    def at(self, after: Matrix, counts: Matrix) -> PlaceShifts:
        """Return the shift of `after`, [cases, runs], with its scale from placebos.

        Args:
            counts: [cases] actual runs in `after`; fewer increase the scale of the case.
        """
        # A block as long as half of the history would leave too few placebos.
        most = (self._before.shape[1] - LEAST) // 2 if self._many else BLOCKS[-1]
        block = min(after.shape[1], max(1, most))
        newest = after[:, -block:]
        shift = _shifts(newest, self._level[:, -1:], self._noise[:, -1:], block=block)[..., 0]
        # The runs disagree. Placebos are not treated this way: their scale would be too small.
        shift[1] = np.where(np.sign(shift[0]) == np.sign(shift[1]), shift[1], 0.0)
        placebos, scale, degrees = (self._placebos if self._many else self._of_few)(block)
        wider = np.sqrt(block / np.minimum(counts, block))
        return PlaceShifts(shift, scale * wider, placebos, degrees, counts)

    def _placebos(self, block: int) -> tuple[Matrix, Matrix, float]:
        """Return shifts of blocks at the earlier places, their scales and degrees of freedom.

        Long blocks leave few independent placebos, so their scale is shrunk towards that of
        shorter blocks.
        """
        values = self._before[:, LEAST:], self._level, self._noise
        placebos = _in_parts(partial(_shifts, block=block), *values)
        root, weight = math.sqrt(1 / block + 1 / WINDOW), placebos.shape[-1] / block
        variance = (spread(placebos) / root) ** 2
        shorter = max((size for size in BLOCKS if size < block), default=block)
        if shorter < block and shorter not in self._variances:
            self._placebos(shorter)
        prior = self._variances[shorter] if shorter < block else variance
        self._variances[block] = (PRIOR * prior + weight * variance) / (PRIOR + weight)
        return placebos, root * np.sqrt(self._variances[block]), weight + 2

    def _of_few(self, block: int) -> tuple[Matrix, Matrix, float]:
        """Return what a history shows that is too short for placebos, with its noise as the scale.

        Each run before is a placebo of the common shift of the host.
        """
        runs = self._before.shape[1]
        root = math.sqrt(1 / block + 1 / runs)
        placebos = (self._before - self._level) * root * math.sqrt(runs / (runs - 1))
        scale = self._noise[:, 0] * root
        return np.array([placebos, placebos]), np.array([scale, scale]), runs - 1

    def _noise_of_few(self) -> Matrix:
        """Return the noise of each case; [cases, 1]."""
        runs = self._before.shape[1]
        variance = ((self._before - self._level) ** 2).sum(axis=1) / (runs - 1)
        noise: Matrix = np.sqrt(np.maximum(variance, TINY**2))
        return noise[:, None]


def _in_parts(work: Callable[..., Matrix], *matrices: Matrix) -> Matrix:
    """Return what `work` returns of some rows of the matrices at once: [2, cases, …]."""
    starts = range(0, len(matrices[0]), AT_ONCE)
    parts = [work(*(matrix[row : row + AT_ONCE] for matrix in matrices)) for row in starts]
    return np.concatenate(parts, axis=1)


def _references(values: Matrix, least: int = LEAST) -> Matrix:
    """Return level (Huber's one-step mean) and scale of the runs before each place.

    Args:
        values: [cases, runs].

    Returns:
        [2, cases, runs + 1 - least], from place `least` on.
    """
    window = min(max(WINDOW, least), values.shape[1])
    padded = np.concatenate([np.full((len(values), window - least), np.nan), values], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)
    counts: Places = np.minimum(np.arange(windows.shape[1]) + least, window)
    middle = _middles(windows, counts)[..., None]
    scale = np.maximum(MAD_TO_SIGMA * _middles(np.abs(windows - middle), counts), TINY)
    reach = CLIP * scale[..., None]
    level = np.nansum(np.clip(windows, middle - reach, middle + reach), axis=-1) / counts
    return np.array([level, scale])


def _middles(windows: Matrix, counts: Places) -> Matrix:
    """Return the medians over the last axis, of the `counts` entries that are not NaN."""
    ordered, rows = np.sort(windows, axis=-1), np.arange(len(counts))
    medians: Matrix = (ordered[..., rows, (counts - 1) // 2] + ordered[..., rows, counts // 2]) / 2
    return medians


def _shifts(values: Matrix, level: Matrix, scale: Matrix, *, block: int) -> Matrix:
    """Return the shift of each block of runs from the level before it, plain and guarded.

    Args:
        values: [cases, runs].
        level, scale: [cases, places] of the runs before each.
        block: runs per block.

    Returns:
        [2, cases, runs - block + 1], by the place where the block begins: the shift of the block's
        Huber mean, and the guarded shift, which the r-th least-shifted run limits,
        r = ceil(0.2 block).
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
    # Two glitches among three runs shift the mean, but not the third run. Without this limit, an
    # upgrade without effect is blamed for two glitches in 86 instead of 4 of 276 series.
    return np.array([mean, side * np.minimum(side * mean, side * least + reach)])


def spread(placebos: Matrix) -> Matrix:
    """Return the scale of placebo shifts, over the last axis.

    The larger of two quantiles, each as sigma of a normal distribution: the inner one misses
    rare excursions, the outer one alone would be noisy in a short history.
    """
    sizes = np.abs(placebos)
    return np.maximum(
        np.maximum(_quantile(sizes, 0.68) / 0.9945, _quantile(sizes, 0.90) / 1.6449), TINY
    )


def _quantile(sizes: Matrix, share: float) -> Matrix:
    """Return the nearest quantile of each row; much faster than numpy's."""
    rank = round(share * (sizes.shape[-1] - 1))
    quantiles: Matrix = np.partition(sizes, rank, axis=-1)[..., rank]
    return quantiles
