"""How long after a run the next one is due: the cases wander over the hours of the day.

A host has hours of its own: backups at night, users by day. What is due every day would meet the
same hour for ever, and after an upgrade by day there would be nothing to compare it with.
"""

from __future__ import annotations

from typing import Final

LATER_SECONDS: Final = 5 * 3600.0
"""How much later than its interval a case runs, or between the rounds of a burst that is spread:
less than a quarter of a day, so that none is left out."""
SHARE: Final = 0.25
"""The same as share of the interval, at most."""
RETURN: Final = 0.9
"""Share of it by which runs come earlier afterwards: the hours are others with every turn."""
WAVE: Final = 8
"""Cycles after which it begins anew: half of them later, half of them earlier."""


def wander_seconds(every_seconds: float) -> tuple[float, float]:
    """Return how much later, and how much earlier, a case may run than its interval says.

    What is due every few hours comes to all hours of the day by itself.
    """
    if every_seconds <= LATER_SECONDS:
        return 0.0, 0.0
    later = min(LATER_SECONDS, every_seconds * SHARE)
    return later, later * RETURN


def wait_seconds(every_seconds: float, cycles: int) -> float:
    """Return how long after its last good run a case is due again.

    Args:
        cycles: that it has had; cases with as many stay together, so that nothing is switched
            for one alone.
    """
    later, earlier = wander_seconds(every_seconds)
    return every_seconds + (later if cycles % WAVE < WAVE / 2 else -earlier)
