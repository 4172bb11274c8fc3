"""Known time: the shift after a change, judged against placebo changes.

The same statistic is taken at every earlier place of the same history, where nothing is known to
have changed. Whatever makes it large there by itself (drift, autocorrelation, modes, tails) is so
paid for by the history, not by an assumption about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pvebench.analysis.levels.robust import LEAST, TINY, agreed, references, shifts, spread

if TYPE_CHECKING:
    from pvebench.analysis.levels.robust import Matrix

WINDOW: Final = 40
"""Runs before a place that make its level."""
PRIOR: Final = 8.0
"""How many independent placebos the scale of the next smaller block is worth."""
BLOCKS: Final = (1, 2, 3, 5, 8, 13, 20)
FEW: Final = 20
"""Runs before a change below which there are no placebos to speak of."""
ALIKE: Final = 4.0
"""How many runs of its own a case's noise is worth that is typical of the fleet."""
FLEET: Final = 6
"""Cases that make a fleet."""
OWN: Final = 1.5
"""A shift is new only if it is so many times the largest that the history has made by itself."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of each case's shift at one place; logarithms, plus for better.

    Attributes:
        shift, guarded: [cases] the shift, and its guarded form that one glitch cannot fake.
        scale, guarded_scale: [cases] their scales from the placebos.
        placebos, guarded_placebos: [cases, places] the same at the earlier places.
        degrees: degrees of freedom of the scales.
        runs: runs after the change.
        level, noise: [cases] level before it and scale from run to run.
    """

    shift: Matrix
    guarded: Matrix
    scale: Matrix
    guarded_scale: Matrix
    placebos: Matrix
    guarded_placebos: Matrix
    degrees: float
    runs: int
    level: Matrix
    noise: Matrix


def known_shifts(before: Matrix, after: Matrix, counts: Matrix | None = None) -> Known:
    """Return the shift of `after` against `before`, with the placebos' judgement of it.

    Args:
        before: [cases, runs], at least two.
        after: [cases, runs after].
        counts: [cases] how many of `after` are real; fewer widen that case's scale.
    """
    import numpy as np

    if before.shape[1] < FEW:
        return _by_few(before, after, counts)
    level, noise = references(before, window=min(WINDOW, before.shape[1]), least=LEAST)
    # A block as long as half the history would leave no placebos to speak of.
    block = min(after.shape[1], max(1, (before.shape[1] - LEAST) // 2))
    mean, guard, scales = _placebos(before, level, noise, block)
    shift, guarded = shifts(after[:, -block:], level[:, -1:], noise[:, -1:], block=block)
    wider = np.ones(len(before)) if counts is None else np.sqrt(block / np.minimum(counts, block))
    return Known(
        shift=shift[:, 0],
        guarded=agreed(shift, guarded)[:, 0],
        scale=scales[0] * wider,
        guarded_scale=scales[1] * wider,
        placebos=mean,
        guarded_placebos=guard,
        degrees=mean.shape[1] / block + 2,
        runs=after.shape[1],
        level=level[:, -1],
        noise=noise[:, -1],
    )


def _by_few(before: Matrix, after: Matrix, counts: Matrix | None) -> Known:
    """Return the shift where the history is too short for placebos: by its noise alone.

    A case's noise leans on what is typical of the fleet; the interval is as wide as so few
    runs make it. Each run before stands for a placebo of what the whole host shares.
    """
    import numpy as np

    cases, runs = before.shape
    level, _ = references(before, window=runs, least=runs)
    rest = before - level[:, -1:]
    variance = (rest**2).sum(axis=1) / (runs - 1)
    degrees = runs - 1.0
    if cases >= FLEET:
        typical = float(np.median(variance))
        variance = (degrees * variance + ALIKE * typical) / (degrees + ALIKE)
        degrees += ALIKE
    noise = np.sqrt(np.maximum(variance, TINY**2))
    block = min(after.shape[1], BLOCKS[-1])
    shift, guarded = shifts(after[:, -block:], level[:, -1:], noise[:, None], block=block)
    wider = np.ones(cases) if counts is None else np.sqrt(block / np.minimum(counts, block))
    root = float(np.sqrt(1 / block + 1 / runs))
    placebos = rest * root * math.sqrt(runs / (runs - 1))
    return Known(
        shift=shift[:, 0],
        guarded=agreed(shift, guarded)[:, 0],
        scale=noise * root * wider,
        guarded_scale=noise * root * wider,
        placebos=placebos,
        guarded_placebos=placebos,
        degrees=degrees,
        runs=after.shape[1],
        level=level[:, -1],
        noise=noise,
    )


def _placebos(
    before: Matrix, level: Matrix, noise: Matrix, block: int
) -> tuple[Matrix, Matrix, tuple[Matrix, Matrix]]:
    """Return shifts and guarded shifts at the earlier places, and the scales of both.

    Long blocks leave few independent placebos. Their scale leans on that of shorter ones,
    of which there are more, and departs from it only as far as the placebos show.
    """
    import numpy as np

    learnt: list[Matrix] = []
    mean, guard = level[:, :0], level[:, :0]
    root = 1.0
    for size in (*(size for size in BLOCKS if size < block), block):
        mean, guard = (part[:, LEAST:] for part in shifts(before, level, noise, block=size))
        root = float(np.sqrt(1 / size + 1 / WINDOW))
        seen = [(spread(part) / root) ** 2 for part in (mean, guard)]
        weight = mean.shape[1] / size
        old = learnt or seen
        learnt = [
            (PRIOR * prior + weight * new) / (PRIOR + weight)
            for prior, new in zip(old, seen, strict=True)
        ]
    return mean, guard, (root * np.sqrt(learnt[0]), root * np.sqrt(learnt[1]))
