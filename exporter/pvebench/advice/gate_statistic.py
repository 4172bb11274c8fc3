"""Decisions by the difference that verdicts use, valid at every look."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.difference import Difference, difference

TOLERANCE: Final = 0.05
"""Largest acceptable loss by default."""
CHANCE: Final = 0.05
"""Probability of a stop without a loss, over all looks and series."""
LEAST_BEFORE: Final = 20
"""Minimum values before the upgrade; fewer decide nothing."""
LEAST_AFTER: Final = 2
_PRIOR: Final = 4
"""Weight, in values, of the assumption that nothing changed, in the predicted time."""
_MOSTLY: Final = 0.75
"""Share of the room for half of an interval: the noise of its middle takes the rest."""
MOST_ROUNDS: Final = 500
"""Limit of the predicted values."""
_LEAST_VARIANCE: Final = 1e-6
"""A case with less noise does not count more than its rounding."""
_SHARED: Final = ("storage", "bus", "cache", "format", "workload")
"""Labels whose cases are judged together, too."""


class Decision(StrEnum):
    """Result of one look at a series."""

    PASS = "pass"  # noqa: S105 # a decision, not a password
    """A loss of the tolerance or more is excluded."""
    STOP = "stop"
    """The loss is above the tolerance."""
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A case relative to its peers, or the mean of several: logarithms, oldest first.

    Attributes:
        interval: seconds between values.
        cases: number of cases.
    """

    name: str
    labels: Mapping[str, str]
    before: Matrix
    after: Matrix
    interval: float
    cases: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Difference of a series after the upgrade, and what it decides.

    Attributes:
        apart: None: too few values.
        seconds: time until a decision, if the difference stays the same; None: unknown.
        enough: values on each side that decide, where further values after cannot; None: unknown.
    """

    series: Series
    apart: Difference | None = None
    decision: Decision = Decision.UNDECIDED
    seconds: float | None = None
    enough: int | None = None

    @property
    def loss(self) -> tuple[float, float, float] | None:
        """Loss with both ends of its interval, as ratios: 0.1 is 10% less; None: too few values."""
        if (apart := self.apart) is None:
            return None
        return -math.expm1(apart.effect), -math.expm1(apart.high), -math.expm1(apart.low)


def bound(series: Series, tolerance: float, chance: float) -> Bound:
    """Return the bound of a series.

    Args:
        tolerance: largest acceptable loss, 0.05 for 5%.
        chance: probability that the interval misses at any look.
    """
    before, after = len(series.before), len(series.after)
    if before < LEAST_BEFORE:
        return Bound(series=series)
    if after < LEAST_AFTER:
        return Bound(series=series, seconds=(LEAST_AFTER - after) * series.interval)
    apart = difference(series.before, series.after, chance=_spent(chance, after))
    limit = math.log1p(-tolerance)
    if apart.high < limit or apart.low > limit:
        decision = Decision.STOP if apart.high < limit else Decision.PASS
        return Bound(series=series, apart=apart, decision=decision, seconds=0.0)
    # Early estimates of many series exaggerate: the largest decides when the last one ends.
    room = abs(apart.effect * after / (after + _PRIOR) - limit)
    runs = enough_runs(apart, room, chance, before)
    return Bound(
        series=series,
        apart=apart,
        seconds=None if runs is None else (runs - after) * series.interval,
        enough=enough_runs(apart, room, chance),
    )


def _spent(chance: float, count: int) -> float:
    """Return the part of an error probability for one look; those of all looks add up to it."""
    return chance / (count * (count - 1))


def enough_runs(
    apart: Difference, room: float, chance: float, before: int | None = None
) -> int | None:
    """Return the values after with which half of the interval is below `room`; None: too many.

    Args:
        before: number of values before; None: as many as after, that mostly decide.
    """
    counts = range(apart.after + 1 if before else LEAST_BEFORE, MOST_ROUNDS)
    place = bisect_right(
        counts,
        -room if before else -room * _MOSTLY,
        key=lambda count: -apart.reach(before or count, count, _spent(chance, count)),
    )
    return counts[place] if place < len(counts) else None


def bounds(
    series: Sequence[Series], tolerance: float
) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """Return the bounds of groups, all cases together first, and those of single cases."""
    groups = list(_groups(series))
    # Half of the error probability for single cases, a quarter for all together, which an update
    # usually concerns, and a quarter for the other groups.
    more = max(1, len(groups) - 1)
    together = (
        bound(group, tolerance, CHANCE / 4 / (more if place else 1))
        for place, group in enumerate(groups)
    )
    return tuple(together), tuple(
        bound(case, tolerance, CHANCE / 2 / len(series)) for case in series
    )


def _groups(series: Sequence[Series]) -> Iterator[Series]:
    """Yield all cases, then each label's cases if they are several but not all."""
    if series:
        yield _mean("all cases", series)
    for label in _SHARED:
        for value in sorted({case.labels[label] for case in series}):
            same = [case for case in series if case.labels[label] == value]
            if 1 < len(same) < len(series):
                yield _mean(f"{label} {value}", same)


def _mean(name: str, series: Sequence[Series]) -> Series:
    """Return the mean of cases per round, weighted by their noise before the upgrade.

    Rounds are counted from the upgrade on, in both directions.
    """
    weights = [1 / max(_LEAST_VARIANCE, float(np.var(case.before))) for case in series]
    past, rounds = (
        min(len(side) for side in sides)
        for sides in zip(*((case.before, case.after) for case in series), strict=True)
    )
    return Series(
        name=name,
        labels={},
        before=np.average([case.before[-past:] for case in series], axis=0, weights=weights),
        after=np.average([case.after[:rounds] for case in series], axis=0, weights=weights),
        interval=median(case.interval for case in series),
        cases=len(series),
    )
