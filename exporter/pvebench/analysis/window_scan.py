"""How far the newest runs of a stretch have left its level, for every run as the newest.

Blocks of 3 to 72 newest runs against up to 80 before them, as Student's t in standard
deviations. Runs that resemble their neighbours say less, by the autocorrelation before the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pvebench.analysis.arrays import Flags, Matrix, Places, np
from pvebench.analysis.levels import MAD_TO_SIGMA, Cleaned, middles

BLOCKS: Final = (3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 21, 24, 28, 32, 36, 40, 48, 56, 64, 72)
WINDOW: Final = 80
"""Runs before a block that make its level."""
LEAST: Final = 5
"""Runs that a level needs."""
RECENT: Final = 30
"""Runs whose median and scatter a run is held against, to be cut where it strays."""
CUT: Final = 3.5
"""Such scales beyond which a run before a block counts as if it were so far off."""
KNOWN: Final = 12.0
"""Runs' worth of belief that a level scatters as its newest runs do."""
LIKE: Final = 4.0
"""Runs' worth of belief that a block scatters as the level before it."""
WORTH: Final = 3.9
"""Score that is no doubt yet: what stays below it is no shift."""
FREE: Final = 0.3
"""Autocorrelation that is no reason to be wary: what chance makes in short stretches."""
MOST: Final = 0.75
"""Autocorrelation that is believed at most."""
STAYED: Final = 0.65
"""Share of a shift that the newest third of a block must show: else it has gone again."""
STRAYED: Final = 1.5
BACK: Final = 0.75
"""Scales beyond which a level is left, and within which it is back, for two runs."""
CLEAR: Final = 6.0
"""Scales that make levels clearly apart."""
STRAYED_CLEAR: Final = 2.0
BACK_CLEAR: Final = 1.0
"""As STRAYED and BACK, for what may excuse a shift as far as that: chance alone strays less."""


@dataclass(frozen=True, slots=True)
class MustLast:
    """How many runs a shift must have lasted, for every run as the newest, [runs].

    Attributes:
        usual: whatever it is. clear: the same where the levels are clearly apart.
    """

    usual: Places
    clear: Places


@dataclass(frozen=True, slots=True)
class Shifted:
    """The clearest shift for every run as the newest one, [runs].

    Attributes:
        score: in standard deviations; 0 where there is none.
        block: newest runs that make it.
        effect: its size, logarithm.
        apart: the same in scales of single runs.
    """

    score: Matrix
    block: Places
    effect: Matrix
    apart: Matrix


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a stretch that may be more than chance; [blocks].

    Attributes:
        runs: that the history has.
        now: newest run of each. size: runs of it.
        score, effect, apart: as a shift has them.
    """

    runs: int
    now: Places
    size: Places
    score: Matrix
    effect: Matrix
    apart: Matrix

    def clearest(self) -> Shifted:
        """Return the clearest of the blocks that end with each run; the shorter one of equals."""
        count = self.runs
        order = np.lexsort((self.size, -self.score, self.now))
        place, firsts = np.unique(self.now[order], return_index=True)
        best = order[firsts]
        made = Shifted(
            np.zeros(count), np.zeros(count, dtype=int), np.zeros(count), np.zeros(count)
        )
        made.score[place], made.block[place] = self.score[best], self.size[best]
        made.effect[place], made.apart[place] = self.effect[best], self.apart[best]
        return made

    def that_last(self, least: MustLast) -> Blocks:
        """Return those that are as long as a shift must last."""
        must = np.where(self.apart >= CLEAR, least.clear[self.now], least.usual[self.now])
        long = np.flatnonzero(must <= self.size)
        return Blocks(
            runs=self.runs,
            now=self.now[long],
            size=self.size[long],
            score=self.score[long],
            effect=self.effect[long],
            apart=self.apart[long],
        )


def blocks_of(clean: Cleaned, before: Before, start: int, always: Flags) -> Blocks:
    """Return the blocks of the stretch from `start` on.

    Args:
        always: [runs]: where a shift that is hardly one is told too; elsewhere it is none.
    """
    sums = _Sums(clean, before)
    now, size = _worth_it(sums, start, always)
    return Blocks(len(clean.runs), now, size, *_of_blocks(sums, now, size, start))


@dataclass(frozen=True, slots=True)
class Before:
    """Level and scale of the newest runs before each, within a stretch; [runs]."""

    level: Matrix
    scale: Matrix


def before_each(clean: Cleaned, start: int) -> Before:
    """Return what the runs of the stretch that begins at `start` are held against."""
    runs = clean.runs[start:]
    padded = np.concatenate([np.full(RECENT - 1, np.nan), runs])
    windows = np.lib.stride_tricks.sliding_window_view(padded, RECENT)
    counts = np.minimum(np.arange(len(runs)) + 1, RECENT)
    level = middles(np.sort(windows, axis=-1), counts)
    away = np.abs(windows - level[:, None])
    scale = MAD_TO_SIGMA * middles(np.sort(away, axis=-1), counts)
    cut = np.minimum(away, 4 * scale[:, None] + 1e-9)
    scale = np.maximum(scale, 0.7 * 1.2533 * np.nansum(cut, axis=-1) / counts)
    # A run is held against those before it, but for the first ones, which have none.
    for part in (level, scale):
        part[LEAST:] = part[LEAST - 1 : -1].copy()
    head = clean.runs[:start]
    scale = np.concatenate([np.ones_like(head), scale])
    return Before(np.concatenate([head, level]), np.maximum(scale, 0.3 * clean.scale))


class _Sums:
    """Running sums over a history: of a level's runs, cut; of a block's, as they are."""

    def __init__(self, clean: Cleaned, before: Before) -> None:
        level, scale = before.level, before.scale
        zero = clean.runs[-1]
        away = np.clip(clean.runs - level, -CUT * scale, CUT * scale)
        self.scale = scale
        self.level = _running(level + away - zero)
        self.square = _running(away**2)
        self.neighbours = _running(np.concatenate([[0.0], away[1:] * away[:-1]]))
        self.own = _running(clean.runs - zero)
        self.own_square = _running((clean.runs - zero) ** 2)
        late = np.concatenate([[0.0], clean.second[1:] - clean.runs[:-1]])
        self.newest = clean.newest - clean.runs + late


def _running(values: Matrix) -> Matrix:
    return np.concatenate([[0.0], np.cumsum(values)])


def _worth_it(sums: _Sums, start: int, always: Flags) -> tuple[Places, Places]:
    """Return the blocks, by their newest run and size, that are worth a score.

    Of years of runs hardly any is: those are left out whose score could not reach `WORTH` with
    the least error that there can be.
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


def _of_blocks(sums: _Sums, now: Places, size: Places, start: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return score, effect and distance of blocks that end with the runs `now`."""
    first = now - size + 1
    begin = np.maximum(start, first - WINDOW)
    count = first - begin

    def between(running: Matrix, low: Places, high: Places) -> Matrix:
        found: Matrix = running[high] - running[low]
        return found

    level = between(sums.level, begin, first) / count
    own = between(sums.own, first, now + 1)
    effect = (own + sums.newest[now]) / size - level
    square = between(sums.square, begin, first)
    known = sums.scale[first] ** 2
    inside = np.maximum(between(sums.own_square, first, now + 1) - own**2 / size, 0.0)
    # The scale of a few runs is no knowledge; a block scatters much like the level before it.
    belief, lent = np.minimum(KNOWN, count / 2), np.maximum(KNOWN - count, 0.0)
    variance = square + belief * known + lent * inside / (size - 1)
    variance /= count - 1 + belief + lent
    of_block = (inside + LIKE * variance) / (size - 1 + LIKE)
    likeness = between(sums.neighbours, begin + 1, first) / np.maximum(square, 1e-12)
    likeness = np.clip(likeness, 0.0, MOST) * count / (count + 5.0)
    likeness = np.maximum(0.0, likeness - FREE) / (1 - FREE)
    wider = (1 + likeness) / (1 - likeness)
    error = np.sqrt(wider * (variance / count + np.maximum(of_block, variance / 2) / size))
    degrees = np.maximum((count + size - 2 + belief) / wider, 2.0)
    score = np.sqrt(degrees * np.log1p((effect / error) ** 2 / degrees))
    last = np.maximum(2, -(-size // 3))
    late = (between(sums.own, now + 1 - last, now + 1) + sums.newest[now]) / last - level
    score = np.where(late * np.sign(effect) >= STAYED * np.abs(effect), score, 0.0)
    return score, effect, np.abs(effect) / np.sqrt(variance)


def longest_strays(
    clean: Cleaned, before: Before, recent: int, *, strayed: float, back: float
) -> Places:
    """Return for each run how long the level had been left, the longest of `recent` runs.

    Only what came back counts: whatever left the level for so long by itself is this case's
    nature, as a neighbour's load or a backup.

    Args:
        strayed: scales beyond which it is left. back: within which it is back, for two runs.
    """
    side, length, inside = 0.0, 0, 0
    ended = np.zeros(len(clean.runs), dtype=int)
    for run, away in enumerate(((clean.runs - before.level) / before.scale).tolist()):
        if side:
            length += 1
            inside = 0 if away * side > back else inside + 1
            if inside == 2:
                ended[run] = length - inside
                side, inside = 0.0, 0
        if not side and abs(away) > strayed:
            side, length = (1.0 if away > 0 else -1.0), 1
    padded = np.concatenate([np.zeros(recent - 1, dtype=int), ended])
    found: Places = np.lib.stride_tricks.sliding_window_view(padded, recent).max(axis=-1)
    return found
