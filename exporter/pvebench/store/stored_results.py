"""Queries of the results database."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Engine, ScalarSelect, Select, TableValuedAlias, func, or_, select

from pvebench.model.durability import Durability
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run import Outcome
from pvebench.model.run_metrics import DISK_WEAR, WARM
from pvebench.model.storage_use import NodeStorage, Wear
from pvebench.store.changes import Changes, Decisions
from pvebench.store.engine import reading
from pvebench.store.journal import StorageIdentities, StoredJournal
from pvebench.store.outbox import Outbox
from pvebench.store.records import (
    DIRECTIONS,
    CaseNumbers,
    CaseRecord,
    Point,
    StoredRun,
    Totals,
    case_numbers,
    definitions_of,
    keys_table,
    with_samples,
)
from pvebench.store.tables import (
    GOOD,
    NOT_OK,
    NUMBER_COLUMNS,
    case_outcomes,
    case_sums,
    cases,
    cycles,
    environment_periods,
    environments,
    evidence,
    facts,
    runs,
    samples,
    totals,
)
from pvebench.store.writing import COPIED, RUN_BYTES, RUNS, WRITTEN, hour

DURABILITY: Final = "durability/"
"""Begin of the names of the facts with measured durability."""
REPLACE_BATCH: Final = 200
WEAR_RUNS: Final = 2000
"""Newest runs that are searched for the wear of drives, never a long history."""
_NUMBERS_OF_CASE: Final = (
    f"SELECT run, finished, environment, ok, {', '.join(NUMBER_COLUMNS)} FROM run_numbers "  # noqa: S608 # constants
    f"WHERE case_id = ? AND run <= ? AND coalesce({', '.join(NUMBER_COLUMNS)}) IS NOT NULL "
    "ORDER BY run"
)
Undirected = dict[tuple[str, str], float]


class StoredResults:
    """Queries of the results; every method may raise StoreError.

    Args:
        engine: an open database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.journal = StoredJournal(engine)
        self.decisions = Decisions(engine)
        self.changes = Changes(engine)
        self.identities = StorageIdentities(engine)
        self.outbox = Outbox(engine)

    def newest_run(self) -> int:
        """Return the number of the newest run; 0: there is none."""
        with reading(self._engine) as connection:
            return int(connection.scalar(select(func.max(runs.c.id))) or 0)

    def runs(
        self,
        *,
        limit: int = 100,
        case_key: str | None = None,
        outcome: Outcome | None = None,
        not_ok: bool = False,
        pack: str | None = None,
    ) -> list[StoredRun]:
        """Return the selected runs with samples, newest first.

        Args:
            pack: name of the pack in whose cycles they ran.
        """
        query = select(runs).order_by(runs.c.finished.desc(), runs.c.id.desc()).limit(limit)
        if case_key is not None:
            query = query.where(runs.c.case_key == case_key)
        if outcome is not None:
            query = query.where(runs.c.outcome == outcome)
        if not_ok or outcome not in {None, Outcome.OK}:
            query = query.where(NOT_OK)
        with reading(self._engine) as connection:
            return with_samples(connection, _of_pack(query, pack))

    def run(self, number: int) -> StoredRun | None:
        """Return one run by its number, with its samples."""
        with reading(self._engine) as connection:
            matches = with_samples(connection, select(runs).where(runs.c.id == number))
        return matches[0] if matches else None

    def batches(self, pack: str | None) -> Iterator[list[StoredRun]]:
        """Yield the runs of one pack, or all, in the order of their numbers, with samples."""
        query = _of_pack(select(runs), pack).order_by(runs.c.id).limit(REPLACE_BATCH)
        after = 0
        while True:
            with reading(self._engine) as connection:
                batch = with_samples(connection, query.where(runs.c.id > after))
            if not batch:
                return
            yield batch
            after = batch[-1].number

    def newest_good_run(
        self, place: tuple[str, str, str], conditions: str, *, before: StoredRun, age: timedelta
    ) -> StoredRun | None:
        """Return the newest good run of a place that was stored before `before`.

        Args:
            place, conditions: of its definition, the latter as `device_conditions`.
            age: how much older than `before` it may be.
        """
        node, scenario, workload = place
        keys_of_place = select(cases.c.key).where(
            cases.c.node == node, cases.c.scenario == scenario, cases.c.workload == workload
        )
        with reading(self._engine) as connection:
            definitions = definitions_of(connection, connection.scalars(keys_of_place).all())
            keys = [
                key
                for key, definition in definitions.items()
                if definition.device_conditions == conditions
            ]
            query = (
                select(runs)
                .where(runs.c.case_key.in_(keys), runs.c.outcome.in_(GOOD))
                .where(runs.c.id < before.number)
                .where(runs.c.finished > (before.finished - age).timestamp())
                .order_by(runs.c.finished.desc())
                .limit(1)
            )
            matches = with_samples(connection, query)
        return matches[0] if matches else None

    def evidence(self, number: int) -> dict[str, str]:
        """Return the raw evidence of a run: name -> text."""
        query = select(evidence.c.name, evidence.c.content).where(evidence.c.run == number)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(evidence.c.name)).all()
            return {str(row.name): zlib.decompress(row.content).decode("utf-8") for row in rows}

    def cases(self) -> dict[str, CaseRecord]:
        """Return case key -> state of the case, for all cases with a run."""
        with reading(self._engine) as connection:
            counts: dict[str, dict[Outcome, int]] = {}
            for key, outcome, count in connection.execute(select(case_outcomes)):
                counts.setdefault(key, {})[Outcome(outcome)] = count
            sums: dict[str, dict[tuple[str, str, str], float]] = {}
            for key, *sample, value in connection.execute(select(case_sums)):
                sums.setdefault(key, {})[tuple(sample)] = value
            numbers = select(cases.c.last_run).union(select(cases.c.good_run))
            runs_of_cases = with_samples(connection, select(runs).where(runs.c.id.in_(numbers)))
            newest = {run.number: run for run in runs_of_cases}
            return {
                row.key: CaseRecord(
                    last=newest[row.last_run],
                    good=None if row.good_run is None else newest[row.good_run],
                    outcomes=counts.get(row.key, {}),
                    failures_in_row=row.failures_in_row,
                    first_started=datetime.fromtimestamp(row.first_started, UTC),
                    sums=sums.get(row.key, {}),
                )
                for row in connection.execute(select(cases))
            }

    def numbers_by_case(self, *, until: int) -> Iterator[CaseNumbers]:
        """Yield the good runs of each case up to run `until`, oldest first.

        Runs that have none of `NUMBERS` are absent.
        """
        with reading(self._engine) as connection:
            for case, key in connection.execute(select(cases.c.id, cases.c.key)).all():
                rows = connection.exec_driver_sql(_NUMBERS_OF_CASE, (case, until)).all()
                if rows:
                    yield case_numbers(key, rows)

    def trend(
        self, case_keys: Collection[str], metric: str, *, limit: int
    ) -> dict[str, list[Point]]:
        """Return one metric of the last `limit` good runs of each case, oldest first.

        Cases without this metric are absent.
        """
        keys = keys_table(case_keys)
        columns = (runs.c.case_key, runs.c.outcome, runs.c.id, runs.c.finished, runs.c.environment)
        same = (samples.c.run == runs.c.id) & (samples.c.metric == metric) & (samples.c.part == "")
        other_clause = samples.alias()
        warm = (
            select(other_clause.c.run)
            .where(other_clause.c.run == runs.c.id, other_clause.c.metric == WARM.name)
            .exists()
        )
        query = (
            select(*columns, warm, samples.c.direction, samples.c.value)
            .join_from(keys, runs, runs.c.id.in_(_newest_good(keys, limit)))
            .join(samples, same)
            .where(samples.c.direction != "")
        )
        trends: dict[str, list[Point]] = {}
        with reading(self._engine) as connection:
            # Fetch all rows at once: one by one, a hundred thousand take a second longer.
            for key, outcome, *run, is_warm, direction, value in connection.execute(query).all():
                number, finished, environment = run
                at = number, datetime.fromtimestamp(finished, UTC), environment
                state = outcome == Outcome.OK, bool(is_warm)
                trends.setdefault(key, []).append(Point(*at, DIRECTIONS[direction], value, *state))
        for points in trends.values():
            points.sort(key=lambda point: (point.finished, point.run, point.direction))
        return trends

    def oldest_good_runs(self) -> dict[str, float]:
        """Return case key -> end of its oldest good run, UNIX seconds."""
        query = (
            select(runs.c.case_key, func.min(runs.c.finished))
            .where(runs.c.outcome.in_(GOOD))
            .group_by(runs.c.case_key)
        )
        with reading(self._engine) as connection:
            return {key: float(end) for key, end in connection.execute(query)}

    def undirected(
        self, case_key: str, metrics: Collection[str], *, at: float, until: float, most: int
    ) -> tuple[list[Undirected], list[Undirected]]:
        """Return numbers without a direction, (metric, part) -> value, of runs before and after.

        Args:
            at: UNIX seconds; the newest `most` good runs before it are read, and the newest `most`
                since then.
            until: latest end of these runs, UNIX seconds.
        """
        good = select(runs.c.id).where(runs.c.case_key == case_key, runs.c.outcome.in_(GOOD))
        good = good.order_by(runs.c.finished.desc()).limit(most)
        sides: list[list[Undirected]] = []
        with reading(self._engine) as connection:
            for side in (
                good.where(runs.c.finished < at),
                good.where(runs.c.finished.between(at, until)),
            ):
                query = select(samples.c.run, samples.c.metric, samples.c.part, samples.c.value)
                query = query.where(
                    samples.c.run.in_(side),
                    samples.c.metric.in_(metrics),
                    samples.c.direction == "",
                )
                by_run: dict[int, Undirected] = {}
                for run, metric, part, value in connection.execute(query):
                    by_run.setdefault(run, {})[metric, part] = value
                sides.append([*by_run.values()])
        before, after = sides
        return before, after

    def environments(self, node: str | None = None) -> list[Mapping[str, Any]]:
        """Return the environments as mappings of the table's columns, oldest first."""
        query = select(environments).order_by(environments.c.first_seen)
        if node is not None:
            query = query.where(environments.c.node == node)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
            return [{**row, "facts": json.loads(row["facts"])} for row in rows]

    def periods(self) -> list[EnvironmentPeriod]:
        """Return the environment periods of all nodes, in the order of their start."""
        query = (
            select(environment_periods, environments.c.slug, environments.c.facts)
            .join(environments, environments.c.digest == environment_periods.c.environment)
            .order_by(environment_periods.c.id)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            return [
                EnvironmentPeriod(
                    node=row.node,
                    environment=row.environment,
                    slug=row.slug,
                    facts=json.loads(row.facts),
                    started=datetime.fromtimestamp(row.started, UTC),
                    finished=datetime.fromtimestamp(row.finished, UTC),
                )
                for row in rows
            ]

    def good_runs_since(self, node: str, moment: datetime) -> dict[str, int]:
        """Return case key -> number of good runs on a node that started at `moment` or later."""
        at = moment.timestamp()
        query = (
            select(runs.c.case_key, func.count())
            .where(runs.c.finished >= at, runs.c.started >= at)
            .where(runs.c.node == node, runs.c.outcome.in_(GOOD))
            .group_by(runs.c.case_key)
        )
        with reading(self._engine) as connection:
            return {str(row[0]): int(row[1]) for row in connection.execute(query)}

    def durability(self) -> dict[tuple[str, str, str], Durability]:
        """Return (node, storage, configuration) -> its newest measured durability."""
        query = select(facts.c.value).where(facts.c.name.startswith(DURABILITY))
        with reading(self._engine) as connection:
            durabilities = [Durability.from_json(text) for text in connection.scalars(query)]
        return {
            (durability.node, durability.storage, durability.configuration): durability
            for durability in durabilities
        }

    def written_bytes(self, storage: str, at: datetime, *, node: str | None = None) -> int:
        """Return the bytes written to a storage in the 24 hours before `at`, to the hour.

        What operations copied there counts, too.

        Args:
            node: from this node only; None: from all nodes together.
        """
        day = at - timedelta(hours=24)
        within = (totals.c.name.between(hour(c, day), hour(c, at)) for c in (WRITTEN, COPIED))
        query = select(func.sum(totals.c.value)).where(totals.c.storage == storage, or_(*within))
        if node is not None:
            query = query.where(totals.c.node == node)
        with reading(self._engine) as connection:
            return int(connection.scalar(query) or 0)

    def writes(self) -> tuple[dict[NodeStorage, float], dict[NodeStorage, Wear]]:
        """Return the mean bytes that the newest successful runs wrote, and the wear of drives."""
        counters = (totals.c.name.startswith(f"{counter} ") for counter in (RUN_BYTES, RUNS))
        sums: Counter[tuple[str, str, str]] = Counter()
        first = select(func.max(runs.c.id)).scalar_subquery() - WEAR_RUNS
        query = (
            select(runs.c.node, runs.c.scenario, samples.c.value)
            .join(samples, samples.c.run == runs.c.id)
            .where(samples.c.metric == DISK_WEAR.name, runs.c.id > first)
            .order_by(runs.c.id)
        )
        with reading(self._engine) as connection:
            for row in connection.execute(select(totals).where(or_(*counters))):
                sums[row.node, row.storage, row.name.partition(" ")[0]] += row.value
            wear = connection.execute(query).all()
        means = {
            (node, storage): sums[node, storage, RUN_BYTES] / successful
            for (node, storage, counter), successful in sums.items()
            if counter == RUNS
        }
        # A scenario's slug begins with its storage; of several runs, the newest counts.
        return means, {(r.node, r.scenario.partition(".")[0]): Wear(r.value) for r in wear}

    def totals(self) -> Totals:
        """Return the counters over the whole history."""
        ended = (
            select(cycles.c.node, cycles.c.tier, func.count())
            .where(cycles.c.finished.is_not(None))
            .group_by(cycles.c.node, cycles.c.tier)
        )
        with reading(self._engine) as connection:
            amounts = connection.execute(select(totals).where(totals.c.name.in_(DIRECTIONS))).all()
            counts = connection.execute(ended).all()
            number = connection.scalar(select(func.count()).select_from(runs))
        moved = {(row.node, row.storage, row.name): row.value for row in amounts}
        return Totals(
            bytes=moved,
            cycles={(row[0], row[1]): int(row[2]) for row in counts},
            runs=int(number or 0),
        )


def _of_pack(query: Select[Any], pack: str | None) -> Select[Any]:
    """Return a query of `runs` for those of one pack; None: of all."""
    if pack is None:
        return query
    return query.join(cycles, cycles.c.uid == runs.c.cycle).where(cycles.c.pack == pack)


def _newest_good(keys: TableValuedAlias, limit: int) -> ScalarSelect[Any]:
    """Return the ids of the newest good runs of the case in the outer query's row.

    One index scan per case, whatever the length of its history.
    """
    inner = runs.alias("inner")
    query = select(inner.c.id).where(inner.c.case_key == keys.c.value, inner.c.outcome.in_(GOOD))
    newest = query.order_by(inner.c.finished.desc(), inner.c.id.desc()).limit(limit)
    return newest.correlate(keys).scalar_subquery()
