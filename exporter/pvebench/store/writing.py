"""Writing finished runs, one or a whole history, with what each leaves beside itself."""

from __future__ import annotations

import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, Engine, func, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model.environment import Environment
from pvebench.model.run import Run
from pvebench.store.cases import Bookkeeping
from pvebench.store.engine import writing
from pvebench.store.rows import run_row, sample_row
from pvebench.store.tables import environments, evidence, runs, samples, totals

BATCH: Final = 500


def add_run(engine: Engine, run: Run) -> int:
    """Store a finished run with all that belongs to it, unless it is there; return its number."""
    with writing(engine) as connection:
        known = connection.scalar(select(runs.c.id).where(runs.c.uid == run.uid))
        if known is not None:
            return int(known)
        _note_environment(connection, run.environment, run.started, run.finished)
        number = _insert_run(connection, run)
        _add_totals(connection, [run])
        books = Bookkeeping(connection)
        books.note(run, number)
        books.write()
    return number


def add_history(engine: Engine, history: Iterable[Run]) -> int:
    """Store runs that no store has seen yet, all or none; return their number.

    Their evidence is left out: what is written at once was not measured.
    """
    count = 0
    remaining = iter(history)
    with writing(engine) as connection:
        number = int(connection.scalar(select(func.max(runs.c.id))) or 0)
        books = Bookkeeping(connection)
        while batch := list(itertools.islice(remaining, BATCH)):
            _add_batch(connection, books, batch, number)
            number += len(batch)
            count += len(batch)
        books.write()
    return count


def _add_batch(
    connection: Connection, books: Bookkeeping, batch: Sequence[Run], number: int
) -> None:
    """Store some runs under the numbers after `number`."""
    first = {run.environment.digest: run for run in reversed(batch)}
    last = {run.environment.digest: run for run in batch}
    for digest, run in last.items():
        _note_environment(connection, run.environment, first[digest].started, run.finished)
    numbered = list(enumerate(batch, start=number + 1))
    connection.execute(insert(runs), [{"id": at, **run_row(run)} for at, run in numbered])
    rows = [sample_row(at, sample) for at, run in numbered for sample in run.samples]
    if rows:
        connection.execute(insert(samples), rows)
    _add_totals(connection, batch)
    for at, run in numbered:
        books.note(run, at)


def _insert_run(connection: Connection, run: Run) -> int:
    row = insert(runs).values(**run_row(run))
    number = int(connection.execute(row.returning(runs.c.id)).scalar_one())
    if run.samples:
        connection.execute(insert(samples), [sample_row(number, one) for one in run.samples])
    if run.evidence:
        pieces = [
            {"run": number, "name": name, "content": zlib.compress(text.encode("utf-8"))}
            for name, text in run.evidence.items()
        ]
        connection.execute(insert(evidence), pieces)
    return number


def _note_environment(
    connection: Connection, environment: Environment, started: datetime, finished: datetime
) -> None:
    """Record that an environment was there."""
    row = upsert(environments).values(
        digest=environment.digest,
        node=environment.node,
        slug=environment.slug,
        facts=json.dumps(dict(environment.facts), sort_keys=True),
        first_seen=started.timestamp(),
        last_seen=finished.timestamp(),
    )
    connection.execute(
        row.on_conflict_do_update(
            index_elements=["digest"], set_={"last_seen": row.excluded.last_seen}
        )
    )


def month(at: datetime) -> str:
    """Return the name under which what a month wrote is counted."""
    return f"written {at.astimezone(UTC):%Y-%m}"


def _add_totals(connection: Connection, ended: Sequence[Run]) -> None:
    """Count what the workloads moved, and what was written in all, for wear book-keeping."""
    amounts: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for run in ended:
        where = run.case.scenario.node, run.case.scenario.storage
        for sample in run.samples:
            if sample.metric == "bytes" and sample.direction is not None:
                amounts[*where, str(sample.direction)] += sample.value
        if run.written_bytes:
            amounts[*where, month(run.finished)] += run.written_bytes
    if not amounts:
        return
    row = upsert(totals)
    connection.execute(
        row.on_conflict_do_update(
            index_elements=["node", "storage", "name"],
            set_={"value": totals.c.value + row.excluded.value},
        ),
        [
            {"node": node, "storage": storage, "name": name, "value": value}
            for (node, storage, name), value in amounts.items()
        ],
    )
