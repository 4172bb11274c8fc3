"""Numbers of many runs in one row: columns in the machine's binary format, and their layout.

A block can be rebuilt at any time from the rows that it derives from.
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

# --- Numbers of a case's runs as columns: years of many cases have millions of runs.

if TYPE_CHECKING:
    Column = array[float]

Row = Sequence[Any]
"""Of a good run: its number, case, end, environment, outcome, then the requested numbers."""


@dataclass(slots=True)
class CaseNumbers:
    """Numbers of some good runs of one case.

    Attributes:
        runs: [runs] their numbers in the store.
        finished: [runs] seconds since the epoch, UTC.
        environments: [runs] digests.
        ok: [runs] 1: `ok`; 0: a good outcome that limits the confidence in the numbers.
        values: [runs] of each number in the metric's base unit, NaN: not measured; a number that
            no run has is absent.
    """

    case_key: str
    runs: array[int]
    finished: Column
    environments: list[str]
    ok: bytearray
    values: dict[Number, Column]

    def at(self, positions: Sequence[int]) -> CaseNumbers:
        """Return the runs at these positions, in that order."""
        return CaseNumbers(
            self.case_key,
            array("q", map(self.runs.__getitem__, positions)),
            array("d", map(self.finished.__getitem__, positions)),
            [self.environments[position] for position in positions],
            bytearray(map(self.ok.__getitem__, positions)),
            {
                number: array("d", map(column.__getitem__, positions))
                for number, column in self.values.items()
            },
        )


def not_measured(count: int) -> Column:
    """Return a column of NaN, for runs that lack a number."""
    return array("d", [math.nan]) * count


def by_case(rows: Iterable[Row], requested: Sequence[Number]) -> list[CaseNumbers]:
    """Return the numbers of runs by case; runs that have none of them are absent."""
    rows_of: dict[str, list[Row]] = {}
    key_of = itemgetter(1)
    for row in rows:
        if row.count(None) < len(requested):
            rows_of.setdefault(key_of(row), []).append(row)
    return [_of_rows(key, own_rows, requested) for key, own_rows in rows_of.items()]


def _of_rows(key: str, rows: Sequence[Row], requested: Sequence[Number]) -> CaseNumbers:
    runs, _, finished, environments, outcomes, *columns = zip(*rows, strict=True)
    return CaseNumbers(
        key,
        array("q", runs),
        array("d", finished),
        [*environments],
        bytearray(outcome == Outcome.OK for outcome in outcomes),
        {
            number: array("d", [math.nan if value is None else value for value in column])
            for number, column in zip(requested, columns, strict=True)
            if column.count(None) < len(column)
        },
    )


SIZE: Final = 50_000
"""Run numbers per block: a smaller one would have hardly any runs of each of a thousand cases."""
FORM: Final = 1
"""Version of the format of a block; a block of another version is rebuilt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A row of `number_blocks`.

    Attributes:
        layout: JSON: the cases with their numbers of runs and the numbers they have, environments.
        content: run numbers of all cases, ends, codes of environments, outcomes, then the values
            of each number of the cases that have it.
        checksum: CRC-32 of both.
    """

    layout: bytes
    content: bytes
    checksum: int


def form_of(requested: Sequence[Number]) -> str:
    """Return the form of a block: other numbers or another byte order make another form."""
    return json.dumps([FORM, sys.byteorder, GOOD, *requested])


def packed(cases: Sequence[CaseNumbers], requested: Sequence[Number]) -> Block:
    """Return numbers as a block."""
    digests = sorted({digest for case in cases for digest in case.environments})
    codes = {digest: code for code, digest in enumerate(digests)}
    # Each column holds all cases: a year has thousands of cases.
    columns: tuple[array[Any], ...] = (
        *(case.runs for case in cases),
        *(case.finished for case in cases),
        *(array("H", map(codes.__getitem__, case.environments)) for case in cases),
        *(array("B", case.ok) for case in cases),
        *(case.values[number] for number in requested for case in cases if number in case.values),
    )
    content = b"".join(column.tobytes() for column in columns)
    cases_of = [_entry(case, requested) for case in cases]
    layout = json.dumps({"environments": digests, "cases": cases_of}).encode()
    return Block(layout=layout, content=content, checksum=_checksum(layout, content))


def _checksum(layout: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(layout))


def _entry(case: CaseNumbers, requested: Sequence[Number]) -> tuple[str, int, list[int]]:
    present = [index for index, number in enumerate(requested) if number in case.values]
    return case.case_key, len(case.runs), present


def unpacked(blocks: Iterable[Block], requested: Sequence[Number]) -> list[CaseNumbers]:
    """Return the numbers of consecutive blocks, joined by case.

    Raises:
        ValueError: a block is damaged.
    """
    cases: dict[str, _Case] = {}
    try:
        for block in blocks:
            if _checksum(block.layout, block.content) != block.checksum:
                raise ValueError("checksum mismatch in a number block")
            _gather(block, len(requested), cases)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"unexpected layout of a number block: {error}") from error
    return [case.numbers(key, requested) for key, case in cases.items()]


def intact(block: Block, requested: Sequence[Number]) -> bool:
    """Return whether the numbers of a block can be read."""
    try:
        unpacked([block], requested)
    except ValueError:
        return False
    return True


def _gather(block: Block, kinds: int, cases: dict[str, _Case]) -> None:
    layout: dict[str, Any] = json.loads(block.layout)
    digests, entries = layout["environments"], layout["cases"]
    with_value = [0] * kinds
    for _, count, present in entries:
        for index in present:
            with_value[index] += count
    total = sum(count for _, count, _ in entries)
    content = _Columns(block.content, [total] * len(_WIDTHS) + with_value)
    for key, count, present in entries:
        case = cases.setdefault(key, _Case())
        case.runs += content.next(_RUN, count)
        case.finished += content.next(_FINISHED, count)
        codes = array("H", content.next(_CODE, count))
        case.environments += map(digests.__getitem__, codes)
        for index in present:
            column = case.column(index)
            column += content.next(_FIRST_VALUE + index, count)
        case.ok += content.next(_OK, count)


_RUN, _FINISHED, _CODE, _OK, _FIRST_VALUE = range(5)
_WIDTHS: Final = (8, 8, 2, 1)


class _Columns:
    """Consecutive columns, each read from start to end."""

    def __init__(self, content: bytes, counts: Sequence[int]) -> None:
        self._content = content
        self._widths = [*_WIDTHS, *[8] * (len(counts) - len(_WIDTHS))]
        sizes = map(mul, self._widths, counts)
        self._at = [0, *accumulate(sizes)]
        if self._at[-1] != len(content):
            raise ValueError("length of a number block differs from its layout")

    def next(self, column: int, count: int) -> bytes:
        begin = self._at[column]
        end = self._at[column] = begin + count * self._widths[column]
        return self._content[begin:end]


class _Case:
    """Columns of one case as bytes: a million small arrays would keep Python busy."""

    __slots__ = ("environments", "finished", "ok", "runs", "values")

    def __init__(self) -> None:
        self.runs, self.finished, self.ok = bytearray(), bytearray(), bytearray()
        self.environments: list[str] = []
        self.values: dict[int, bytearray] = {}

    def column(self, index: int) -> bytearray:
        """Return the values of a number so far, with NaN for runs of earlier blocks without it."""
        column = self.values.setdefault(index, bytearray())
        column += _NAN * (len(self.ok) - len(column) // len(_NAN))
        return column

    def numbers(self, key: str, requested: Sequence[Number]) -> CaseNumbers:
        return CaseNumbers(
            key,
            array("q", bytes(self.runs)),
            array("d", bytes(self.finished)),
            self.environments,
            self.ok,
            {requested[index]: array("d", bytes(self.column(index))) for index in self.values},
        )


_NAN: Final = array("d", [math.nan]).tobytes()
