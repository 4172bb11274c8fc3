"""The numbers of all good runs, for judging: in blocks where a history is long, else as rows.

A block stands for the runs `SIZE * block + 1` to `SIZE * (block + 1)`. The database itself removes
it when one of them changes or goes (triggers of layout 0008); then they are read as rows until they
are packed again. So are those of a damaged block, which the next packing replaces.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Engine, ScalarSelect, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.store.blocks import (
    SIZE,
    Block,
    CaseNumbers,
    by_case,
    form_of,
    intact,
    packed,
    unpacked,
)
from pvebench.store.engine import reading, writing
from pvebench.store.records import GOOD, Number
from pvebench.store.tables import number_blocks, runs, samples

log = structlog.get_logger()

AT_ONCE: Final = 10
"""Blocks that are in memory on their way to their cases: some hundred runs of each of many."""
_RUN: Final = (runs.c.id, runs.c.case_key, runs.c.finished, runs.c.environment, runs.c.outcome)


class Numbers:
    """Reads and packs them. `Store.numbers` is one; every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Found by a reader, dropped by whoever packs: reading writes nothing.
        self._damaged: set[int] = set()

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
                    which = range(block, block + many)
                    yield from self._packed(connection, which, wanted)
                else:
                    yield by_case(_rows(connection, wanted, first, end), wanted)
                first = end + 1

    def _packed(
        self, connection: Connection, which: range, wanted: Sequence[Number]
    ) -> Iterator[list[CaseNumbers]]:
        """Yield the numbers of blocks, of a damaged one from its rows."""
        try:
            pieces = [unpacked(_blocks(connection, which), wanted)]
        except ValueError:
            yield from (self._one(connection, block, wanted) for block in which)
        else:
            yield from pieces

    def _one(
        self, connection: Connection, block: int, wanted: Sequence[Number]
    ) -> list[CaseNumbers]:
        try:
            return unpacked(_blocks(connection, [block]), wanted)
        except ValueError:
            self._note(block)
            return by_case(_rows(connection, wanted, *_runs_of(block)), wanted)

    def _note(self, block: int) -> None:
        """Log a damaged block once, and have the next packing replace it."""
        if block in self._damaged:
            return
        self._damaged.add(block)
        first, last = _runs_of(block)
        log.warning(
            "a derived number block is damaged; its runs are read from their rows",
            block=block,
            first_run=first,
            last_run=last,
            likely_cause="the disk under the database failed, or another program wrote to it",
            next_step="no action needed for this block; check the disk",
        )

    def damaged(self, wanted: Sequence[Number]) -> list[int]:
        """Return which blocks are damaged; one at a time is in memory."""
        with reading(self._engine) as connection:
            there = sorted(_packed_as(connection, form_of(wanted)))
            return [block for block in there if _is_damaged(connection, block, wanted)]

    def look_through(self, wanted: Sequence[Number]) -> None:
        """Log damaged blocks, and have the next packing replace them."""
        for block in self.damaged(wanted):
            self._note(block)

    def pack(self, wanted: Sequence[Number], *, most: int | None = None) -> int:
        """Pack the runs of blocks that are full and not packed yet; return how many.

        Each by itself, and without keeping others from writing while its runs are read. Blocks
        that were found damaged are dropped first.

        Args:
            most: blocks, the oldest first; None: all.
        """
        for block in sorted(self._damaged):
            self._drop(block, wanted)
        with reading(self._engine) as connection:
            missing = [*islice(_not_packed(connection, form_of(wanted)), most)]
        return sum(self._pack(block, wanted) for block in missing)

    def _drop(self, block: int, wanted: Sequence[Number]) -> None:
        # It is looked at again: another process may have replaced it.
        with writing(self._engine) as connection:
            if _is_damaged(connection, block, wanted):
                connection.execute(delete(number_blocks).where(number_blocks.c.block == block))
        self._damaged.discard(block)

    def _pack(self, block: int, wanted: Sequence[Number]) -> int:
        # A run that changes meanwhile takes this row away, and with it what was read too early.
        mark = f"being packed: {uuid.uuid4()}"
        empty = {"form": mark, "layout": b"", "content": b"", "checksum": 0}
        row = upsert(number_blocks).values(block=block, **empty)
        with writing(self._engine) as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["block"], set_=empty))
        with reading(self._engine) as connection:
            rows = _rows(connection, wanted, *_runs_of(block))
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


def _runs_of(block: int) -> tuple[int, int]:
    """Return the first and the last run that a block stands for."""
    return SIZE * block + 1, SIZE * (block + 1)


_COLUMNS: Final = (number_blocks.c.layout, number_blocks.c.content, number_blocks.c.checksum)


def _blocks(connection: Connection, which: Iterable[int]) -> Iterator[Block]:
    for block in which:
        row = connection.execute(select(*_COLUMNS).where(number_blocks.c.block == block)).one()
        yield Block(layout=row.layout, content=row.content, checksum=row.checksum)


def _is_damaged(connection: Connection, block: int, wanted: Sequence[Number]) -> bool:
    """Return whether a block is there in the form of these numbers, and damaged."""
    one = (number_blocks.c.block == block) & (number_blocks.c.form == form_of(wanted))
    try:
        found = connection.execute(select(*_COLUMNS).where(one)).first()
    except TypeError:  # a blob that became a text
        return True
    if found is None:
        return False
    block_found = Block(layout=found.layout, content=found.content, checksum=found.checksum)
    return not intact(block_found, wanted)


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
