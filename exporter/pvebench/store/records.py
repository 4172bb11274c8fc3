"""Conversion between rows and values, shared by all readers and writers of runs."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise, starmap
from operator import attrgetter, itemgetter, le
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Row, Select, TableValuedAlias, func, select

from pvebench.model import run_metrics
from pvebench.model.definition import Definition
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.run_metrics import NUMBERS, Number
from pvebench.model.workload import Direction
from pvebench.store.tables import cases, runs, samples

# --- Values that the store returns, already joined.

SUMMED: Final = frozenset({run_metrics.CLAT_HISTOGRAM.name})
"""Metrics that are summed over all good runs of a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A finished run as stored.

    Attributes:
        number: ID in the store, for links.
        definition: definition of its case.
        environment: digest of the environment it ran in.
        pass_number: number of the run of its case in its cycle, from 1; 0: unknown.
    """

    number: int
    uid: str
    case_key: str
    node: str
    scenario: str
    workload: str
    definition: Definition
    cycle: str
    environment: str
    started: datetime
    finished: datetime
    outcome: Outcome
    reason: str
    pass_number: int = 0
    samples: tuple[Sample, ...] = ()

    @classmethod
    def of(cls, run: Run, number: int, definition: Definition | None = None) -> StoredRun:
        """Return a run as the store returns it after storing it under `number`.

        Args:
            definition: of its case, if the caller has it already.
        """
        definition = definition or Definition.of(run.case)
        return cls(
            number=number,
            uid=run.uid,
            case_key=run.case.key,
            node=definition.node,
            scenario=definition.scenario,
            workload=definition.workload,
            definition=definition,
            cycle=run.cycle,
            environment=run.environment.digest,
            started=run.started,
            finished=run.finished,
            outcome=run.outcome,
            reason=run.reason,
            pass_number=run.pass_number,
            # The order of the table's key.
            samples=tuple(sorted(run.samples, key=attrgetter("key"))),
        )


@dataclass(frozen=True, slots=True)
class Point:
    """One number of one good run, for trends.

    Attributes:
        run: number of the run.
        finished: UTC.
        environment: digest of the environment it ran in.
        value: in the metric's base unit.
        ok: whether its run was neither noisy nor not steady.
        warm: whether reads of its run came from memory, or may have.
    """

    run: int
    finished: datetime
    environment: str
    direction: Direction
    value: float
    ok: bool = True
    warm: bool = False


Sums = Mapping[tuple[str, str, str], float]
"""(metric, direction or "", part) -> sum over all good runs."""


def summed(before: Sums, samples: Iterable[Sample]) -> Sums:
    """Return the sums after one more good run."""
    sums = dict(before)
    for sample in samples:
        if sample.metric in SUMMED:
            sums[sample.key] = sums.get(sample.key, 0.0) + sample.value
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord:
    """State of one case: its last run, its last good run, its counts.

    Attributes:
        good: last good run; None: no run was ever good.
        outcomes: outcome -> number of runs, including removed ones.
        failures_in_row: runs since the last good run.
        first_started: start of its first run; its definition has not changed since.
        sums: sums over good runs, including removed ones.
    """

    last: StoredRun
    good: StoredRun | None
    outcomes: Mapping[Outcome, int]
    failures_in_row: int
    first_started: datetime
    sums: Sums = field(default_factory=dict)

    @classmethod
    def before(cls, run: StoredRun) -> CaseRecord:
        """Return the record of a case before its first run."""
        return cls(last=run, good=None, outcomes={}, failures_in_row=0, first_started=run.started)

    def after(self, run: StoredRun) -> CaseRecord:
        """Return the record after one more run."""
        good = run.outcome.good
        return CaseRecord(
            last=run,
            good=run if good else self.good,
            outcomes={**self.outcomes, run.outcome: self.outcomes.get(run.outcome, 0) + 1},
            failures_in_row=0 if good else self.failures_in_row + 1,
            first_started=min(self.first_started, run.started),
            sums=summed(self.sums, run.samples) if good else self.sums,
        )

    @property
    def good_runs(self) -> int:
        """Number of good runs, including removed ones."""
        return sum(count for outcome, count in self.outcomes.items() if outcome.good)

    @property
    def key(self) -> str:
        """Key of the case."""
        return self.last.case_key

    @property
    def definition(self) -> Definition:
        """Definition of the case."""
        return self.last.definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters of the whole history.

    Attributes:
        bytes: (node, storage, direction) -> bytes.
        cycles: (node, pack tier) -> cycles.
    """

    bytes: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    cycles: Mapping[tuple[str, str], int] = field(default_factory=dict)
    runs: int = 0


def with_samples(connection: Connection, query: Select[Any]) -> list[StoredRun]:
    """Return the runs that a query of `runs` finds, each with its samples and definition."""
    rows = connection.execute(query).all()
    definitions = definitions_of(connection, {row.case_key for row in rows})
    grouped = _samples_of(connection, [row.id for row in rows])
    return [stored_run(row, definitions, grouped.get(row.id, [])) for row in rows]


def definitions_of(connection: Connection, case_keys: Collection[str]) -> dict[str, Definition]:
    """Return case key -> definition."""
    keys = keys_table(case_keys)
    query = select(cases.c.key, cases.c.definition).join_from(
        keys, cases, cases.c.key == keys.c.value
    )
    return {key: Definition.from_data(json.loads(text)) for key, text in connection.execute(query)}


def keys_table(case_keys: Collection[str]) -> TableValuedAlias:
    """Return keys as a table to join with.

    One JSON text: SQLite limits the number of variables, and a thousand cases exceed it.
    """
    return func.json_each(json.dumps(sorted(case_keys))).table_valued("value", name="keys")


def _samples_of(connection: Connection, numbers: list[int]) -> dict[int, list[Sample]]:
    grouped: dict[int, list[Sample]] = {}
    for start in range(0, len(numbers), 500):  # SQLite limits the number of variables
        chunk = numbers[start : start + 500]
        for run, metric, direction, value, unit, part in connection.execute(
            select(*_SAMPLE).where(samples.c.run.in_(chunk))
        ):
            sample = Sample(
                metric, DIRECTIONS[direction] if direction else None, value, _UNITS[unit], part
            )
            grouped.setdefault(run, []).append(sample)
    return grouped


DIRECTIONS: Final = {str(direction): direction for direction in Direction}
"""A year has a million: the lookup of the enumeration itself takes as long as all the rest."""
_UNITS: Final = {str(unit): unit for unit in Unit}
_SAMPLE: Final = [
    samples.c[name] for name in ("run", "metric", "direction", "value", "unit", "part")
]


_COLUMNS: Final = [column.name for column in runs.c if column.name not in {"id", "revision"}]
"""Columns of `runs` with the value of the attribute of this name."""


def stored_run(
    row: Row[Any], definitions: Mapping[str, Definition], samples: Iterable[Sample] = ()
) -> StoredRun:
    """Return a row of `runs` as a value."""
    values = {name: getattr(row, name) for name in _COLUMNS}
    values |= {
        "started": datetime.fromtimestamp(row.started, UTC),
        "finished": datetime.fromtimestamp(row.finished, UTC),
        "outcome": Outcome(row.outcome),
    }
    definition = definitions[row.case_key]
    return StoredRun(number=row.id, definition=definition, samples=tuple(samples), **values)


def run_row(run: StoredRun) -> dict[str, Any]:
    """Return a run as a row of `runs`, without its number."""
    row = {name: getattr(run, name) for name in _COLUMNS}
    times = {name: row[name].timestamp() for name in ("started", "finished")}
    return row | times | {"outcome": str(run.outcome)}


def sample_row(number: int, sample: Sample) -> tuple[Any, ...]:
    """Return a sample of the run with this number as a row of `samples`."""
    return (number, *sample.key, sample.value, str(sample.unit))


# --- Numbers of a case's runs as columns: years of many cases have millions of runs.

if TYPE_CHECKING:
    Column = array[float]

_NUMBERS: Final = frozenset(NUMBERS)


@dataclass(slots=True)
class CaseNumbers:
    """Numbers of some good runs of one case.

    Attributes:
        runs: [runs] their numbers in the store.
        finished: [runs] seconds since the epoch, UTC.
        environments: [runs] digests.
        ok: [runs] 1: `ok`; 0: a good outcome that limits the confidence in the numbers.
        values: [runs] of each number in the metric's base unit, NaN: not measured; a number that
            no run has is absent.
    """

    case_key: str
    runs: array[int]
    finished: Column
    environments: list[str]
    ok: bytearray
    values: dict[Number, Column]

    def at(self, positions: Sequence[int]) -> CaseNumbers:
        """Return the runs at these positions, in that order."""
        return self._taken(lambda column: map(column.__getitem__, positions))

    def in_order(self) -> CaseNumbers:
        """Return the runs in the order of their ends."""
        if all(starmap(le, pairwise(self.finished))):
            return self
        return self.at(sorted(range(len(self.runs)), key=self.finished.__getitem__))

    def since(self, position: int) -> CaseNumbers:
        """Return a copy of the runs from a position on."""
        return self._taken(itemgetter(slice(position, None)))

    def _taken(self, part: Callable[[Sequence[Any]], Iterable[Any]]) -> CaseNumbers:
        """Return the runs that a function takes of each column."""
        return CaseNumbers(
            self.case_key,
            array("q", part(self.runs)),
            array("d", part(self.finished)),
            [*part(self.environments)],
            bytearray(part(self.ok)),
            {number: array("d", part(column)) for number, column in self.values.items()},
        )

    def extend(self, later: CaseNumbers) -> None:
        """Add runs of the case at the end."""
        for number in later.values:
            self.values.setdefault(number, _not_measured(len(self.runs)))
        for number, column in self.values.items():
            column.extend(later.values.get(number) or _not_measured(len(later.runs)))
        self.runs.extend(later.runs)
        self.finished.extend(later.finished)
        self.environments += later.environments
        self.ok += later.ok


def _not_measured(count: int) -> Column:
    """Return a column of NaN, for runs that lack a number."""
    return array("d", [math.nan]) * count


def numbers_of(run: StoredRun) -> CaseNumbers | None:
    """Return the numbers of a good run as the store returns them; None: it has none."""
    values = {
        sample.key: array("d", [sample.value]) for sample in run.samples if sample.key in _NUMBERS
    }
    if not values:
        return None
    run_number, end = array("q", [run.number]), array("d", [run.finished.timestamp()])
    ok = bytearray([run.outcome is Outcome.OK])
    return CaseNumbers(run.case_key, run_number, end, [run.environment], ok, values)


def case_numbers(key: str, rows: Sequence[Sequence[Any]]) -> CaseNumbers:
    """Return the numbers of some runs of a case, oldest first.

    Args:
        rows: of each run its number, end, environment, whether it is `ok`, then `NUMBERS` or None.
    """
    runs, finished, environments, ok, *columns = zip(*rows, strict=True)
    return CaseNumbers(
        key,
        array("q", runs),
        array("d", finished),
        [*map(intern, environments)],
        bytearray(ok),
        {
            number: array("d", _measured(column) if None in column else column)
            for number, column in zip(NUMBERS, columns, strict=True)
            if column.count(None) < len(column)
        },
    )


def _measured(column: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in column]
