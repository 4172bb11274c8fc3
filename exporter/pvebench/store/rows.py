"""From rows to values, shared by everything that reads runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.workload import Direction
from pvebench.store.records import StoredRun
from pvebench.store.tables import samples


def with_samples(connection: Connection, query: Select[Any]) -> list[StoredRun]:
    """Return the runs that a query of `runs` finds, each with its samples."""
    rows = connection.execute(query).all()
    grouped = _samples_of(connection, [row.id for row in rows])
    return [stored_run(row, grouped.get(row.id, [])) for row in rows]


def _samples_of(connection: Connection, numbers: list[int]) -> dict[int, list[Sample]]:
    grouped: dict[int, list[Sample]] = {}
    for start in range(0, len(numbers), 500):  # SQLite limits the number of variables
        chunk = numbers[start : start + 500]
        for row in connection.execute(select(samples).where(samples.c.run.in_(chunk))):
            direction = Direction(row.direction) if row.direction else None
            sample = Sample(row.metric, direction, row.value, Unit(row.unit), row.part)
            grouped.setdefault(row.run, []).append(sample)
    return grouped


def stored_run(row: Row[Any], found: Iterable[Sample] = ()) -> StoredRun:
    """Return a row of `runs` as a value."""
    return StoredRun(
        number=row.id,
        uid=row.uid,
        case_key=row.case_key,
        node=row.node,
        scenario=row.scenario,
        workload=row.workload,
        definition=json.loads(row.definition),
        cycle=row.cycle,
        environment=row.environment,
        started=datetime.fromtimestamp(row.started, UTC),
        finished=datetime.fromtimestamp(row.finished, UTC),
        outcome=Outcome(row.outcome),
        reason=row.reason,
        samples=tuple(found),
    )
