"""Decisions by the difference that verdicts use, valid at every look."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pvebench.analysis.arrays import np
from pvebench.analysis.difference import Difference, difference

LEAST_BEFORE: Final = 20
"""Minimum values before the upgrade; fewer decide nothing."""
LEAST_AFTER: Final = 2
_PRIOR: Final = 4
"""Weight, in values, of the assumption that nothing changed, in the predicted time."""
_MOSTLY: Final = 0.75
"""Share of the room for half of an interval: the noise of its middle takes the rest."""
MOST_ROUNDS: Final = 500
"""Limit of the predicted values."""


class Decision(StrEnum):
    """Result of one look at a series."""

    PASS = "pass"  # noqa: S105 # a decision, not a password
    """A loss of the tolerance or more is excluded."""
    STOP = "stop"
    """The loss is above the tolerance."""
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Loss after the upgrade, as a ratio: 0.1 is 10% less.

    Attributes:
        low, high: its interval; both NaN: too few values.
        before, after: number of values on both sides.
        more: further values until a decision, if the loss stays the same; None: unknown.
        enough: values on each side that decide, where further values after cannot; None: unknown.
    """

    loss: float = math.nan
    low: float = math.nan
    high: float = math.nan
    before: int
    after: int
    decision: Decision = Decision.UNDECIDED
    more: int | None
    enough: int | None = None


def bound(
    before: Sequence[float], after: Sequence[float], *, tolerance: float, chance: float
) -> Bound:
    """Return the loss of `after` relative to `before`.

    Args:
        before, after: logarithms of the canary relative to its peers, oldest first.
        tolerance: largest acceptable loss, 0.05 for 5%.
        chance: probability that the interval misses at any look.
    """
    counts = len(before), len(after)
    if counts[0] < LEAST_BEFORE or counts[1] < LEAST_AFTER:
        more = None if counts[0] < LEAST_BEFORE else LEAST_AFTER - counts[1]
        return Bound(before=counts[0], after=counts[1], more=more)
    apart = difference(np.asarray(before), np.asarray(after), chance=_spent(chance, counts[1]))
    limit, decision = -math.log1p(-tolerance), Decision.UNDECIDED
    if -apart.high > limit:
        decision = Decision.STOP
    elif -apart.low < limit:
        decision = Decision.PASS
    undecided = decision is Decision.UNDECIDED
    # Early estimates of many series exaggerate: the largest decides when the last one ends.
    room = abs(limit + apart.effect * counts[1] / (counts[1] + _PRIOR))
    return Bound(
        loss=-math.expm1(apart.effect),
        low=-math.expm1(apart.high),
        high=-math.expm1(apart.low),
        before=counts[0],
        after=counts[1],
        decision=decision,
        more=_more(apart, room, chance) if undecided else 0,
        enough=on_each_side(apart, room, chance) if undecided else None,
    )


def _spent(chance: float, count: int) -> float:
    """Return the part of an error probability for one look; those of all looks add up to it."""
    return chance / (count * (count - 1))


def _more(apart: Difference, room: float, chance: float) -> int | None:
    """Return the further values after until half of the interval is less than `room`."""

    def reach(count: int) -> float:
        return apart.reach(apart.before, count, _spent(chance, count))

    enough = _first_below(room, range(apart.after + 1, MOST_ROUNDS), reach)
    return None if enough is None else enough - apart.after


def on_each_side(apart: Difference, room: float, chance: float) -> int | None:
    """Return the values before, and as many after, that mostly decide with so much room."""

    def reach(count: int) -> float:
        return apart.reach(count, count, _spent(chance, count))

    return _first_below(_MOSTLY * room, range(LEAST_BEFORE, MOST_ROUNDS), reach)


def _first_below(limit: float, counts: range, reach: Callable[[int], float]) -> int | None:
    """Return the first count whose reach, which falls with the count, is below a limit."""
    place = bisect_right(counts, -limit, key=lambda count: -reach(count))
    return counts[place] if place < len(counts) else None
