"""Letting go of what is too old, so that a database that is never closed stays a size that fits."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import Engine, delete, func, select

from pvebench.store.engine import writing
from pvebench.store.records import GOOD
from pvebench.store.tables import evidence, journal, runs, samples

JOURNAL_SECONDS: Final = 30 * 86400.0
"""How long a change that was undone stays in the journal, for those who look for a cause."""


def prune(
    engine: Engine, *, now: datetime, evidence_seconds: float, runs_seconds: float
) -> tuple[int, int]:
    """Remove raw evidence and runs that are too old; return how many runs lost each.

    Each case keeps its newest run and its newest good one, with their evidence, however old:
    they are what is known of it.
    """
    at = now.timestamp()
    newest = select(func.max(runs.c.id)).group_by(runs.c.case_key)
    kept = newest.union(newest.where(runs.c.outcome.in_(GOOD)))
    gone = select(runs.c.id).where(runs.c.finished < at - runs_seconds, runs.c.id.not_in(kept))
    bare = select(runs.c.id).where(runs.c.finished < at - evidence_seconds, runs.c.id.not_in(kept))
    with writing(engine) as connection:
        without = select(func.count(evidence.c.run.distinct())).where(evidence.c.run.in_(bare))
        stripped = int(connection.scalar(without) or 0)
        connection.execute(delete(evidence).where(evidence.c.run.in_(bare)))
        connection.execute(delete(samples).where(samples.c.run.in_(gone)))
        removed = connection.execute(delete(runs).where(runs.c.id.in_(gone))).rowcount
        old = journal.c.closed < at - JOURNAL_SECONDS
        connection.execute(delete(journal).where(old))
    return stripped, int(removed)
