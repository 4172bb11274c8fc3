"""Numbers of a case's runs as columns: of years of many cases millions of runs are read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pvebench.model.run import Outcome
from pvebench.store.records import Number

if TYPE_CHECKING:
    Column = array[float]

Row = Sequence[Any]
"""Of a good run: its number, case, end, environment, outcome, then the numbers asked for."""


@dataclass(slots=True)
class CaseNumbers:
    """Numbers of some good runs of one case.

    Attributes:
        runs: [runs] their numbers in the store.
        finished: [runs] seconds since the epoch, UTC.
        environments: [runs] digests.
        ok: [runs] 1: `ok`; 0: the good outcome that says how far the numbers can be trusted.
        values: [runs] of each number in the metric's base unit, NaN: not measured; a number that
            none of the runs has is absent.
    """

    case_key: str
    runs: array[int]
    finished: Column
    environments: list[str]
    ok: bytearray
    values: dict[Number, Column]

    def at(self, places: Sequence[int]) -> CaseNumbers:
        """Return the runs at these places, in that order."""
        return CaseNumbers(
            self.case_key,
            array("q", map(self.runs.__getitem__, places)),
            array("d", map(self.finished.__getitem__, places)),
            [self.environments[place] for place in places],
            bytearray(map(self.ok.__getitem__, places)),
            {
                number: array("d", map(column.__getitem__, places))
                for number, column in self.values.items()
            },
        )


def not_measured(count: int) -> Column:
    """Return a column of runs that do not have a number."""
    return array("d", [math.nan]) * count


def by_case(rows: Iterable[Row], wanted: Sequence[Number]) -> list[CaseNumbers]:
    """Return the numbers of runs, case by case; runs that have none of them are absent."""
    found: dict[str, list[Row]] = {}
    key_of = itemgetter(1)
    for row in rows:
        if row.count(None) < len(wanted):
            found.setdefault(key_of(row), []).append(row)
    return [_of_rows(key, own, wanted) for key, own in found.items()]


def _of_rows(key: str, rows: Sequence[Row], wanted: Sequence[Number]) -> CaseNumbers:
    runs, _, finished, environments, outcomes, *columns = zip(*rows, strict=True)
    return CaseNumbers(
        key,
        array("q", runs),
        array("d", finished),
        [*environments],
        bytearray(outcome == Outcome.OK for outcome in outcomes),
        {
            number: array("d", [math.nan if value is None else value for value in column])
            for number, column in zip(wanted, columns, strict=True)
            if column.count(None) < len(column)
        },
    )
