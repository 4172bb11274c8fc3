"""Numbers of many runs as one row: columns in the machine's own form, and what they are.

A block can be made anew, at any time, from the rows that it was made from.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter, mul
from typing import TYPE_CHECKING, Any, Final

from pvebench.model.run import Outcome
from pvebench.store.records import GOOD, Number

# --- Numbers of a case's runs as columns: of years of many cases millions of runs are read.

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


SIZE: Final = 50_000
"""Run numbers of one block: of fewer, a thousand cases would have hardly any run each in it."""
FORM: Final = 1
"""How a block is made; of another form it is made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A row of `number_blocks`.

    Attributes:
        layout: JSON: how many runs of which cases, which numbers they have, the environments.
        content: run numbers of all cases, ends, codes of environments, outcomes, then the values
            of each number of those cases that have it.
        checksum: of both, by CRC-32.
    """

    layout: bytes
    content: bytes
    checksum: int


def form_of(wanted: Sequence[Number]) -> str:
    """Return what a block is known by: one of other numbers, or of another machine, is another."""
    return json.dumps([FORM, sys.byteorder, GOOD, *wanted])


def packed(cases: Sequence[CaseNumbers], wanted: Sequence[Number]) -> Block:
    """Return numbers as a block."""
    digests = sorted({digest for case in cases for digest in case.environments})
    codes = {digest: code for code, digest in enumerate(digests)}
    # One column of all cases after the other: of a year there are thousands of cases.
    columns: tuple[array[Any], ...] = (
        *(case.runs for case in cases),
        *(case.finished for case in cases),
        *(array("H", map(codes.__getitem__, case.environments)) for case in cases),
        *(array("B", case.ok) for case in cases),
        *(case.values[number] for number in wanted for case in cases if number in case.values),
    )
    content = b"".join(column.tobytes() for column in columns)
    cases_of = [_entry(case, wanted) for case in cases]
    layout = json.dumps({"environments": digests, "cases": cases_of}).encode()
    return Block(layout=layout, content=content, checksum=_checksum(layout, content))


def _checksum(layout: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(layout))


def _entry(case: CaseNumbers, wanted: Sequence[Number]) -> tuple[str, int, list[int]]:
    there = [place for place, number in enumerate(wanted) if number in case.values]
    return case.case_key, len(case.runs), there


def unpacked(blocks: Iterable[Block], wanted: Sequence[Number]) -> list[CaseNumbers]:
    """Return the numbers of blocks that follow each other, put together case by case.

    Raises:
        ValueError: one is damaged.
    """
    cases: dict[str, _Case] = {}
    try:
        for block in blocks:
            if _checksum(block.layout, block.content) != block.checksum:
                raise ValueError("the checksum of a block of numbers is another one")
            _gather(block, len(wanted), cases)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the layout of a block of numbers is another one: {error}") from error
    return [case.numbers(key, wanted) for key, case in cases.items()]


def intact(block: Block, wanted: Sequence[Number]) -> bool:
    """Return whether the numbers of a block can be read."""
    try:
        unpacked([block], wanted)
    except ValueError:
        return False
    return True


def _gather(block: Block, kinds: int, cases: dict[str, _Case]) -> None:
    layout: dict[str, Any] = json.loads(block.layout)
    digests, entries = layout["environments"], layout["cases"]
    having = [0] * kinds
    for _, count, there in entries:
        for place in there:
            having[place] += count
    every = sum(count for _, count, _ in entries)
    content = _Columns(block.content, [every] * len(_WIDTHS) + having)
    for key, count, there in entries:
        case = cases.setdefault(key, _Case())
        case.runs += content.next(_RUN, count)
        case.finished += content.next(_FINISHED, count)
        codes = array("H", content.next(_CODE, count))
        case.environments += map(digests.__getitem__, codes)
        for place in there:
            column = case.column(place)
            column += content.next(_FIRST_VALUE + place, count)
        case.ok += content.next(_OK, count)


_RUN, _FINISHED, _CODE, _OK, _FIRST_VALUE = range(5)
_WIDTHS: Final = (8, 8, 2, 1)


class _Columns:
    """Columns that follow each other, each read from its beginning to its end."""

    def __init__(self, content: bytes, counts: Sequence[int]) -> None:
        self._content = content
        self._widths = [*_WIDTHS, *[8] * (len(counts) - len(_WIDTHS))]
        sizes = map(mul, self._widths, counts)
        self._at = [0, *accumulate(sizes)]
        if self._at[-1] != len(content):
            raise ValueError("a block of numbers is shorter or longer than its layout")

    def next(self, column: int, count: int) -> bytes:
        begin = self._at[column]
        end = self._at[column] = begin + count * self._widths[column]
        return self._content[begin:end]


class _Case:
    """What the blocks have of one case, as bytes: a million small arrays keep Python busy."""

    __slots__ = ("environments", "finished", "ok", "runs", "values")

    def __init__(self) -> None:
        self.runs, self.finished, self.ok = bytearray(), bytearray(), bytearray()
        self.environments: list[str] = []
        self.values: dict[int, bytearray] = {}

    def column(self, place: int) -> bytearray:
        """Return the values of a number so far; runs of earlier blocks without it are filled in."""
        found = self.values.setdefault(place, bytearray())
        found += _NAN * (len(self.ok) - len(found) // len(_NAN))
        return found

    def numbers(self, key: str, wanted: Sequence[Number]) -> CaseNumbers:
        return CaseNumbers(
            key,
            array("q", bytes(self.runs)),
            array("d", bytes(self.finished)),
            self.environments,
            self.ok,
            {wanted[place]: array("d", bytes(self.column(place))) for place in self.values},
        )


_NAN: Final = array("d", [math.nan]).tobytes()
