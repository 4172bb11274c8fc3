"""Effect of a storage fault on the rate of a load: depth of the dip and time to recovery."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model.run import Sample
from pvebench.model.run_metrics import FAULT_DIP, FAULT_DIP_TIME, FAULT_RECOVERY

QUIET_SHARE: Final = 1 / 3
"""Share of the window before the fault."""
DOWN: Final = 0.5
BACK: Final = 0.8
"""Shares of the rate before the fault: below `DOWN` is the dip, from `BACK` on is recovered."""
NOT_RECOVERED: Final = "the rate had not recovered when the window ended"
BACK_INTERVALS: Final = 3
"""Consecutive recovered intervals that end a dip: a single one may be queued I/O."""
RATE_SECONDS: Final = 1.0
"""Length of the intervals of an operation's rate."""
MIN_OPERATION_SECONDS: Final = BACK_INTERVALS * RATE_SECONDS / QUIET_SHARE
"""Shortest window of an operation: a shorter one has too few intervals before it."""
TOO_SHORT: Final = f"too short for workloads with during; use at least {MIN_OPERATION_SECONDS:.0f}s"


@dataclass(frozen=True, slots=True)
class Dip:
    """Dip of a rate.

    Attributes:
        depth: largest drop as a share of the rate before; 1: no I/O at all.
        seconds: total time below `DOWN`.
        recovery: seconds from the first interval below `DOWN` to the first of the recovered ones;
            0 without a dip; None: not recovered at the end of the window.
    """

    depth: float
    seconds: float
    recovery: float | None


def find_dip(rates: Sequence[float], width: float) -> Dip | None:
    """Return the dip in a rate; None: too few intervals or no I/O before the fault.

    Args:
        rates: rate of each interval of `width` seconds in the window.
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
    """Return the dip of all directions together as samples, and notes on the run."""
    dip = find_dip([sum(at) for at in zip(*intervals.values(), strict=False)], width)
    if dip is None:
        return [], ["too little I/O before the fault to compare with; use a longer runtime"]
    samples = [FAULT_DIP.sample(dip.depth), FAULT_DIP_TIME.sample(dip.seconds)]
    if dip.recovery is None:
        return samples, [NOT_RECOVERED]
    return [*samples, FAULT_RECOVERY.sample(dip.recovery)], []
