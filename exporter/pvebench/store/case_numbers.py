"""Numbers of the good runs of each case, for change detection: from blocks of runs, else from rows.

A block holds the runs `SIZE * block + 1` to `SIZE * (block + 1)`. Triggers of the database remove
it when one of them is changed or deleted; then they are read as rows until they are packed again.
So are those of a damaged block, which the next packing replaces.
"""

from __future__ import annotations

import json
import math
import sys
import uuid
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import mul
from typing import Any, Final

from sqlalchemy import Connection, Engine, ScalarSelect, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.log import log
from pvebench.store.engine import reading, writing
from pvebench.store.records import GOOD, CaseNumbers, Number, by_case
from pvebench.store.tables import number_blocks, runs, samples

AT_ONCE: Final = 10
"""Blocks in memory at a time while they are split by case: some hundred runs of each of many."""
_RUN_COLUMNS: Final = (
    runs.c.id,
    runs.c.case_key,
    runs.c.finished,
    runs.c.environment,
    runs.c.outcome,
)


class Numbers:
    """Reads and packs numbers. `Store.numbers` is one; every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Readers find damaged blocks, `pack` drops them: reading writes nothing.
        self._damaged: set[int] = set()

    def read(
        self, requested: Sequence[Number], *, after: int = 0, until: int | None = None
    ) -> Iterator[list[CaseNumbers]]:
        """Yield the good runs with numbers above `after`, in parts of ascending run numbers.

        Args:
            requested: the numbers to read; runs that have none of them are absent.
            until: the last run; None: the newest.
        """
        with reading(self._engine) as connection:
            last = _newest(connection) if until is None else until
            available = _packed_as(connection, form_of(requested))
            first = after + 1
            while first <= last and (run := _next(connection, first)) is not None:
                block = (run - 1) // SIZE
                first = max(first, SIZE * block + 1)
                count = _following(block, available, last) if first == SIZE * block + 1 else 0
                end = min(SIZE * (block + max(1, count)), last)
                if count:
                    blocks = range(block, block + count)
                    yield from self._packed(connection, blocks, requested)
                else:
                    yield by_case(_rows(connection, requested, first, end), requested)
                first = end + 1

    def _packed(
        self, connection: Connection, blocks: range, requested: Sequence[Number]
    ) -> Iterator[list[CaseNumbers]]:
        """Yield the numbers of blocks, those of a damaged block from its rows."""
        try:
            parts = [unpacked(_blocks(connection, blocks), requested)]
        except ValueError:
            yield from (self._block_or_rows(connection, block, requested) for block in blocks)
        else:
            yield from parts

    def _block_or_rows(
        self, connection: Connection, block: int, requested: Sequence[Number]
    ) -> list[CaseNumbers]:
        try:
            return unpacked(_blocks(connection, [block]), requested)
        except ValueError:
            self._note(block)
            return by_case(_rows(connection, requested, *_runs_of(block)), requested)

    def _note(self, block: int) -> None:
        """Log a damaged block once, and let the next packing replace it."""
        if block in self._damaged:
            return
        self._damaged.add(block)
        first, last = _runs_of(block)
        log.warning(
            "number block damaged, reading its runs from rows",
            block=block,
            first_run=first,
            last_run=last,
            likely_cause="the disk is failing, or another program wrote to the database",
            next_step="no action needed for this block; check the disk",
        )

    def damaged(self, requested: Sequence[Number]) -> list[int]:
        """Return the damaged blocks; only one at a time is in memory."""
        with reading(self._engine) as connection:
            blocks = sorted(_packed_as(connection, form_of(requested)))
            return [block for block in blocks if _is_damaged(connection, block, requested)]

    def log_damaged(self, requested: Sequence[Number]) -> None:
        """Log damaged blocks, and let the next packing replace them."""
        for block in self.damaged(requested):
            self._note(block)

    def pack(self, requested: Sequence[Number], *, most: int | None = None) -> int:
        """Pack the runs of full blocks that are not packed yet; return the number of blocks.

        Each block has its own transactions; other processes can write while its runs are read.
        Blocks that were found damaged are dropped first.

        Args:
            most: maximum number of blocks, oldest first; None: all.
        """
        for block in sorted(self._damaged):
            self._drop(block, requested)
        with reading(self._engine) as connection:
            missing = [*islice(_not_packed(connection, form_of(requested)), most)]
        return sum(self._pack(block, requested) for block in missing)

    def _drop(self, block: int, requested: Sequence[Number]) -> None:
        # Check again: another process may have replaced the block.
        with writing(self._engine) as connection:
            if _is_damaged(connection, block, requested):
                connection.execute(delete(number_blocks).where(number_blocks.c.block == block))
        self._damaged.discard(block)

    def _pack(self, block: int, requested: Sequence[Number]) -> int:
        # A run that changes during packing removes this row: its outdated numbers are not stored.
        mark = f"being packed: {uuid.uuid4()}"
        empty = {"form": mark, "layout": b"", "content": b"", "checksum": 0}
        row = upsert(number_blocks).values(block=block, **empty)
        with writing(self._engine) as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["block"], set_=empty))
        with reading(self._engine) as connection:
            rows = _rows(connection, requested, *_runs_of(block))
            new = packed(by_case(rows, requested), requested)
        change = update(number_blocks).where(
            number_blocks.c.block == block, number_blocks.c.form == mark
        )
        with writing(self._engine) as connection:
            result = connection.execute(
                change.values(
                    form=form_of(requested),
                    layout=new.layout,
                    content=new.content,
                    checksum=new.checksum,
                )
            )
        return result.rowcount


def _newest(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(runs.c.id))) or 0)


def _next(connection: Connection, first: int) -> int | None:
    """Return the first run from a number on: numbers may have gaps of any size."""
    number: int | None = connection.scalar(select(func.min(runs.c.id)).where(runs.c.id >= first))
    return number


def _not_packed(connection: Connection, form: str) -> Iterator[int]:
    """Yield the blocks that are full and have runs, but are not packed in this form."""
    available, full = _packed_as(connection, form), _newest(connection) // SIZE
    block = 0
    while block < full:
        if block not in available:
            run = _next(connection, SIZE * block + 1)
            block = full if run is None else (run - 1) // SIZE
        if block < full and block not in available:
            yield block
        block += 1


def _packed_as(connection: Connection, form: str) -> set[int]:
    query = select(number_blocks.c.block).where(number_blocks.c.form == form)
    return set(connection.scalars(query))


def _following(block: int, available: set[int], last: int) -> int:
    """Return how many blocks from this one on can be read at once without exceeding run `last`."""
    blocks = range(block, min(block + AT_ONCE, last // SIZE))
    gaps = (index for index, number in enumerate(blocks) if number not in available)
    return next(gaps, len(blocks))


def _runs_of(block: int) -> tuple[int, int]:
    """Return the first and the last run of a block."""
    return SIZE * block + 1, SIZE * (block + 1)


_COLUMNS: Final = (number_blocks.c.layout, number_blocks.c.content, number_blocks.c.checksum)


def _blocks(connection: Connection, numbers: Iterable[int]) -> Iterator[Block]:
    for block in numbers:
        row = connection.execute(select(*_COLUMNS).where(number_blocks.c.block == block)).one()
        yield Block(layout=row.layout, content=row.content, checksum=row.checksum)


def _is_damaged(connection: Connection, block: int, requested: Sequence[Number]) -> bool:
    """Return whether a block exists in the form of these numbers and is damaged."""
    same = (number_blocks.c.block == block) & (number_blocks.c.form == form_of(requested))
    try:
        row = connection.execute(select(*_COLUMNS).where(same)).first()
    except TypeError:  # a blob became text
        return True
    if row is None:
        return False
    stored = Block(layout=row.layout, content=row.content, checksum=row.checksum)
    return not intact(stored, requested)


def _rows(
    connection: Connection, requested: Sequence[Number], first: int, last: int
) -> Sequence[Any]:
    """Return one row per run; samples are read by key, whatever else was measured."""
    query = (
        select(*_RUN_COLUMNS, *map(_of_each, requested))
        .where(runs.c.id.between(first, last), runs.c.outcome.in_(GOOD))
        .order_by(runs.c.id)
    )
    return connection.execute(query).all()


def _of_each(number: Number) -> ScalarSelect[Any]:
    """Return one number of the run in the outer query's row."""
    metric, direction, part = number
    same = (samples.c.run == runs.c.id) & (samples.c.metric == metric)
    same &= (samples.c.direction == direction) & (samples.c.part == part)
    return select(samples.c.value).where(same).correlate(runs).scalar_subquery()


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
