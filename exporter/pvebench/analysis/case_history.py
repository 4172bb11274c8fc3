"""A case's history as values, and the steps in it: logarithms with plus for better."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from pvebench.analysis.figures import Figure
from pvebench.analysis.groups import Group

LEAST_BASELINE: Final = 4
"""Runs that something can be compared with; of so few only large changes can be told."""


@dataclass(frozen=True, slots=True)
class GoodRun:
    """One good run of a case.

    Attributes:
        time: when it ended, seconds since the epoch, UTC.
        environment: id of the environment it ran in.
        value: in base units, finite, not negative.
    """

    time: float
    environment: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseHistory:
    """All comparable runs of one case and figure, oldest first.

    Attributes:
        case: identity; unique within a figure: the case's key and the direction.
        figure: what is judged.
        of: the case's key.
        name: of the case, for people.
        direction: of the figure, or empty.
        labels: what related cases share: bus, cache, format, storage, aio.
        points: since the baseline's start; runs that are not comparable (another scenario
            fingerprint) belong to another history.
        ceiling: value that the device cannot beat, or None; a gain beyond it is suspicious.
        levelled: (time, effect) of steps that are known already: earlier runs count as if they
            had been made after them.
    """

    case: str
    of: str
    name: str
    figure: Figure
    labels: Mapping[str, str]
    points: tuple[GoodRun, ...]
    direction: str = ""
    ceiling: float | None = None
    levelled: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))
        times = [point.time for point in self.points]
        if times != sorted(times):
            raise ValueError(f"the runs of {self.case} are not in the order of time")

    def logs(self) -> list[float]:
        """Return the runs as logarithms, plus for better, with known steps levelled out."""
        return [
            oriented(point.value, self.figure)
            + sum(effect for time, effect in self.levelled if point.time < time)
            for point in self.points
        ]

    def times(self) -> tuple[float, ...]:
        """Return when the runs ended."""
        return tuple(point.time for point in self.points)

    def since(self, start: float) -> CaseHistory:
        """Return the history without the runs before the time `start`."""
        count = self.split(start)
        return self if count == 0 else replace(self, points=self.points[count:])

    def before(self, until: float) -> CaseHistory:
        """Return the history without the runs from the time `until` on."""
        count = self.split(until)
        return self if count == len(self.points) else replace(self, points=self.points[:count])

    def split(self, at: float) -> int:
        """Return how many runs there are before the time `at`."""
        return bisect_left(self.points, at, key=lambda point: point.time)

    def runs_between(self, one: float, other: float) -> int:
        """Return how many runs lie between two times, in either order."""
        return abs(self.split(one) - self.split(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStep:
    """A confirmed step of one case; effects are logarithms, plus for better.

    Attributes:
        time: of the event, or of the first run after the step where no event explains it.
        known: True if an environment change explains it.
        group: what it moved with, or None.
        runs: it rests on.
        slow: True if it is no step but a creep that began at `time`, or before.
        mode: True if the case is at its new level again and again: it is no news.
    """

    time: float
    known: bool
    effect: float
    low: float
    high: float
    p_value: float
    runs: int
    group: Group | None = None
    slow: bool = False
    mode: bool = False


def oriented(value: float, figure: Figure) -> float:
    """Return the logarithm of `value`, with plus for better."""
    sign = 1.0 if figure.more_is_better else -1.0
    return sign * math.log(max(value, figure.floor))
