"""Writing a whole history at once, such as a simulated year: many rows a statement."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection, Engine, func, insert, select

from pvebench.model.run import Run
from pvebench.store.engine import writing
from pvebench.store.rows import run_row, sample_row
from pvebench.store.tables import runs, samples
from pvebench.store.writing import add_totals, note_environment

BATCH: Final = 500


def add_history(engine: Engine, history: Iterable[Run]) -> int:
    """Store runs that no store has seen yet, all or none; return their number.

    Their evidence is left out: what is written at once was not measured.
    """
    count = 0
    remaining = iter(history)
    with writing(engine) as connection:
        number = int(connection.scalar(select(func.max(runs.c.id))) or 0)
        while batch := list(itertools.islice(remaining, BATCH)):
            _add_batch(connection, batch, number)
            number += len(batch)
            count += len(batch)
    return count


def _add_batch(connection: Connection, batch: Sequence[Run], number: int) -> None:
    """Store some runs under the numbers after `number`."""
    first = {run.environment.digest: run for run in reversed(batch)}
    last = {run.environment.digest: run for run in batch}
    for digest, run in last.items():
        note_environment(connection, run.environment, first[digest].started, run.finished)
    numbered = list(enumerate(batch, start=number + 1))
    connection.execute(insert(runs), [{"id": at, **run_row(run)} for at, run in numbered])
    rows = [sample_row(at, sample) for at, run in numbered for sample in run.samples]
    if rows:
        connection.execute(insert(samples), rows)
    for run in batch:
        add_totals(connection, run)
