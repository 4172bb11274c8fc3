"""Confidence sequences: intervals of a changing mean that are valid at every look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.difference import critical

LEAST_BEFORE: Final = 20
"""Minimum values before the upgrade; fewer decide nothing."""
LEAST_AFTER: Final = 2
_PRIOR: Final = 4
"""Weight, in values, of the assumption that nothing changed, in the predicted time."""
MOST_ROUNDS: Final = 500
"""Limit of the predicted values."""
CORRELATED: Final = 0.1
"""Autocorrelation from which on values are thinned."""
_MOST_THINNED: Final = 6
_NARROWEST: Final = 10
"""Rounds at which the sequence is narrowest."""
_BEFORE_SHARE: Final = 0.2
"""Share of the error probability for the mean before the upgrade."""


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
        low, high: confidence sequence; both NaN: too few values.
        before, after: number of values on both sides after thinning.
        thinned: one of so many values counts.
        more: further values, after thinning, until a decision, if the loss stays the same; None:
            unknown.
    """

    loss: float
    low: float
    high: float
    before: int
    after: int
    thinned: int
    decision: Decision
    more: int | None


def bound(
    before: Sequence[float], after: Sequence[float], *, tolerance: float, chance: float
) -> Bound:
    """Return the loss of `after` relative to `before`.

    The mean before has a fixed interval, since its number of values does not depend on a look;
    the mean after has the normal-mixture confidence sequence of Robbins (Waudby-Smith et al.,
    arXiv 2103.06476), with the standard deviation from before the upgrade.

    Args:
        before, after: logarithms of the canary relative to its peers, oldest first.
        tolerance: largest acceptable loss, 0.05 for 5%.
        chance: probability that the sequence misses at any look.
    """
    step = thinning(before)
    # Thinned from the upgrade on, so that a value does not move between two looks.
    first, second = _array(before)[::-1][::step], _array(after)[::step]
    counts = len(first), len(second)
    if counts[0] < LEAST_BEFORE or counts[1] < LEAST_AFTER:
        return _none(*counts, step)
    spread = float(first.std(ddof=1)) * (1 + 1 / math.sqrt(2 * (counts[0] - 1)))
    fixed = critical(_BEFORE_SHARE * chance, counts[0] - 1) * spread / math.sqrt(counts[0])
    chance_after = (1 - _BEFORE_SHARE) * chance
    loss, limit = float(first.mean() - second.mean()), -math.log1p(-tolerance)
    reach = fixed + spread * _radius(counts[1], chance_after)
    decision = _decision(loss - reach, loss + reach, limit)
    open_ = decision is Decision.UNDECIDED
    # Early estimates of many series exaggerate: the largest decides when the last one ends.
    room = abs(limit - loss * counts[1] / (counts[1] + _PRIOR)) - fixed
    return Bound(
        loss=-math.expm1(-loss),
        low=-math.expm1(-(loss - reach)),
        high=-math.expm1(-(loss + reach)),
        before=counts[0],
        after=counts[1],
        thinned=step,
        decision=decision,
        more=_more(counts[1], room, spread, chance_after) if open_ else 0,
    )


def _none(before: int, after: int, step: int) -> Bound:
    return Bound(
        loss=math.nan,
        low=math.nan,
        high=math.nan,
        before=before,
        after=after,
        thinned=step,
        decision=Decision.UNDECIDED,
        more=None if before < LEAST_BEFORE else LEAST_AFTER - after,
    )


def _decision(low: float, high: float, limit: float) -> Decision:
    if low > limit:
        return Decision.STOP
    return Decision.PASS if high < limit else Decision.UNDECIDED


def _radius(count: int, chance: float) -> float:
    """Return half of the width of the sequence after `count` values, in standard deviations."""
    factor = (-2 * math.log(chance) + math.log(1 - 2 * math.log(chance))) / _NARROWEST
    grown = count * factor + 1
    return math.sqrt(2 * grown / (count**2 * factor) * math.log(math.sqrt(grown) / chance))


def _more(count: int, room: float, spread: float, chance: float) -> int | None:
    """Return the further values until the interval has the width `room` on each side."""
    further = range(count + 1, MOST_ROUNDS)
    fit = (values for values in further if spread * _radius(values, chance) < room)
    return next((values - count for values in fit), None)


def thinning(values: Sequence[float]) -> int:
    """Return the smallest distance at which values are practically uncorrelated."""
    rest = _array(values) - (float(np.mean(values)) if len(values) else 0.0)
    power = float(rest @ rest)
    for step in range(1, _MOST_THINNED):
        if len(rest) <= 2 * step or power <= 0:
            return step
        likeness = float(rest[step:] @ rest[:-step]) / power
        # The estimate itself varies by 1 / sqrt(n).
        if likeness < CORRELATED + 1 / math.sqrt(len(rest)):
            return step
    return _MOST_THINNED


def _array(values: Sequence[float]) -> Matrix:
    return np.asarray(values, dtype=np.float64)
