"""The good runs of one case, oldest first, as columns that its figures share."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from itertools import compress, pairwise, starmap
from operator import eq, le
from sys import intern
from typing import TYPE_CHECKING, Final

from pvebench.analysis.case_history import GoodRuns
from pvebench.judging.figures import Place, figures_of
from pvebench.store import CaseNumbers, not_measured

if TYPE_CHECKING:
    Column = array[float]

MOST_POINTS: Final = 1000
"""Newest runs of a case that are kept at least."""
FORGOTTEN_SHARE: Final = 0.2
"""Of the runs of a case; so many are let go of at once."""
ENOUGH_OK: Final = 20
"""Runs that are `ok` beside which those count that are good with a reason."""


class CaseColumns:
    """What is judged of one case: millions of values, read at once and looked at again and again.

    Args:
        tool: what measures it.
    """

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._times: Column = array("d")
        self._environments: list[str] = []
        self._ok = bytearray()
        self._values: dict[Place, Column] = {}
        self._counting: tuple[float, dict[Place, GoodRuns]] | None = None

    def add(self, numbers: CaseNumbers) -> None:
        """Take over runs: most come last."""
        self._counting = None
        before, count = len(self._times), len(numbers.runs)
        figures = figures_of(numbers.values, self._tool)
        for place in figures:
            self._values.setdefault(place, not_measured(before))
        for place, column in self._values.items():
            column.extend(figures.get(place) or not_measured(count))
        self._times.extend(numbers.finished)
        self._environments += map(intern, numbers.environments)
        self._ok += numbers.ok
        if not all(starmap(le, pairwise(self._times[max(0, before - 1) :]))):
            self._put_in_order()
        if len(self._times) >= 2 * MOST_POINTS:
            # As many as one run after the other would have left.
            self._drop(len(self._times) // MOST_POINTS * MOST_POINTS - MOST_POINTS)

    def _put_in_order(self) -> None:
        order = sorted(range(len(self._times)), key=self._times.__getitem__)
        self._times = array("d", map(self._times.__getitem__, order))
        self._environments = [self._environments[place] for place in order]
        self._ok = bytearray(map(self._ok.__getitem__, order))
        self._values = {
            place: array("d", map(column.__getitem__, order))
            for place, column in self._values.items()
        }

    def forget(self, before: float) -> None:
        """Let go of the runs that ended before a moment, once they are a good part of all."""
        old = bisect_left(self._times, before)
        if old > FORGOTTEN_SHARE * len(self._times):
            self._drop(old)

    def _drop(self, count: int) -> None:
        # Not at every run: a history that begins elsewhere is judged from its beginning.
        del self._times[:count], self._environments[:count], self._ok[:count]
        for column in self._values.values():
            del column[:count]
        self._counting = None

    def counting(self, since: float) -> Mapping[Place, GoodRuns]:
        """Return of each figure the runs that count, since a moment; the same until there are more.

        Noisy runs and those that were not steady are never a baseline alone: they count beside
        as many `ok` ones as make a baseline, and not before.
        """
        if self._counting is None or self._counting[0] != since:
            begin = bisect_left(self._times, since)
            times, environments = self._times[begin:], self._environments[begin:]
            ok = self._ok[begin:]
            self._counting = (
                since,
                {
                    place: _counting(times, environments, ok, column[begin:])
                    for place, column in self._values.items()
                },
            )
        return self._counting[1]


def _counting(times: Column, environments: list[str], ok: bytearray, values: Column) -> GoodRuns:
    measured = bytearray(map(eq, values, values))  # NaN is not like itself
    counted = bytearray(compress(ok, measured))
    if counted.count(True) < min(ENOUGH_OK, len(counted)):
        measured = bytearray(one and other for one, other in zip(measured, ok, strict=True))
    if not all(measured):
        times, values = (array("d", compress(column, measured)) for column in (times, values))
        environments = [*compress(environments, measured)]
    return GoodRuns.of_columns(times, environments, values)
