"""The numbers of all good runs, for judging: in blocks where a history is long, else as rows.

A block stands for the runs `SIZE * block + 1` to `SIZE * (block + 1)`. The database itself removes
it when one of them changes or goes (triggers of layout 0008); then they are read as rows until they
are packed again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from sqlalchemy import Connection, Engine, ScalarSelect, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.store.blocks import SIZE, Block, form_of, packed, unpacked
from pvebench.store.case_numbers import CaseNumbers, by_case
from pvebench.store.engine import reading, writing
from pvebench.store.records import GOOD, Number
from pvebench.store.tables import number_blocks, runs, samples

AT_ONCE: Final = 10
"""Blocks that are in memory on their way to their cases: some hundred runs of each of many."""
_RUN: Final = (runs.c.id, runs.c.case_key, runs.c.finished, runs.c.environment, runs.c.outcome)


class Numbers:
    """Reads and packs them. `Store.numbers` is one; every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(
        self, wanted: Sequence[Number], *, after: int = 0, until: int | None = None
    ) -> Iterator[list[CaseNumbers]]:
        """Yield the good runs with numbers above `after`, in pieces, each of later runs.

        Args:
            wanted: which of their numbers; runs that have none of them are absent.
            until: the last run; None: the newest.
        """
        with reading(self._engine) as connection:
            last = _newest(connection) if until is None else until
            there = _packed_as(connection, form_of(wanted))
            first = after + 1
            while first <= last and (found := _next(connection, first)) is not None:
                block = (found - 1) // SIZE
                first = max(first, SIZE * block + 1)
                many = _following(block, there, last) if first == SIZE * block + 1 else 0
                end = min(SIZE * (block + max(1, many)), last)
                if many:
                    yield unpacked(_blocks(connection, range(block, block + many)), wanted)
                else:
                    yield by_case(_rows(connection, wanted, first, end), wanted)
                first = end + 1

    def pack(self, wanted: Sequence[Number], *, most: int | None = None) -> int:
        """Pack the runs of blocks that are full and not packed yet; return how many.

        Each by itself, and without keeping others from writing while its runs are read.

        Args:
            most: blocks, the oldest first; None: all.
        """
        with reading(self._engine) as connection:
            missing = [*islice(_not_packed(connection, form_of(wanted)), most)]
        return sum(self._pack(block, wanted) for block in missing)

    def _pack(self, block: int, wanted: Sequence[Number]) -> int:
        # A run that changes meanwhile takes this row away, and with it what was read too early.
        mark = f"being packed: {uuid.uuid4()}"
        empty = {"form": mark, "layout": b"", "content": b"", "checksum": 0}
        row = upsert(number_blocks).values(block=block, **empty)
        with writing(self._engine) as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["block"], set_=empty))
        with reading(self._engine) as connection:
            rows = _rows(connection, wanted, SIZE * block + 1, SIZE * (block + 1))
            made = packed(by_case(rows, wanted), wanted)
        change = update(number_blocks).where(
            number_blocks.c.block == block, number_blocks.c.form == mark
        )
        with writing(self._engine) as connection:
            done = connection.execute(
                change.values(
                    form=form_of(wanted),
                    layout=made.layout,
                    content=made.content,
                    checksum=made.checksum,
                )
            )
        return done.rowcount


def _newest(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(runs.c.id))) or 0)


def _next(connection: Connection, first: int) -> int | None:
    """Return the first run from a number on: numbers may have gaps of any size."""
    found: int | None = connection.scalar(select(func.min(runs.c.id)).where(runs.c.id >= first))
    return found


def _not_packed(connection: Connection, form: str) -> Iterator[int]:
    """Yield the blocks that are full and have runs, but are not packed in this form."""
    there, full = _packed_as(connection, form), _newest(connection) // SIZE
    block = 0
    while block < full:
        if block not in there:
            found = _next(connection, SIZE * block + 1)
            block = full if found is None else (found - 1) // SIZE
        if block < full and block not in there:
            yield block
        block += 1


def _packed_as(connection: Connection, form: str) -> set[int]:
    query = select(number_blocks.c.block).where(number_blocks.c.form == form)
    return set(connection.scalars(query))


def _following(block: int, there: set[int], last: int) -> int:
    """Return how many blocks from this one on can be read at once, none of them beyond a run."""
    follow = range(block, min(block + AT_ONCE, last // SIZE))
    return next((place for place, one in enumerate(follow) if one not in there), len(follow))


def _blocks(connection: Connection, which: range) -> Iterator[Block]:
    columns = number_blocks.c.layout, number_blocks.c.content, number_blocks.c.checksum
    for block in which:
        row = connection.execute(select(*columns).where(number_blocks.c.block == block)).one()
        yield Block(layout=row.layout, content=row.content, checksum=row.checksum)


def _rows(connection: Connection, wanted: Sequence[Number], first: int, last: int) -> Sequence[Any]:
    """Return a row a run, whatever else was measured: samples are in the order of their key."""
    query = (
        select(*_RUN, *map(_of_each, wanted))
        .where(runs.c.id.between(first, last), runs.c.outcome.in_(GOOD))
        .order_by(runs.c.id)
    )
    return connection.execute(query).all()


def _of_each(number: Number) -> ScalarSelect[Any]:
    """Return one number of the run in the outer query's row."""
    metric, direction, part = number
    own = (samples.c.run == runs.c.id) & (samples.c.metric == metric)
    own &= (samples.c.direction == direction) & (samples.c.part == part)
    return select(samples.c.value).where(own).correlate(runs).scalar_subquery()
