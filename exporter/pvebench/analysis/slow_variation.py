"""Slow variation of a case without an event: levels that wander by themselves are no changes.

Filling and trimming, temperature or other load move some cases by a few percent within tens of
runs. A step is a change only if it is large compared with this movement between the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY, crossing
from pvebench.analysis.noise_patterns import LONGER

BLOCK: Final = 10
"""Runs per block; its median hardly varies from run to run."""
BORDER: Final = 3
"""Runs next to a step that are ignored, because its place is an estimate."""
LEAST_FREE: Final = 4
"""Minimum blocks, less one per level, that estimate the variation."""
MEDIAN_COST: Final = math.pi / 2
"""Variance of a median of normal values ÷ that of their mean."""
CLEARLY: Final = 1.5
"""Variance of the blocks ÷ that of independent runs, below which nothing wanders."""
LASTING: Final = 20
"""Minimum runs on each side of a step that separates them, whatever varies elsewhere …"""
FEW: Final = 0.15
"""… and maximum share of such runs on either side."""
FLICKERS: Final = 7
OFTEN: Final = 0.15
"""Minimum number of stays, and share of those of up to a block, that make levels a variation, until
the present one lasts `LONGER` than all before it did."""
MANY: Final = 0.24
"""Share of such runs from which a step is hardly one …"""
UNCLEAR: Final = 2.0
"""… and the factor of its minimum size then."""
OUTGROWS: Final = 4.0
"""Minimum size of a step in standard deviations of the variation between the steps."""


def slow_variation(logs: Matrix, places: Sequence[int]) -> float:
    """Return the standard deviation of a case's level between its steps; 0: not measurable.

    Args:
        logs: [runs] logarithms, without known steps and effects of the hour.
        places: first run of each level but the first, in order.
    """
    away, noise, free = _blocks(logs, places)
    variance = float(away @ away) / free if free >= LEAST_FREE else 0.0
    return _beyond_chance(variance, noise)


def usual_variation(logs: Matrix) -> float:
    """Return it for a whole history, however far a few periods were from the level."""
    away, noise, free = _blocks(logs, [])
    usual = MAD_TO_SIGMA * float(np.median(np.abs(away - np.median(away)))) if len(away) else 0.0
    return _beyond_chance(usual**2 if free >= LEAST_FREE else 0.0, noise)


def _blocks(logs: Matrix, places: Sequence[int]) -> tuple[Matrix, Matrix, int]:
    """Return distances of blocks from their level, differences of runs, degrees of freedom."""
    away, noise = [logs[:0]], [logs[:0]]
    for begin, end in pairwise([0, *places, len(logs)]):
        level = logs[begin + BORDER if begin else 0 : end - BORDER if end < len(logs) else end]
        count = len(level) // BLOCK
        if count < 2:
            continue
        blocks = np.median(level[len(level) - count * BLOCK :].reshape(count, BLOCK), axis=1)
        away.append(blocks - blocks.mean())
        noise.append(np.abs(np.diff(level)))
    joined = np.concatenate(away)
    return joined, np.concatenate(noise), len(joined) - (len(away) - 1)


def _beyond_chance(variance: float, noise: Matrix) -> float:
    """Return the standard deviation that independent runs do not explain."""
    sigma = MAD_TO_SIGMA * float(np.median(noise)) / 2**0.5 if len(noise) else 0.0
    by_chance = MEDIAN_COST * sigma**2 / BLOCK
    return float(variance - by_chance) ** 0.5 if variance > CLEARLY * by_chance + TINY**2 else 0.0


def without_variation(history: CaseHistory, steps: Sequence[CaseStep]) -> list[CaseStep]:
    """Return the steps that are larger than the slow variation of a case, smallest removed first.

    A step that separates single runs stays all the same: the variation is that of the whole
    history, and may be larger elsewhere.

    Args:
        history: without known steps and effects of the hour.
        steps: in order, at least one.
    """
    logs, places = history.logs(), [history.split(step.time) for step in steps]
    stays = [end - begin for begin, end in pairwise([0, *places])]
    short = sum(stay <= BLOCK for stay in stays)
    settled = len(logs) - places[-1] > LONGER * max(stays)
    flickers = len(stays) >= FLICKERS and short > OFTEN * len(stays) and not settled
    kept = list(zip(steps, places, strict=True))
    while kept:
        borders = [0, *(place for _, place in kept), len(logs)]
        least = OUTGROWS * slow_variation(logs, borders[-2:-1] if flickers else borders[1:-1])
        small = [
            (step, place)
            for (step, place), begin, end in zip(kept, borders, borders[2:], strict=False)
            if abs(step.effect) < UNCLEAR * least
            and abs(step.effect) < _least(logs, (begin, place, end), least)
        ]
        if not small:
            break
        kept.remove(min(small, key=lambda pair: abs(pair[0].effect)))
    return [step for step, _ in kept]


def _least(logs: Matrix, borders: tuple[int, int, int], least: float) -> float:
    """Return the minimum size of a step, by how many runs around it are at their own level."""
    begin, place, end = borders
    share = max(crossing(logs, *borders))
    if share <= FEW and min(place - begin, end - place) >= LASTING:
        return 0.0
    return UNCLEAR * least if share > MANY else least
