"""What a fault of the storage does to the rate of a load: how deep it falls, when it is back."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model.run import Sample, Unit

QUIET_SHARE: Final = 1 / 3
"""Of the window: nothing is done to the storage before."""
DOWN: Final = 0.5
BACK: Final = 0.8
"""Shares of the rate before: what is below the one is down, what reaches the other is back."""
BACK_INTERVALS: Final = 3
"""So many in a row must be back: one alone may be what had piled up."""


@dataclass(frozen=True, slots=True)
class Dip:
    """What the rate did.

    Attributes:
        depth: share of the rate before that was missing at the lowest; 1: nothing went through.
        seconds: how long it was down, all in all.
        recovery: seconds from the first interval that was down to the first that was back for
            good; 0 if none was down; None: it was not back when the window ended.
    """

    depth: float
    seconds: float
    recovery: float | None


def find_dip(rates: Sequence[float], width: float) -> Dip | None:
    """Return the dip in a rate; None: too few intervals, or no I/O before, to compare with.

    Args:
        rates: of whole intervals of `width` seconds, the whole window.
    """
    quiet = int(len(rates) * QUIET_SHARE)
    before, after = rates[:quiet], rates[quiet:]
    level = statistics.median(before) if quiet >= BACK_INTERVALS else 0.0
    if level <= 0:
        return None
    down = [at for at, rate in enumerate(after) if rate < DOWN * level]
    return Dip(
        depth=max(0.0, 1 - min(after) / level),
        seconds=len(down) * width,
        recovery=_recovery(after, down, level, width) if down else 0.0,
    )


def _recovery(
    after: Sequence[float], down: Sequence[int], level: float, width: float
) -> float | None:
    back = [rate >= BACK * level for rate in after]
    for at in range(down[0], len(after) - BACK_INTERVALS + 1):
        if all(back[at : at + BACK_INTERVALS]):
            return (at - down[0]) * width
    return None


def dip_samples(
    intervals: Mapping[str, Sequence[float]], width: float
) -> tuple[list[Sample], list[str]]:
    """Return the dip of all directions together as samples, and notes for the reader of the run."""
    dip = find_dip([sum(at) for at in zip(*intervals.values(), strict=False)], width)
    if dip is None:
        return [], ["too little I/O before the fault to say what it did: use a longer runtime"]
    samples = [
        Sample("fault_dip", None, dip.depth, Unit.RATIO),
        Sample("fault_dip_time", None, dip.seconds, Unit.SECONDS),
    ]
    if dip.recovery is None:
        return samples, ["the rate was not back when the window ended"]
    return [*samples, Sample("fault_recovery", None, dip.recovery, Unit.SECONDS)], []
