"""Results database: opening, reading and writing."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Engine,
    ScalarSelect,
    TableValuedAlias,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.errors import StoreMixed
from pvebench.model.durability import Durability
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run import Outcome, Run
from pvebench.store.backups import Backup, back_up
from pvebench.store.case_numbers import Numbers
from pvebench.store.changes import Changes, Decisions
from pvebench.store.engine import check_there, damaged, faults, open_engine, reading, writing
from pvebench.store.fleet_log import FleetLog
from pvebench.store.imported import ImportCount, ImportedRun, add_imported
from pvebench.store.journal import StorageIdentities, StoredJournal
from pvebench.store.outbox import Outbox
from pvebench.store.records import (
    DIRECTIONS,
    GOOD,
    CaseRecord,
    Point,
    StoredRun,
    Totals,
    keys_table,
    with_samples,
)
from pvebench.store.replacement import RunReplacement
from pvebench.store.retention import Removal, prune, removable
from pvebench.store.tables import (
    NOT_OK,
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
from pvebench.store.writing import (
    WRITTEN,
    Writes,
    add_history,
    add_run,
    bytes_per_run,
    hour,
    newest_wear,
)

# --- Reading stored results.

_DURABILITY = "durability/"
"""Begin of the names of these facts."""
_SIMULATED: Final = "simulated"
_MEASURED: Final = "measured"
_IMPORTED: Final = "imported"
_USES: Final = {
    _SIMULATED: "use --driver simulated",
    _MEASURED: "use a driver that measures",
    _IMPORTED: "only import and read there",
}
"""Kind of results in a database -> its use."""
Undirected = dict[tuple[str, str], float]


class StoredResults:
    """Queries of the results; every method may raise StoreError.

    Args:
        engine: an open database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        if pack is not None:
            query = query.join(cycles, cycles.c.uid == runs.c.cycle).where(cycles.c.pack == pack)
        with reading(self._engine) as connection:
            return with_samples(connection, query)

    def run(self, number: int) -> StoredRun | None:
        """Return one run by its number, with its samples."""
        with reading(self._engine) as connection:
            matches = with_samples(connection, select(runs).where(runs.c.id == number))
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
            rows = connection.execute(select(cases)).all()
            counts: dict[str, dict[Outcome, int]] = {}
            for key, outcome, count in connection.execute(select(case_outcomes)):
                counts.setdefault(key, {})[Outcome(outcome)] = count
            sums: dict[str, dict[tuple[str, str, str], float]] = {}
            for key, *sample, value in connection.execute(select(case_sums)):
                sums.setdefault(key, {})[tuple(sample)] = value
            newest = _by_number(connection, select(cases.c.last_run))
            newest |= _by_number(connection, select(cases.c.good_run))
            return {
                row.key: CaseRecord(
                    last=newest[row.last_run],
                    good=None if row.good_run is None else newest[row.good_run],
                    outcomes=counts.get(row.key, {}),
                    failures_in_row=row.failures_in_row,
                    first_started=datetime.fromtimestamp(row.first_started, UTC),
                    sums=sums.get(row.key, {}),
                )
                for row in rows
            }

    def trend(
        self, case_keys: Collection[str], metric: str, *, limit: int
    ) -> dict[str, list[Point]]:
        """Return one metric of the last `limit` good runs of each case, oldest first.

        Cases without this metric are absent.
        """
        keys = keys_table(case_keys)
        columns = (runs.c.case_key, runs.c.outcome, runs.c.id, runs.c.finished, runs.c.environment)
        same = (samples.c.run == runs.c.id) & (samples.c.metric == metric) & (samples.c.part == "")
        query = (
            select(*columns, samples.c.direction, samples.c.value)
            .join_from(keys, runs, runs.c.id.in_(_newest_good(keys, limit)))
            .join(samples, same)
            .where(samples.c.direction != "")
        )
        trends: dict[str, list[Point]] = {}
        with reading(self._engine) as connection:
            # Fetch all rows at once: one by one, a hundred thousand take a second longer.
            for key, outcome, number, finished, environment, direction, value in connection.execute(
                query
            ).all():
                at = datetime.fromtimestamp(finished, UTC)
                ok = outcome == Outcome.OK
                point = Point(number, at, environment, DIRECTIONS[direction], value, ok)
                trends.setdefault(key, []).append(point)
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
        query = select(facts.c.value).where(facts.c.name.startswith(_DURABILITY))
        with reading(self._engine) as connection:
            found = [Durability.from_json(text) for text in connection.scalars(query)]
        return {(one.node, one.storage, one.configuration): one for one in found}

    def written_bytes(self, storage: str, at: datetime, *, node: str | None = None) -> int:
        """Return the bytes written to a storage in the 24 hours before `at`, to the hour.

        Args:
            node: from this node only; None: from all nodes together.
        """
        first, last = hour(WRITTEN, at - timedelta(hours=24)), hour(WRITTEN, at)
        query = select(func.sum(totals.c.value)).where(
            totals.c.storage == storage, totals.c.name >= first, totals.c.name <= last
        )
        if node is not None:
            query = query.where(totals.c.node == node)
        with reading(self._engine) as connection:
            return int(connection.scalar(query) or 0)

    def writes(self) -> Writes:
        """Return the mean bytes that the newest runs wrote, and the wear of drives."""
        return bytes_per_run(self._engine), newest_wear(self._engine)

    def totals(self, *, runs_known: int | None = None) -> Totals:
        """Return the counters over the whole history.

        Args:
            runs_known: number of runs if already known; None: count them.
        """
        ended = (
            select(cycles.c.node, cycles.c.tier, func.count())
            .where(cycles.c.finished.is_not(None))
            .group_by(cycles.c.node, cycles.c.tier)
        )
        with reading(self._engine) as connection:
            amounts = connection.execute(select(totals).where(totals.c.name.in_(DIRECTIONS))).all()
            counts = connection.execute(ended).all()
            number = runs_known
            if number is None:
                number = connection.scalar(select(func.count()).select_from(runs))
        moved = {(row.node, row.storage, row.name): row.value for row in amounts}
        return Totals(
            bytes=moved,
            cycles={(row[0], row[1]): int(row[2]) for row in counts},
            runs=int(number or 0),
        )


def _by_number(connection: Connection, numbers: Any) -> dict[int, StoredRun]:
    """Return number -> run, for the numbers that a query returns."""
    matches = with_samples(connection, select(runs).where(runs.c.id.in_(numbers)))
    return {run.number: run for run in matches}


def _newest_good(keys: TableValuedAlias, limit: int) -> ScalarSelect[Any]:
    """Return the ids of the newest good runs of the case in the outer query's row.

    One index scan per case, whatever the length of its history.
    """
    inner = runs.alias("inner")
    query = select(inner.c.id).where(inner.c.case_key == keys.c.value, inner.c.outcome.in_(GOOD))
    newest = query.order_by(inner.c.finished.desc(), inner.c.id.desc()).limit(limit)
    return newest.correlate(keys).scalar_subquery()


class Store(StoredResults):
    """Results database. Safe to use from several threads.

    Args:
        path: the database file.
        simulated: kind of results that it may hold, set by the first opening. None accepts both
            kinds, for reading.

    Raises:
        StoreTooNew, StoreError, StoreMixed.
    """

    def __init__(self, path: Path, *, simulated: bool | None = None) -> None:
        self.path = path
        super().__init__(open_engine(path))
        self.journal = StoredJournal(self._engine)
        self.decisions = Decisions(self._engine)
        self.changes = Changes(self._engine)
        self.identities = StorageIdentities(self._engine)
        self.outbox = Outbox(self._engine)
        self.replacement = RunReplacement(self._engine)
        self.numbers = Numbers(self._engine)
        self.fleet = FleetLog(self._engine)
        if simulated is not None:
            self._claim(_SIMULATED if simulated else _MEASURED)

    @property
    def simulated(self) -> bool:
        """Whether its results come from the simulation."""
        with reading(self._engine) as connection:
            kind = connection.scalar(select(facts.c.value).where(facts.c.name == "kind"))
        return kind == _SIMULATED

    def check(self, *, full: bool = False) -> None:
        """Check that the database exists and is sound.

        Args:
            full: check the indexes too, which takes several times as long.

        Raises:
            StoreLost: it is absent or damaged. StoreError: it cannot be read now.
        """
        check_there(self._engine)
        if messages := faults(self._engine, full=full):
            raise damaged(self._engine, "; ".join(messages))

    def check_there(self) -> None:
        """Raise StoreLost if the database's file was removed or replaced."""
        check_there(self._engine)

    def back_up(self, now: datetime, *, keep: int, max_bytes: int) -> Backup:
        """Back up the database; see `backups.back_up`. Raises StoreError."""
        return back_up(self.path, now, keep=keep, max_bytes=max_bytes)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _claim(self, kind: str) -> None:
        try:
            with writing(self._engine) as connection:
                self._claim_in(connection, kind)
        except StoreMixed:
            self.close()
            raise

    def _claim_in(self, connection: Connection, kind: str) -> None:
        row = upsert(facts).values(name="kind", value=kind).on_conflict_do_nothing()
        connection.execute(row)
        stored = str(connection.scalar(select(facts.c.value).where(facts.c.name == "kind")))
        if stored != kind:
            other = "" if kind == _IMPORTED else f", or {_USES[stored]}"
            raise StoreMixed(
                f"{self.path} has {stored} results and accepts no {kind} ones",
                next_step=f"use another state directory with --state{other}",
            )

    def begin_cycle(self, uid: str, *, node: str, pack: str, tier: str, planned: int) -> None:
        """Record the start of a cycle."""
        row = insert(cycles).values(
            uid=uid,
            node=node,
            pack=pack,
            tier=tier,
            planned=planned,
            started=datetime.now(UTC).timestamp(),
        )
        with writing(self._engine) as connection:
            connection.execute(row)

    def record_durability(self, result: Durability) -> None:
        """Store a measured durability instead of an earlier one. Raises StoreError."""
        name = f"{_DURABILITY}{result.node}/{result.storage}/{result.configuration}"
        row = upsert(facts).values(name=name, value=result.to_json())
        row = row.on_conflict_do_update(index_elements=["name"], set_={"value": row.excluded.value})
        with writing(self._engine) as connection:
            connection.execute(row)

    def end_cycle(self, uid: str) -> None:
        """Record the end of a complete cycle."""
        now = datetime.now(UTC).timestamp()
        with writing(self._engine) as connection:
            connection.execute(update(cycles).where(cycles.c.uid == uid).values(finished=now))

    def add_run(self, run: Run) -> int:
        """Store a finished run with its samples and evidence; return its number.

        Durable on return. Adding the same run again changes nothing.

        Raises:
            StoreError: the database cannot be written now; a retry may succeed.
        """
        return add_run(self._engine, run)

    def add_history(self, history: Iterable[Run]) -> int:
        """Store many new runs in one transaction; return their number."""
        return add_history(self._engine, history)

    def add_imported(self, imported: Iterable[ImportedRun], *, simulated: bool) -> ImportCount:
        """Store runs of other machines that are not stored yet, all or none.

        Args:
            imported: in the order in which they were stored there.

        Raises:
            StoreMixed: the database has own results. StoreError: a node has runs of another
                machine.
        """
        with writing(self._engine) as connection:
            self._claim_in(connection, _SIMULATED if simulated else _IMPORTED)
            return add_imported(connection, imported)

    def removable(self, now: datetime, *, evidence_seconds: float, runs_seconds: float) -> Removal:
        """Return the removal that `prune` would make now."""
        return removable(
            self._engine, now=now, evidence_seconds=evidence_seconds, runs_seconds=runs_seconds
        )

    def prune(
        self,
        now: datetime,
        *,
        evidence_seconds: float,
        runs_seconds: float,
        certain: bool = False,
        keep_unsent: bool = True,
    ) -> tuple[Removal, bool]:
        """Remove older evidence and runs; return the removal, and whether it was made.

        Args:
            certain: remove them even if they are more at once than aging can explain.
            keep_unsent: keep runs that the hub of the fleet has not acknowledged.
        """
        return prune(
            self._engine,
            now=now,
            evidence_seconds=evidence_seconds,
            runs_seconds=runs_seconds,
            certain=certain,
            keep_unsent=keep_unsent,
        )
