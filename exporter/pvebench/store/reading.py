"""Reading stored results."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine, func, select

from pvebench.model.run import Outcome
from pvebench.model.workload import Direction
from pvebench.store.engine import reading
from pvebench.store.records import GOOD, CaseRecord, StoredRun, Totals
from pvebench.store.rows import with_samples
from pvebench.store.tables import cycles, environments, evidence, runs, totals
from pvebench.store.writing import month

_DIRECTIONS: Final = frozenset(map(str, Direction))


class StoredResults:
    """What can be asked of the results; every method may raise StoreError.

    Args:
        engine: an open database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def environments(self, node: str | None = None) -> list[Mapping[str, Any]]:
        """Return the environments as mappings of the table's columns, oldest first."""
        query = select(environments).order_by(environments.c.first_seen)
        if node is not None:
            query = query.where(environments.c.node == node)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
        return [{**row, "facts": json.loads(row["facts"])} for row in rows]

    def recent(
        self, *, limit: int = 100, case_key: str | None = None, not_ok: bool = False
    ) -> list[StoredRun]:
        """Return the newest runs first, with their samples; with `not_ok` only those."""
        query = select(runs).order_by(runs.c.finished.desc(), runs.c.id.desc()).limit(limit)
        if case_key is not None:
            query = query.where(runs.c.case_key == case_key)
        if not_ok:
            query = query.where(runs.c.outcome != Outcome.OK)
        with reading(self._engine) as connection:
            return with_samples(connection, query)

    def run(self, number: int) -> StoredRun | None:
        """Return one run by its number, with its samples."""
        with reading(self._engine) as connection:
            found = with_samples(connection, select(runs).where(runs.c.id == number))
        return found[0] if found else None

    def evidence(self, number: int) -> dict[str, str]:
        """Return the raw evidence of a run: name -> text."""
        query = select(evidence.c.name, evidence.c.content).where(evidence.c.run == number)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(evidence.c.name)).all()
        return {str(row.name): zlib.decompress(row.content).decode("utf-8") for row in rows}

    def case(self, case_key: str) -> CaseRecord | None:
        """Return what is known of one case; None if it was never tried."""
        mine = runs.c.case_key == case_key
        newest = (
            select(runs).where(mine).order_by(runs.c.finished.desc(), runs.c.id.desc()).limit(1)
        )
        good = newest.where(runs.c.outcome.in_(GOOD))
        counts = select(runs.c.outcome, func.count()).where(mine).group_by(runs.c.outcome)
        with reading(self._engine) as connection:
            last = with_samples(connection, newest)
            if not last:
                return None
            best = with_samples(connection, good)
            outcomes = {Outcome(row[0]): int(row[1]) for row in connection.execute(counts)}
            since = best[0].number if best else 0
            bad = select(func.count()).select_from(runs).where(mine, runs.c.id > since)
            failures = int(connection.scalar(bad) or 0)
        return CaseRecord(
            last=last[0], good=best[0] if best else None, outcomes=outcomes,
            failures_in_row=failures,
        )  # fmt: skip

    def written_bytes(self, storage: str, at: datetime, *, node: str | None = None) -> int:
        """Return what was written to a storage in the calendar month (UTC) of `at`.

        Args:
            node: from this node only; None: from all nodes together.
        """
        query = select(func.sum(totals.c.value)).where(
            totals.c.storage == storage, totals.c.name == month(at)
        )
        if node is not None:
            query = query.where(totals.c.node == node)
        with reading(self._engine) as connection:
            return int(connection.scalar(query) or 0)

    def present_environment(self, node: str) -> tuple[str, datetime | None]:
        """Return the digest of the newest good run's environment on a node, and since when.

        The moment is None if no other environment came before it; the digest is empty if there
        is no good run.
        """
        good = (runs.c.node == node) & runs.c.outcome.in_(GOOD)
        newest = select(runs.c.environment).where(good).order_by(runs.c.id.desc()).limit(1)
        with reading(self._engine) as connection:
            digest = connection.scalar(newest)
            other = connection.scalar(
                select(runs.c.id)
                .where(good, runs.c.environment != digest)
                .order_by(runs.c.id.desc())
                .limit(1)
            )
            if digest is None or other is None:
                return digest or "", None
            first = select(func.min(runs.c.started)).where(good, runs.c.id > other)
            since = float(connection.scalar(first) or 0.0)
        return str(digest), datetime.fromtimestamp(since, UTC)

    def good_runs_since(self, node: str, moment: datetime) -> dict[str, int]:
        """Return case key -> number of good runs on a node that started at `moment` or later."""
        query = (
            select(runs.c.case_key, func.count())
            .where(
                runs.c.node == node, runs.c.outcome.in_(GOOD),
                runs.c.started >= moment.timestamp(), runs.c.finished >= moment.timestamp(),
            )
            .group_by(runs.c.case_key)
        )  # fmt: skip
        with reading(self._engine) as connection:
            return {str(row[0]): int(row[1]) for row in connection.execute(query)}

    def case_keys(self) -> list[str]:
        """Return the keys of all cases that were ever tried."""
        with reading(self._engine) as connection:
            return list(connection.scalars(select(runs.c.case_key).distinct()))

    def totals(self) -> Totals:
        """Return the counters over the whole history."""
        ended = (
            select(cycles.c.node, cycles.c.tier, func.count())
            .where(cycles.c.finished.is_not(None))
            .group_by(cycles.c.node, cycles.c.tier)
        )
        with reading(self._engine) as connection:
            amounts = connection.execute(select(totals)).all()
            counts = connection.execute(ended).all()
            number = connection.scalar(select(func.count()).select_from(runs))
        moved = {(row.node, row.storage, row.name): row.value for row in amounts}
        return Totals(
            bytes={key: value for key, value in moved.items() if key[2] in _DIRECTIONS},
            cycles={(row[0], row[1]): int(row[2]) for row in counts},
            runs=int(number or 0),
        )
