"""Rows that a finished run leaves beside itself: its environment, and what it adds to totals."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model.environment import Environment
from pvebench.model.run import Run
from pvebench.store.tables import environments, totals


def note_environment(
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


def add_totals(connection: Connection, run: Run) -> None:
    """Count what the workload moved, and what was written in all, for wear book-keeping."""
    amounts = {
        str(sample.direction): sample.value
        for sample in run.samples
        if sample.metric == "bytes" and sample.direction is not None
    }
    if run.written_bytes:
        amounts[month(run.finished)] = float(run.written_bytes)
    for name, value in amounts.items():
        row = upsert(totals).values(
            node=run.case.scenario.node, storage=run.case.scenario.storage, name=name, value=value
        )
        connection.execute(
            row.on_conflict_do_update(
                index_elements=["node", "storage", "name"],
                set_={"value": totals.c.value + row.excluded.value},
            )
        )
