"""Shift of the latest runs from the level before them, computed for every run as the latest.

Blocks of 3 to 72 latest runs are compared with up to 80 runs before them, as Student's t in
standard deviations. Autocorrelation before the block reduces the significance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, Places, np
from pvebench.analysis.levels import MAD_TO_SIGMA, Cleaned, middles, steady_scale, trailing

BLOCKS: Final = (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 21, 24, 28, 32, 36, 40, 48, 56, 64, 72)
WINDOW: Final = 80
"""Maximum runs of the level before a block."""
LEAST: Final = 5
"""Minimum runs of a level."""
RECENT: Final = 30
"""Runs of the median and scale that a run is compared with, to clip outliers."""
CUT: Final = 3.5
"""Scales to which a run before a block is clipped."""
KNOWN: Final = 12.0
"""Weight, in runs, of the prior that a level has the scale of its latest runs."""
LIKE: Final = 4.0
"""Weight, in runs, of the prior that a block has the scale of the level before it."""
WORTH: Final = 3.9
"""Minimum score of a shift; blocks that cannot reach it are skipped."""
FREE: Final = 0.3
"""Autocorrelation that is ignored, as it occurs by chance in short series."""
MOST: Final = 0.75
"""Limit of the autocorrelation."""
STAYED: Final = 0.65
"""Minimum share of a shift in the latest third of a block; otherwise it has ended."""
LAG: Final = 2
"""Runs until the later neighbors of a run are known."""
STRAYED: Final = 1.5
BACK: Final = 0.75
"""Scales beyond which a level is left, and within which two runs have returned to it."""


@dataclass(frozen=True, slots=True)
class Shifted:
    """The most significant shift for every run as the latest, [runs].

    Attributes:
        score: significance in standard deviations; 0: no shift.
        block: number of latest runs in it.
        effect: its size, a logarithm.
    """

    score: Matrix
    block: Places
    effect: Matrix


@dataclass(frozen=True, slots=True)
class Blocks:
    """Possibly significant blocks of a series; [blocks].

    Attributes:
        runs: number of runs of the history.
        now: latest run of each block.
        size: number of its runs.
        score, effect: as in `Shifted`.
    """

    runs: int
    now: Places
    size: Places
    score: Matrix
    effect: Matrix

    def clearest(self) -> Shifted:
        """Return the most significant block that ends with each run; the shorter one of equals."""
        count = self.runs
        order = np.lexsort((self.size, -self.score, self.now))
        place, firsts = np.unique(self.now[order], return_index=True)
        best = order[firsts]
        shifted = Shifted(np.zeros(count), np.zeros(count, dtype=int), np.zeros(count))
        shifted.score[place], shifted.block[place] = self.score[best], self.size[best]
        shifted.effect[place] = self.effect[best]
        return shifted

    def that_last(self, least: Places) -> Blocks:
        """Return the blocks with the minimum duration of a shift; [runs], by the latest run."""
        long = least[self.now] <= self.size
        now, size = self.now[long], self.size[long]
        return Blocks(self.runs, now, size, self.score[long], self.effect[long])


def blocks_of(clean: Cleaned, before: Before, start: int, always: Flags) -> Blocks:
    """Return the blocks of the series from `start` on.

    Args:
        always: [runs] whether to also return insignificant shifts at a run.
    """
    sums = _Sums(clean, before)
    now, size = _worth_it(sums, start, always)
    return Blocks(len(clean.runs), now, size, *_of_blocks(sums, now, size, start))


@dataclass(frozen=True, slots=True)
class Before:
    """Level and scale of the latest runs before each run, within a series; [runs]."""

    level: Matrix
    scale: Matrix


def before_each(clean: Cleaned, start: int) -> Before:
    """Return the level and scale to compare each run with, for the series from `start` on."""
    runs = clean.runs[start:]
    windows, counts = trailing(runs, RECENT)
    level = middles(windows, counts)
    away = np.abs(windows - level[:, None])
    scale = steady_scale(away, counts, factor=MAD_TO_SIGMA, cut=4)
    # A run is compared with those before it, except the first ones, which have none.
    for part in (level, scale):
        part[LEAST:] = part[LEAST - 1 : -1].copy()
    head = clean.runs[:start]
    scale = np.concatenate([np.ones_like(head), scale])
    return Before(np.concatenate([head, level]), np.maximum(scale, 0.3 * clean.scale))


class _Sums:
    """Running sums over a history: clipped runs for levels, raw runs for blocks."""

    def __init__(self, clean: Cleaned, before: Before) -> None:
        level, scale = before.level, before.scale
        zero = clean.runs[0]
        away = np.clip(clean.runs - level, -CUT * scale, CUT * scale)
        self.scale = scale
        self.level = _running(level + away - zero)
        self.square = _running(away**2)
        self.neighbors = _running(np.concatenate([[0.0], away[1:] * away[:-1]]))
        self.own = _running(clean.runs - zero)
        self.own_square = _running((clean.runs - zero) ** 2)
        late = np.concatenate([[0.0], clean.second[1:] - clean.runs[:-1]])
        self.newest = clean.newest - clean.runs + late


def _running(values: Matrix) -> Matrix:
    return np.concatenate([[0.0], np.cumsum(values)])


def _worth_it(sums: _Sums, start: int, always: Flags) -> tuple[Places, Places]:
    """Return the latest run and size of the blocks that can reach the score `WORTH`.

    Few blocks in years of runs can: the others are excluded by their smallest possible error.
    """
    first = np.arange(start + LEAST, len(always))
    begin = np.maximum(start, first - WINDOW)
    count = first - begin
    level = (sums.level[first] - sums.level[begin]) / count
    belief = np.minimum(KNOWN, count / 2)
    variance = sums.square[first] - sums.square[begin] + belief * sums.scale[first] ** 2
    variance *= WORTH**2 / (count - 1 + belief + np.maximum(KNOWN - count, 0.0))
    reach = variance / count
    nows, sizes = [first[:0]], [first[:0]]
    for size in BLOCKS[: sum(size <= len(first) for size in BLOCKS)]:
        end = len(first) - size + 1
        own = sums.own[start + LEAST + size :] - sums.own[start + LEAST : -size]
        effect = (own + sums.newest[start + LEAST + size - 1 :]) / size - level[:end]
        kept = effect**2 >= reach[:end] + variance[:end] * (0.5 / size)
        nows.append(first[size - 1 :][kept | always[start + LEAST + size - 1 :]])
        sizes.append(np.full(len(nows[-1]), size))
    return np.concatenate(nows), np.concatenate(sizes)


def _of_blocks(sums: _Sums, now: Places, size: Places, start: int) -> tuple[Matrix, Matrix]:
    """Return score and effect of blocks that end with the runs `now`."""
    first = now - size + 1
    begin = np.maximum(start, first - WINDOW)
    count = first - begin

    def between(running: Matrix, low: Places, high: Places) -> Matrix:
        sums_between: Matrix = running[high] - running[low]
        return sums_between

    level = between(sums.level, begin, first) / count
    own = between(sums.own, first, now + 1)
    effect = (own + sums.newest[now]) / size - level
    square = between(sums.square, begin, first)
    known = sums.scale[first] ** 2
    inside = np.maximum(between(sums.own_square, first, now + 1) - own**2 / size, 0.0)
    # A scale from few runs is uncertain; a block has about the scale of the level before it.
    belief, lent = np.minimum(KNOWN, count / 2), np.maximum(KNOWN - count, 0.0)
    variance = square + belief * known + lent * inside / (size - 1)
    variance /= count - 1 + belief + lent
    of_block = (inside + LIKE * variance) / (size - 1 + LIKE)
    likeness = between(sums.neighbors, begin + 1, first) / np.maximum(square, 1e-12)
    likeness = np.clip(likeness, 0.0, MOST) * count / (count + 5.0)
    likeness = np.maximum(0.0, likeness - FREE) / (1 - FREE)
    wider = (1 + likeness) / (1 - likeness)
    error = np.sqrt(wider * (variance / count + np.maximum(of_block, variance / 2) / size))
    degrees = np.maximum((count + size - 2 + belief) / wider, 2.0)
    score = np.sqrt(degrees * np.log1p((effect / error) ** 2 / degrees))
    last = np.maximum(2, -(-size // 3))
    late = (between(sums.own, now + 1 - last, now + 1) + sums.newest[now]) / last - level
    score = np.where(late * np.sign(effect) >= STAYED * np.abs(effect), score, 0.0)
    return score, effect


def longest_strays(clean: Cleaned, before: Before, recent: int) -> Places:
    """Return for each run the longest time, in runs, that the level was left in `recent` runs.

    Only periods with a return count: such temporary periods are typical of this case, for example
    due to another VM's load or a backup.
    """
    side, length, inside = 0.0, 0, 0
    ended = np.zeros(len(clean.runs), dtype=int)
    for run, away in enumerate(((clean.runs - before.level) / before.scale).tolist()):
        if side:
            length += 1
            inside = 0 if away * side > BACK else inside + 1
            if inside == 2:
                ended[run] = length - inside
                side, inside = 0.0, 0
        if not side and abs(away) > STRAYED:
            side, length = (1.0 if away > 0 else -1.0), 1
    padded = np.concatenate([np.zeros(recent - 1 + LAG, dtype=int), ended[:-LAG]])
    longest: Places = np.lib.stride_tricks.sliding_window_view(padded, recent).max(axis=-1)
    return longest
