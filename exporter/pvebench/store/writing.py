"""Writing runs, with the state derived from them."""

from __future__ import annotations

import itertools
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine, delete, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model import figures
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run
from pvebench.model.write_cost import Wear
from pvebench.store.case_numbers import add_numbers
from pvebench.store.engine import reading, writing
from pvebench.store.records import SAMPLE_COLUMNS, StoredRun, Sums, run_row, sample_row, summed
from pvebench.store.tables import (
    GOOD,
    case_outcomes,
    case_sums,
    cases,
    environment_periods,
    environments,
    evidence,
    runs,
    samples,
    totals,
)

# --- State derived from the runs, so that readers need not go through all of them.
#
# A case's row has its definition, its newest run, its newest good run and the number of runs by
# outcome; a period's row has the start and end of an environment period. Both are updated in the
# transaction that stores a run.

Newest = tuple[float, int]
"""End of a run, UNIX seconds, and its number."""


@dataclass(slots=True)
class _Case:
    """A row of `cases` with those of `case_outcomes`, before they are written.

    Attributes:
        more: amounts to add to `case_sums`.
    """

    run: StoredRun
    first_started: float
    last: Newest
    good: Newest | None = None
    failures_in_row: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    more: Sums = field(default_factory=dict)

    def add(self, run: StoredRun) -> None:
        # The run stored last is the newest, whatever its time: after a run that a wrong clock dated
        # in the future, later runs must count before that day.
        newest = run.finished.timestamp(), run.number
        self.run, self.last = run, newest
        self.first_started = min(self.first_started, run.started.timestamp())
        self.outcomes[run.outcome] += 1
        if run.outcome.good:
            self.good, self.failures_in_row = newest, 0
            self.more = summed(self.more, run.samples)
        else:
            self.failures_in_row += 1


@dataclass(slots=True)
class _PeriodRow:
    """A node's newest environment period. `number`: ID of its row."""

    number: int
    environment: str
    finished: float


class Bookkeeping:
    """Collects runs in the order in which they are stored; `write` stores the derived state."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cases: dict[str, _Case] = {}
        self._periods: dict[str, _PeriodRow] = {}

    def note(self, run: StoredRun) -> None:
        """Include a run that was stored under its number."""
        if run.case_key not in self._cases:
            self._cases[run.case_key] = self._known_case(run)
        self._cases[run.case_key].add(run)
        self._note_period(run)

    def _known_case(self, run: StoredRun) -> _Case:
        row = self._connection.execute(select(cases).where(cases.c.key == run.case_key)).first()
        if row is None:
            return _Case(run, run.started.timestamp(), (float("-inf"), 0))
        query = select(case_outcomes.c.outcome, case_outcomes.c.count)
        counts = self._connection.execute(query.where(case_outcomes.c.case_key == run.case_key))
        return _Case(
            run,
            row.first_started,
            (row.last_finished, row.last_run),
            None if row.good_run is None else (row.good_finished, row.good_run),
            row.failures_in_row,
            Counter({Outcome(outcome): count for outcome, count in counts}),
        )

    def _note_period(self, run: StoredRun) -> None:
        """Extend the node's current environment period, or start one.

        If a VM did not start, half of its environment is unknown, so only good runs count.
        """
        if not run.outcome.good:
            return
        node, digest = run.node, run.environment
        current = self._periods.get(node) or self._known_period(node)
        finished = run.finished.timestamp()
        if current is not None and current.environment == digest:
            current.finished = max(current.finished, finished)
            self._periods[node] = current
            return
        if current is not None:
            self._write_period(current)
        row = insert(environment_periods).values(
            node=node, environment=digest, started=run.started.timestamp(), finished=finished
        )
        number = int(self._connection.execute(row.returning(environment_periods.c.id)).scalar_one())
        self._periods[node] = _PeriodRow(number, digest, finished)

    def _known_period(self, node: str) -> _PeriodRow | None:
        query = select(
            environment_periods.c.id,
            environment_periods.c.environment,
            environment_periods.c.finished,
        )
        newest = (
            query.where(environment_periods.c.node == node)
            .order_by(environment_periods.c.id.desc())
            .limit(1)
        )
        row = self._connection.execute(newest).first()
        return None if row is None else _PeriodRow(row.id, row.environment, row.finished)

    def write(self) -> None:
        """Store the state of the cases and periods."""
        for key, case in self._cases.items():
            self._write_case(key, case)
        for period in self._periods.values():
            self._write_period(period)

    def _write_period(self, period: _PeriodRow) -> None:
        row = update(environment_periods).where(environment_periods.c.id == period.number)
        self._connection.execute(row.values(finished=period.finished))

    def _write_case(self, key: str, case: _Case) -> None:
        definition = case.run.definition
        good = case.good or (None, None)
        values = {
            "node": definition.node,
            "scenario": definition.scenario,
            "workload": definition.workload,
            "definition": json.dumps(definition.as_data(), sort_keys=True),
            "first_started": case.first_started,
            "last_finished": case.last[0],
            "last_run": case.last[1],
            "good_finished": good[0],
            "good_run": good[1],
            "failures_in_row": case.failures_in_row,
        }
        row = upsert(cases).values(key=key, **values)
        self._connection.execute(row.on_conflict_do_update(index_elements=["key"], set_=values))
        for outcome, count in case.outcomes.items():
            counted = upsert(case_outcomes).values(case_key=key, outcome=str(outcome), count=count)
            self._connection.execute(
                counted.on_conflict_do_update(
                    index_elements=["case_key", "outcome"], set_={"count": count}
                )
            )
        self._add_sums(key, case.more)

    def _add_sums(self, key: str, more: Sums) -> None:
        for (metric, direction, part), value in more.items():
            row = upsert(case_sums).values(
                case_key=key, metric=metric, direction=direction, part=part, value=value
            )
            self._connection.execute(
                row.on_conflict_do_update(
                    index_elements=["case_key", "metric", "direction", "part"],
                    set_={"value": case_sums.c.value + row.excluded.value},
                )
            )


def reclassify(connection: Connection, number: int, outcome: Outcome, reason: str) -> None:
    """Change the outcome or reason of a stored run, and update the newest good run of its case.

    Environment periods stay: the environment existed, however good the run's numbers are. So do
    the counts of outcomes and the sums: they are published as counters, which never decrease.
    The higher revision lets a trigger log the correction for the hub of a fleet.
    """
    row = connection.execute(select(runs).where(runs.c.id == number)).one()
    changed = update(runs).where(runs.c.id == number)
    corrected = {"outcome": str(outcome), "reason": reason, "revision": runs.c.revision + 1}
    connection.execute(changed.values(corrected))
    if row.outcome != outcome:
        renew_good_run(connection, row.case_key)


def renew_good_run(connection: Connection, case_key: str) -> None:
    """Find the newest good run of a case again."""
    of_case = runs.c.case_key == case_key
    newest = select(runs.c.id, runs.c.finished).where(of_case, runs.c.outcome.in_(GOOD))
    good = connection.execute(newest.order_by(runs.c.id.desc()).limit(1)).first()
    since = select(func.count()).where(of_case, runs.c.id > (good.id if good else 0))
    connection.execute(
        update(cases)
        .where(cases.c.key == case_key)
        .values(
            good_run=good.id if good else None,
            good_finished=good.finished if good else None,
            failures_in_row=since.scalar_subquery(),
        )
    )


# --- Writing one finished run or a whole history.

BATCH: Final = 500


def add_run(engine: Engine, run: Run) -> StoredRun:
    """Store a finished run with everything that belongs to it, once; return it as stored."""
    with writing(engine) as connection:
        known = connection.scalar(select(runs.c.id).where(runs.c.uid == run.uid))
        if known is not None:
            return StoredRun.of(run, int(known))
        _note_environment(connection, run.environment, run.started, run.finished)
        stored = _insert_run(connection, run)
        _add_totals(connection, [run])
        books = Bookkeeping(connection)
        books.note(stored)
        books.write()
        add_numbers(connection, stored.number)
    return stored


def add_history(engine: Engine, history: Iterable[Run]) -> int:
    """Store new runs, all or none; return their number.

    Their evidence is not stored: a history that is written at once was not measured.
    """
    count = 0
    remaining = iter(history)
    definitions: dict[str, Definition] = {}
    with writing(engine) as connection:
        first = newest_number(connection) + 1
        books = Bookkeeping(connection)
        while batch := list(itertools.islice(remaining, BATCH)):
            definitions |= {
                run.case.key: Definition.of(run.case)
                for run in batch
                if run.case.key not in definitions
            }
            note_environments(connection, [(run.environment, run) for run in batch])
            insert_runs(
                connection,
                books,
                [
                    StoredRun.of(run, at, definitions[run.case.key])
                    for at, run in enumerate(batch, start=first + count)
                ],
            )
            _add_totals(connection, batch)
            count += len(batch)
        books.write()
        add_numbers(connection, first)
    return count


def newest_number(connection: Connection) -> int:
    """Return the number of the run that was stored last; 0: there is none."""
    return int(connection.scalar(select(func.max(runs.c.id))) or 0)


def note_environments(
    connection: Connection, seen: Sequence[tuple[Environment, Run | StoredRun]]
) -> None:
    """Record the environments of some runs, oldest first."""
    first = {environment.digest: run for environment, run in reversed(seen)}
    last = {environment.digest: (environment, run) for environment, run in seen}
    for digest, (environment, run) in last.items():
        _note_environment(connection, environment, first[digest].started, run.finished)


def insert_runs(connection: Connection, books: Bookkeeping, batch: Sequence[StoredRun]) -> None:
    """Store some runs under their numbers; their environments and cycles are stored."""
    connection.execute(insert(runs), [{"id": run.number, **run_row(run)} for run in batch])
    rows = [
        tuple(sample_row(run.number, sample).values()) for run in batch for sample in run.samples
    ]
    if rows:
        # Positions instead of names: SQLAlchemy takes four times as long as SQLite for names.
        connection.exec_driver_sql(_INSERT_SAMPLES, rows)
    for run in batch:
        books.note(run)


_INSERT_SAMPLES: Final = (
    f"INSERT INTO {samples.name} ({', '.join(SAMPLE_COLUMNS)}) "  # noqa: S608 # constants
    f"VALUES ({', '.join('?' * len(SAMPLE_COLUMNS))})"
)


def _insert_run(connection: Connection, run: Run) -> StoredRun:
    stored = StoredRun.of(run, 0)
    row = insert(runs).values(**run_row(stored))
    number = int(connection.execute(row.returning(runs.c.id)).scalar_one())
    if run.samples:
        connection.execute(insert(samples), [sample_row(number, sample) for sample in run.samples])
    if run.evidence:
        pieces = [
            {"run": number, "name": name, "content": zlib.compress(text.encode("utf-8"))}
            for name, text in run.evidence.items()
        ]
        connection.execute(insert(evidence), pieces)
    return replace(stored, number=number)


def _note_environment(
    connection: Connection, environment: Environment, started: datetime, finished: datetime
) -> None:
    """Record that an environment was seen."""
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


WRITTEN: Final = "written"
COPIED: Final = "copied"
RUNS: Final = "successful"
RUN_BYTES: Final = "successful_bytes"
"""Counters of the bytes written and copied by all runs, the successful runs and the bytes that they
wrote, in each hour of the newest KEPT_HOURS."""
KEPT_HOURS: Final = 48


def hour(counter: str, at: datetime) -> str:
    """Return the name of a counter for the hour (UTC) of a time; names sort by time."""
    return f"{counter} {at.astimezone(UTC):%Y-%m-%dT%H}"


Writes = tuple[dict[tuple[str, str], float], dict[tuple[str, str], Wear]]
"""(node, storage) -> mean bytes that its newest runs wrote; and -> wear of drives, if known."""
WEAR_RUNS: Final = 2000
"""Newest runs that `newest_wear` reads, so that it never reads a long history."""


def newest_wear(engine: Engine) -> dict[tuple[str, str], Wear]:
    """Return (node, storage) -> wear of its drives in the newest run that has it."""
    first = select(func.max(runs.c.id)).scalar_subquery() - WEAR_RUNS
    query = (
        select(runs.c.node, runs.c.scenario, samples.c.value)
        .join(samples, samples.c.run == runs.c.id)
        .where(samples.c.metric == figures.DISK_WEAR.name, runs.c.id > first)
        .order_by(runs.c.id)
    )
    with reading(engine) as connection:
        rows = connection.execute(query).all()
    # A scenario's slug begins with its storage.
    return {(row.node, row.scenario.partition(".")[0]): Wear(row.value) for row in rows}


def bytes_per_run(engine: Engine) -> dict[tuple[str, str], float]:
    """Return (node, storage) -> mean bytes that its newest successful runs wrote."""
    query = select(totals).where(
        or_(*(totals.c.name.startswith(f"{c} ") for c in (RUN_BYTES, RUNS)))
    )
    sums: Counter[tuple[str, str, str]] = Counter()
    with reading(engine) as connection:
        for row in connection.execute(query):
            sums[row.node, row.storage, row.name.partition(" ")[0]] += row.value
    return {
        (node, storage): sums[node, storage, RUN_BYTES] / successful
        for (node, storage, counter), successful in sums.items()
        if counter == RUNS
    }


def moved_bytes(run: Run) -> dict[tuple[str, str, str], float]:
    """Return (node, storage, direction) -> bytes that the workload moved."""
    where = run.case.scenario.node, run.case.scenario.storage
    return {
        (*where, str(sample.direction)): sample.value
        for sample in figures.BYTES.of(run.samples)
        if sample.direction is not None
    }


def _add_totals(connection: Connection, ended: Sequence[Run]) -> None:
    """Add the bytes that the workloads moved, and all bytes written, to estimate wear."""
    amounts: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for run in ended:
        where = run.case.scenario.node, run.case.scenario.storage
        for place, size in moved_bytes(run).items():
            amounts[place] += size
        if run.outcome is not Outcome.SKIPPED:
            amounts[*where, hour(WRITTEN, run.finished)] += run.written_bytes
            for storage, size in run.copies.items():
                amounts[where[0], storage, hour(COPIED, run.finished)] += size
        if run.outcome.good:
            amounts[*where, hour(RUN_BYTES, run.finished)] += run.written_bytes
            amounts[*where, hour(RUNS, run.finished)] += 1
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
    oldest = max(run.finished for run in ended) - timedelta(hours=KEPT_HOURS)
    for counter in (WRITTEN, COPIED, RUNS, RUN_BYTES):
        expired = totals.c.name.between(f"{counter} ", hour(counter, oldest))
        connection.execute(delete(totals).where(expired))
