"""Writing runs, with the state derived from them."""

from __future__ import annotations

import itertools
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.model import run_metrics
from pvebench.model.definition import Definition
from pvebench.model.environment import Environment
from pvebench.model.run import Outcome, Run, Sample
from pvebench.store.engine import put_rows, writing
from pvebench.store.records import StoredRun, run_row, sample_row, summed
from pvebench.store.tables import (
    GOOD,
    case_outcomes,
    case_sums,
    cases,
    environment_periods,
    environments,
    evidence,
    numbers_statement,
    runs,
    samples,
    totals,
)

# --- State derived from the runs, so that readers need not go through all of them.
#
# A case's row has its definition, its newest run, its newest good run and the number of runs by
# outcome; a period's row has the start and end of an environment period. Both are updated in the
# transaction that stores a run.


def note_runs(connection: Connection, batch: Sequence[StoredRun]) -> None:
    """Continue the state of cases and periods with runs, which were stored in this order."""
    _note_cases(connection, batch)
    counts = Counter[tuple[str, ...]]((run.case_key, str(run.outcome)) for run in batch)
    _add_amounts(connection, case_outcomes, counts)
    sums: Counter[tuple[str, ...]] = Counter()
    for run in batch:
        if run.outcome.good:
            own = summed({}, run.samples)
            sums.update({(run.case_key, *name): value for name, value in own.items()})
    _add_amounts(connection, case_sums, sums)
    _extend_periods(connection, batch)


def _add_amounts(
    connection: Connection, table: Table, amounts: Mapping[tuple[str, ...], float]
) -> None:
    """Add to the amounts in the last column of a table; the other columns are its key."""
    *key, amount = (column.name for column in table.c)
    rows = [dict(zip([*key, amount], [*at, more], strict=True)) for at, more in amounts.items()]
    if rows:
        row = upsert(table)
        new = {amount: table.c[amount] + row.excluded[amount]}
        connection.execute(row.on_conflict_do_update(index_elements=key, set_=new), rows)


def _note_cases(connection: Connection, batch: Sequence[StoredRun]) -> None:
    row = upsert(cases)
    new, old = row.excluded, cases.c
    # The run stored last is the newest, whatever its time: after a run that a wrong clock dated in
    # the future, later runs must count before that day.
    continued = {
        "definition": new.definition,
        "first_started": func.min(old.first_started, new.first_started),
        "last_finished": new.last_finished,
        "last_run": new.last_run,
        "good_finished": func.coalesce(new.good_finished, old.good_finished),
        "good_run": func.coalesce(new.good_run, old.good_run),
        "failures_in_row": new.failures_in_row * (old.failures_in_row + 1),  # new: 0 or 1
    }
    definitions = {run.case_key: run.definition for run in batch}
    texts = {key: json.dumps(of.as_data(), sort_keys=True) for key, of in definitions.items()}
    connection.execute(
        row.on_conflict_do_update(index_elements=["key"], set_=continued),
        [_case_row(run, texts[run.case_key]) for run in batch],
    )


def _case_row(run: StoredRun, definition: str) -> dict[str, Any]:
    """Return the row of a case after its first run."""
    end, good = run.finished.timestamp(), run.outcome.good
    return {
        "key": run.case_key,
        "node": run.node,
        "scenario": run.scenario,
        "workload": run.workload,
        "definition": definition,
        "first_started": run.started.timestamp(),
        "last_finished": end,
        "last_run": run.number,
        "good_finished": end if good else None,
        "good_run": run.number if good else None,
        "failures_in_row": int(not good),
    }


def _extend_periods(connection: Connection, batch: Sequence[StoredRun]) -> None:
    """Extend the newest environment period of each node, or start others.

    If a VM did not start, half of its environment is unknown, so only good runs count.
    """
    periods = environment_periods.c
    newest = select(func.max(periods.id)).group_by(periods.node)
    query = select(periods.node, periods.environment, periods.id).where(periods.id.in_(newest))
    current = {row.node: (row.environment, row.id) for row in connection.execute(query)}
    ends: dict[int, float] = {}
    for run in batch:
        if not run.outcome.good:
            continue
        end = run.finished.timestamp()
        if current.get(run.node, ("", 0))[0] != run.environment:
            new = insert(environment_periods).values(
                node=run.node,
                environment=run.environment,
                started=run.started.timestamp(),
                finished=end,
            )
            number = connection.execute(new.returning(periods.id)).scalar_one()
            current[run.node] = run.environment, number
        number = current[run.node][1]
        ends[number] = max(end, ends.get(number, end))
    for number, end in ends.items():
        row = update(environment_periods).where(periods.id == number)
        connection.execute(row.values(finished=func.max(periods.finished, end)))


# --- Corrections of stored runs, as a later version of a parser reads their output.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedRun:
    """Corrections of a stored run.

    Attributes:
        gone: samples to remove.
        put: samples to replace or add.
    """

    number: int
    gone: tuple[Sample, ...]
    put: tuple[Sample, ...]
    outcome: Outcome
    reason: str


_SAMPLE_KEY: Final = ("run", "metric", "direction", "part")


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


class RunWriter:
    """Writing of runs; every method raises StoreError if the database cannot be written now."""

    _engine: Engine

    def add_run(self, run: Run) -> StoredRun:
        """Store a finished run with its samples and evidence; return it as stored.

        Durable on return. Adding the same run again changes nothing; a retry may succeed.
        """
        with writing(self._engine) as connection:
            number = connection.scalar(select(runs.c.id).where(runs.c.uid == run.uid))
            if number is not None:
                return StoredRun.of(run, int(number))
            first = newest_number(connection) + 1
            (stored,) = _add(connection, [run], first, {})
            pieces = [
                {"run": first, "name": name, "content": zlib.compress(text.encode("utf-8"))}
                for name, text in run.evidence.items()
            ]
            put_rows(connection, evidence, ["run", "name"], pieces)
            add_numbers(connection, first)
        return stored

    def add_history(self, history: Iterable[Run]) -> int:
        """Store new runs, all or none; return their number.

        Their evidence is not stored: a history that is written at once was not measured.
        """
        count = 0
        remaining = iter(history)
        definitions: dict[str, Definition] = {}
        with writing(self._engine) as connection:
            first = newest_number(connection) + 1
            while batch := list(itertools.islice(remaining, BATCH)):
                _add(connection, batch, first + count, definitions)
                count += len(batch)
            add_numbers(connection, first)
        return count

    def correct(self, corrections: Iterable[ReplacedRun]) -> None:
        """Store corrections of runs, all or none; repeating it changes nothing."""
        with writing(self._engine) as connection:
            for correction in corrections:
                for sample in (*correction.gone, *correction.put):
                    row = zip(_SAMPLE_KEY, (correction.number, *sample.key), strict=True)
                    at = [samples.c[name] == value for name, value in row]
                    connection.execute(delete(samples).where(*at))
                put = [sample_row(correction.number, sample) for sample in correction.put]
                _insert_samples(connection, put)
                reclassify(connection, correction.number, correction.outcome, correction.reason)


def _add(
    connection: Connection, batch: Sequence[Run], first: int, definitions: dict[str, Definition]
) -> list[StoredRun]:
    """Store some runs under numbers from `first` on; `definitions` are those known so far."""
    for run in batch:
        if run.case.key not in definitions:
            definitions[run.case.key] = Definition.of(run.case)
    note_environments(connection, [(run.environment, run) for run in batch])
    numbered = enumerate(batch, start=first)
    stored = [StoredRun.of(run, number, definitions[run.case.key]) for number, run in numbered]
    insert_runs(connection, stored)
    _add_totals(connection, batch)
    return stored


def newest_number(connection: Connection) -> int:
    """Return the number of the run that was stored last; 0: there is none."""
    return int(connection.scalar(select(func.max(runs.c.id))) or 0)


def note_environments(
    connection: Connection, seen: Sequence[tuple[Environment, Run | StoredRun]]
) -> None:
    """Record the environments of some runs, oldest first."""
    rows: dict[str, dict[str, Any]] = {}
    for environment, run in seen:
        if (digest := environment.digest) not in rows:
            rows[digest] = {
                "digest": digest,
                "node": environment.node,
                "slug": environment.slug,
                "facts": json.dumps(dict(environment.facts), sort_keys=True),
                "first_seen": run.started.timestamp(),
            }
        rows[digest]["last_seen"] = run.finished.timestamp()
    kept = ("node", "slug", "facts", "first_seen")
    put_rows(connection, environments, ["digest"], [*rows.values()], kept=kept)


def insert_runs(connection: Connection, batch: Sequence[StoredRun]) -> None:
    """Store some runs under their numbers; their environments and cycles are stored."""
    connection.execute(insert(runs), [{"id": run.number, **run_row(run)} for run in batch])
    _insert_samples(
        connection, [sample_row(run.number, sample) for run in batch for sample in run.samples]
    )
    note_runs(connection, batch)


def _insert_samples(connection: Connection, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        # Positions instead of names: SQLAlchemy takes four times as long as SQLite for names.
        connection.exec_driver_sql(_INSERT_SAMPLES, rows)


_INSERT_SAMPLES: Final = (
    f"INSERT INTO {samples.name} ({', '.join(samples.c.keys())}) "  # noqa: S608 # constants
    f"VALUES ({', '.join('?' * len(samples.c))})"
)


def add_numbers(connection: Connection, first: int) -> None:
    """Store the numbers of the runs from number `first` on; their cases are stored."""
    connection.exec_driver_sql(numbers_statement("runs.id >= ?"), (first,))


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


def moved_bytes(run: Run) -> dict[tuple[str, str, str], float]:
    """Return (node, storage, direction) -> bytes that the workload moved."""
    where = run.case.scenario.node, run.case.scenario.storage
    return {
        (*where, str(sample.direction)): sample.value
        for sample in run_metrics.BYTES.of(run.samples)
        if sample.direction is not None
    }


def _add_totals(connection: Connection, ended: Sequence[Run]) -> None:
    """Add the bytes that the workloads moved, and all bytes written, to estimate wear."""
    amounts: defaultdict[tuple[str, ...], float] = defaultdict(float)
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
    _add_amounts(connection, totals, amounts)
    oldest = max(run.finished for run in ended) - timedelta(hours=KEPT_HOURS)
    for counter in (WRITTEN, COPIED, RUNS, RUN_BYTES):
        expired = totals.c.name.between(f"{counter} ", hour(counter, oldest))
        connection.execute(delete(totals).where(expired))
