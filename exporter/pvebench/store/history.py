"""Histories of many cases in few queries, for pages and the API."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, ScalarSelect, TableValuedAlias, func, select

from pvebench.model.run import Outcome
from pvebench.model.workload import Case, Direction
from pvebench.store.engine import reading
from pvebench.store.records import GOOD, Point, StoredRun
from pvebench.store.rows import stored_run, with_samples
from pvebench.store.tables import cycles, runs, samples

HOST_ROW_AGE: Final = timedelta(days=7)
"""An older run of the host is no longer what a guest's run is compared with."""


class History:
    """Reads what happened. `Store.history` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def changed(self, after: int) -> tuple[int, set[str]]:
        """Return the newest run's number, and the keys of the cases with runs after `after`."""
        query = select(runs.c.case_key, func.max(runs.c.id)).where(runs.c.id > after)
        with reading(self._engine) as connection:
            # The grouping walks a whole index; mostly there is nothing new to group.
            if int(connection.scalar(select(func.max(runs.c.id))) or 0) <= after:
                return after, set()
            newest = {row[0]: row[1] for row in connection.execute(query.group_by(runs.c.case_key))}
        return max(newest.values()), set(newest)

    def newest(self, case_keys: Collection[str], *, good: bool = False) -> dict[str, StoredRun]:
        """Return the newest run of each case, without samples; with `good` the newest good one."""
        keys = _keys(case_keys)
        query = select(runs).join_from(keys, runs, runs.c.id.in_(_of_case(keys, 1, good=good)))
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        return {row.case_key: stored_run(row) for row in rows}

    def trend(
        self, case_keys: Collection[str], metric: str, *, limit: int
    ) -> dict[str, list[Point]]:
        """Return one metric of the last `limit` good runs of each case, oldest first.

        Cases without such a number are absent.
        """
        keys = _keys(case_keys)
        columns = (runs.c.case_key, runs.c.id, runs.c.finished, runs.c.environment)
        mine = (samples.c.run == runs.c.id) & (samples.c.metric == metric) & (samples.c.part == "")
        query = (
            select(*columns, samples.c.direction, samples.c.value)
            .join_from(keys, runs, runs.c.id.in_(_of_case(keys, limit, good=True)))
            .join(samples, mine)
            .where(samples.c.direction != "")
        )
        found: dict[str, list[Point]] = {}
        with reading(self._engine) as connection:
            for key, number, finished, environment, direction, value in connection.execute(query):
                at = datetime.fromtimestamp(finished, UTC)
                point = Point(number, at, environment, Direction(direction), value)
                found.setdefault(key, []).append(point)
        for points in found.values():
            points.sort(key=lambda point: (point.finished, point.run, point.direction))
        return found

    def failures(self, *, after: int = 0, upto: int | None = None, limit: int) -> list[StoredRun]:
        """Return the newest runs above `after` and up to `upto` that are not ok, without samples.

        By number, not by time: that walks backwards and stops early, or reads only what is new.
        """
        query = select(runs).where(runs.c.id > after, runs.c.outcome != Outcome.OK)
        if upto is not None:
            query = query.where(runs.c.id <= upto)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(runs.c.id.desc()).limit(limit)).all()
        return [stored_run(row) for row in rows]

    def host_rates(self, case: Case, now: datetime) -> dict[Direction, float]:
        """Return what the host itself reached with the case's workload on its storage.

        From the newest good run within the week before `now`; I/O per second, or bytes per
        second where the tool gives no other rate. Empty if there is none.
        """
        scenario = case.scenario
        first = f"{scenario.node}/{scenario.host_slug}/{case.workload.slug}/"
        week_ago = (now - HOST_ROW_AGE).timestamp()
        query = (
            select(runs)
            .where(runs.c.case_key.between(first, f"{first}~"), runs.c.outcome.in_(GOOD))
            .where(runs.c.finished > week_ago)
            .order_by(runs.c.finished.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            found = with_samples(connection, query)
        rates: dict[Direction, float] = {}
        for metric in ("bandwidth", "iops"):
            for run in found:
                rates |= {
                    one.direction: one.value
                    for one in run.samples
                    if one.metric == metric and one.direction is not None
                }
        return rates

    def of_pack(self, pack: str | None, *, limit: int) -> list[StoredRun]:
        """Return the newest runs first, with samples; of one pack's cycles, or of all."""
        query = select(runs).order_by(runs.c.finished.desc(), runs.c.id.desc()).limit(limit)
        if pack is not None:
            query = query.join(cycles, cycles.c.uid == runs.c.cycle).where(cycles.c.pack == pack)
        with self._engine.connect() as connection:
            return with_samples(connection, query)

    def runs(
        self, *, limit: int, outcome: Outcome | None = None, case_key: str | None = None
    ) -> list[StoredRun]:
        """Return the newest runs first, with samples; only of an outcome or a case if given."""
        query = select(runs).order_by(runs.c.finished.desc(), runs.c.id.desc()).limit(limit)
        if outcome is not None:
            query = query.where(runs.c.outcome == outcome)
        if case_key is not None:
            query = query.where(runs.c.case_key == case_key)
        with reading(self._engine) as connection:
            return with_samples(connection, query)


def _keys(case_keys: Collection[str]) -> TableValuedAlias:
    # One JSON text: SQLite limits the number of variables, and a thousand cases exceed it.
    return func.json_each(json.dumps(sorted(case_keys))).table_valued("value", name="wanted")


def _of_case(keys: TableValuedAlias, limit: int, *, good: bool) -> ScalarSelect[Any]:
    """Return the ids of the newest runs of the case in the outer query's row.

    One walk down the index for each case, whatever the length of its history.
    """
    inner = runs.alias("inner")
    query = select(inner.c.id).where(inner.c.case_key == keys.c.value)
    if good:
        query = query.where(inner.c.outcome.in_(GOOD))
    newest = query.order_by(inner.c.finished.desc(), inner.c.id.desc()).limit(limit)
    return newest.correlate(keys).scalar_subquery()
