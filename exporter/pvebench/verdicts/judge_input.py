"""Input of the judge: the successful runs of each case as columns; reads only new runs."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, compress, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import CaseHistory, GoodRuns
from pvebench.analysis.concurrent_changes import RunValues
from pvebench.analysis.judge import Material
from pvebench.model.definition import Definition
from pvebench.model.disk import Cache
from pvebench.model.durability import Durable, KnownDurability, durable_of
from pvebench.model.run_metrics import CORES, JUDGED, NUMBER_OF, Number
from pvebench.model.workload import Direction
from pvebench.store.changes import Decision, KnownChange
from pvebench.store.live_results import Listener, View
from pvebench.store.records import CaseNumbers, StoredRun, numbers_of
from pvebench.verdicts.ranking import is_synced

# --- What verdicts need of stored results: `LiveResults` of a site, or the source of a hub.


class DecisionSource(Protocol):
    """Decisions of users about baselines."""

    def all(self) -> Sequence[Decision]:
        """Return all decisions, oldest first."""


class KnownChanges(Protocol):
    """Known changes, to recognize them at the next update."""

    def all(self) -> Sequence[KnownChange]:
        """Return all known changes, oldest first."""

    def keep(self, known: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Store changes; delete those to forget."""


class StoredRuns(Protocol):
    """Stored runs and decisions."""

    @property
    def decisions(self) -> DecisionSource:
        """Decisions about baselines."""

    def numbers_by_case(self, *, until: int) -> Iterable[CaseNumbers]:
        """Yield the good runs of each case up to run `until`, oldest first."""

    def oldest_good_runs(self) -> Mapping[str, float]:
        """Return case key -> end of its oldest good run, UNIX seconds."""

    def undirected(
        self, case_key: str, metrics: Collection[str], *, at: float, until: float, most: int
    ) -> tuple[Sequence[RunValues], Sequence[RunValues]]:
        """Return numbers without a direction of the newest good runs before and after `at`."""


class RunSource(Protocol):
    """Current state of all cases, and the runs behind it."""

    @property
    def now(self) -> View:
        """The current state."""

    @property
    def store(self) -> StoredRuns:
        """The stored runs."""

    def listen(self, listener: Listener) -> None:
        """Call a function with every run that is stored from now on."""


# --- Judged metrics of a run, and the labels that related cases share.

if TYPE_CHECKING:
    Column = array[float]

MetricDirection = tuple[str, str]
"""Metric of a case, and its direction or empty text."""
_RATES: Final = [("throughput", way.value) for way in Direction]
_DURABLE_CACHES: Final = [mode for mode in Cache if not mode.write_cache]


def figures_of(values: Mapping[Number, Column], tool: str) -> dict[MetricDirection, Matrix]:
    """Return the values of runs by metric, NaN where a run lacks it.

    Args:
        values: [runs] by number, of the `NUMBERS` that any run has.
    """
    columns = {number: np.array(column) for number, column in values.items()}
    figures = {
        (name, way): np.where(columns[number] > 0, columns[number], np.nan)
        if way
        else columns[number]
        for (name, way), number in NUMBER_OF.items()
        if number in columns and JUDGED[name].source.tool in ("", tool)
    }
    rates = [figures[place] for place in _RATES if place in figures]
    cores = [columns[number] for number in CORES if number in columns]
    if cores:
        used = np.where(np.isnan(cores[0]), cores[-1], cores[0])
        if rates:
            rate = np.nansum(rates, axis=0)
            figures["cpu_cost", ""] = used / np.where(rate > 0, rate, np.nan)
        if tool == "idle":
            figures["idle_cost", ""] = used
    return {place: column for place, column in figures.items() if not np.isnan(column).all()}


def shared_labels(definition: Definition, durability: KnownDurability) -> dict[str, str]:
    """Return the labels that related cases share."""
    shared = {key: definition.labels[key] for key in ("storage", "bus", "cache", "format")}
    shared |= {
        key: definition.options[key] for key in ("aio", "iothread") if definition.options.get(key)
    }
    load = definition.parameters.get("rw")
    shared |= {"rw": str(load)} if load else {"tool": definition.tool}
    if is_durable(definition, durability):
        shared["durable"] = "yes"
    return shared


def is_durable(definition: Definition, durability: KnownDurability) -> bool:
    """Return whether each write must reach the device before it completes."""
    if Direction.WRITE not in definition.directions:
        return False
    waits = is_synced(definition) or definition.cache in _DURABLE_CACHES
    return waits and durable_of(definition, durability) is not Durable.NO


# --- Successful runs of one case, oldest first, as columns that its metrics share.

MOST_POINTS: Final = 1000
"""Minimum of newest runs of a case to keep."""
FORGOTTEN_SHARE: Final = 0.2
"""Share of the runs of a case that is dropped at once."""
ENOUGH_OK: Final = 20
"""Minimum `ok` runs before `noisy` and `not_steady` ones count."""


class JudgedCase:
    """The numbers of one case: up to millions, read once and used by every update.

    Args:
        numbers: of its first runs; later ones are added to them.
    """

    def __init__(self, definition: Definition, numbers: CaseNumbers) -> None:
        self.definition = definition
        self._numbers = numbers
        self._counting: tuple[float, dict[MetricDirection, GoodRuns]] | None = None
        self._periods: list[PeriodEnd] = []
        self._limit()

    def add(self, numbers: CaseNumbers) -> None:
        """Add runs; most are newer than all others."""
        self._numbers.extend(numbers)
        self._limit()

    def _limit(self) -> None:
        self._numbers = self._numbers.in_order()
        count = len(self._numbers.runs)
        # As many remain as if runs were added one by one.
        self._drop(count // MOST_POINTS * MOST_POINTS - MOST_POINTS)

    def forget(self, before: float) -> None:
        """Drop the runs that ended before a moment, once they are a large share of all."""
        old = bisect_left(self._numbers.finished, before)
        if old > FORGOTTEN_SHARE * len(self._numbers.runs):
            self._drop(old)

    def _drop(self, count: int) -> None:
        # Not at every run: a history with another first run is scanned completely.
        if count > 0:
            self._numbers = self._numbers.since(count)
        self._counting, self._periods = None, []

    @property
    def periods(self) -> Sequence[PeriodEnd]:
        """The ends of its environment periods, in their order."""
        if not self._periods:
            numbers = self._numbers
            runs = zip(numbers.finished, numbers.runs, numbers.environments, strict=True)
            self._periods = _period_ends(runs)
        return self._periods

    def within(self, span: tuple[float, float]) -> Iterable[PeriodEnd]:
        """Return the runs that ended in a span of Unix seconds."""
        ends, numbers = self._numbers.finished, self._numbers
        part = slice(bisect_left(ends, span[0]), bisect_right(ends, span[1]))
        return zip(ends[part], numbers.runs[part], numbers.environments[part], strict=True)

    def counting(self, since: float) -> Mapping[MetricDirection, GoodRuns]:
        """Return the counting runs since a moment by metric; the same object until runs are added.

        `noisy` and `not_steady` runs are never a baseline alone: they count only with enough
        `ok` ones for a baseline.
        """
        if self._counting is None or self._counting[0] != since:
            numbers = self._numbers.since(bisect_left(self._numbers.finished, since))
            figures = figures_of(numbers.values, self.definition.tool)
            counting = {place: _counting(numbers, column) for place, column in figures.items()}
            self._counting = since, counting
        return self._counting[1]


def _counting(numbers: CaseNumbers, values: Matrix) -> GoodRuns:
    measured, ok = ~np.isnan(values), np.array(numbers.ok, dtype=bool)
    if (measured & ok).sum() < min(ENOUGH_OK, measured.sum()):
        measured &= ok
    return GoodRuns.of_columns(
        array("d", np.array(numbers.finished)[measured].tobytes()),
        [*compress(numbers.environments, measured)],
        array("d", values[measured].tobytes()),
    )


PeriodEnd = tuple[float, int, str]
"""End, number and environment of the first or last run of an environment period."""


def _period_ends(runs: Iterable[PeriodEnd]) -> list[PeriodEnd]:
    """Return the first and the last run of each environment period, of runs in their order."""
    periods = ([*group] for _, group in groupby(runs, key=itemgetter(2)))
    return [run for period in periods for run in dict.fromkeys((period[0], period[-1]))]


def _shared(ends: Iterable[PeriodEnd]) -> tuple[float, float] | None:
    """Return the span in which environments take turns, as those of guests of several systems do.

    There, the ends of the periods of each case do not show the periods of the node.
    """
    times: dict[str, list[float]] = {}
    for end, _, environment in ends:
        times.setdefault(environment, []).append(end)
    spans = [(min(known), max(known)) for known in times.values()]
    pairs = ((max(a[0], b[0]), min(a[1], b[1])) for a, b in combinations(spans, 2))
    shared = [(begin, end) for begin, end in pairs if begin <= end]
    return (min(shared)[0], max(end for _, end in shared)) if shared else None


class JudgeInput:
    """Judged values of successful runs, kept up to date.

    Args:
        environments: digests; only runs in these count; None: all.
    """

    def __init__(self, results: RunSource, *, environments: frozenset[str] | None = None) -> None:
        self._results = results
        self._environments = environments
        self._cases: dict[str, JudgedCase] = {}
        self._decisions: list[Decision] = []
        self._removals = results.now.removals
        self._stored: int | None = None
        self._added: deque[StoredRun] = deque()
        self.newest_run = 0
        results.listen(lambda run: self._added.append(run) if run is not None else None)

    @property
    def store(self) -> StoredRuns:
        """The store with the runs."""
        return self._results.store

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Decisions about baselines, oldest first."""
        return tuple(self._decisions)

    @property
    def nodes(self) -> list[str]:
        """The nodes with successful runs."""
        return sorted({case.definition.node for case in self._cases.values()})

    @property
    def view(self) -> View:
        """The current state of the results."""
        return self._results.now

    def read(self) -> bool:
        """Take new runs and decisions; return whether there were any.

        Stored runs are read once; later ones are those that `LiveResults` handed on.
        """
        if self._removals != (removals := self._results.now.removals):
            self._forget()
            self._removals = removals
        if self._stored is not None:
            return self.take(self._handed_on(self._stored))
        # After a failure midway, all are read again.
        self._cases, self.newest_run = {}, 0
        # A later run may be in the database already; it is handed on, too.
        stored = self._results.now.version
        new = self.take(self._results.store.numbers_by_case(until=stored))
        self._stored = stored
        return new

    def _handed_on(self, stored: int) -> Iterator[CaseNumbers]:
        """Yield the numbers of the runs that were added after number `stored`."""
        while self._added:
            run = self._added.popleft()
            if run.number > stored and run.outcome.good and (numbers := numbers_of(run)):
                yield numbers

    def take(self, new: Iterable[CaseNumbers], *, until: float = math.inf) -> bool:
        """Add runs; return whether there were new runs or decisions.

        Args:
            new: runs of cases, later than those before.
            until: ignore later decisions; Unix seconds.
        """
        decisions = self._results.store.decisions.all()
        before = self._decisions
        self._decisions = [item for item in decisions if item.made.timestamp() <= until]
        return self._add(new) or self._decisions != before

    def _forget(self) -> None:
        """Drop the runs that the store has dropped."""
        oldest = self._results.store.oldest_good_runs()
        self._cases = {key: case for key, case in self._cases.items() if key in oldest}
        for key, case in self._cases.items():
            case.forget(oldest[key])

    def _add(self, new: Iterable[CaseNumbers]) -> bool:
        newest = 0
        for numbers in new:
            newest = max(newest, max(numbers.runs, default=0))
            key, counted = numbers.case_key, numbers
            if self._environments is not None:
                counted = numbers.at(
                    [
                        place
                        for place, digest in enumerate(numbers.environments)
                        if digest in self._environments
                    ]
                )
            if counted.runs and key in self._cases:
                self._cases[key].add(counted)
            elif counted.runs:
                self._cases[key] = JudgedCase(self._results.now.cases[key].definition, counted)
        self.newest_run = max(self.newest_run, newest)
        return newest > 0

    def material(self, node: str) -> Material:
        """Return the input of a node's verdicts, with decisions applied.

        Only cases with the current definition: an earlier one is another history.
        """
        histories: list[CaseHistory] = []
        accepted: dict[str, float] = {}
        view = self._results.now
        for key in view.current().values():
            case = self._cases.get(key)
            if case is None or case.definition.node != node:
                continue
            reset, until = self._decided(case)
            accepted[key] = until
            histories += _histories(key, case, reset, view.durability)
        return Material(
            node=node,
            histories=histories,
            timeline=self._timeline(node),
            facts={period.environment: period.facts for period in view.periods},
            accepted_until=accepted,
        )

    def _timeline(self, node: str) -> list[tuple[float, str]]:
        cases = [case for case in self._cases.values() if case.definition.node == node]
        ends = [end for case in cases for end in case.periods]
        if (span := _shared(ends)) is not None:
            ends += [run for case in cases for run in case.within(span)]
        return [(end, environment) for end, _, environment in _period_ends(sorted(ends))]

    def _decided(self, case: JudgedCase) -> tuple[float, float]:
        """Return the start of a case's history, and the end of its accepted part, Unix seconds."""
        reset = accepted = float("-inf")
        for decision in self._decisions:
            if not decision.concerns(case.definition.scenario, case.definition.workload):
                continue
            until = decision.until.timestamp()
            if decision.kind == "accept":
                accepted = max(accepted, until)
            else:
                # The run that was the newest at the decision does not count either.
                reset = max(reset, until + 1e-6)
        return reset, accepted


def _histories(
    key: str, case: JudgedCase, since: float, durability: KnownDurability
) -> list[CaseHistory]:
    shared = shared_labels(case.definition, durability)
    return [
        CaseHistory(
            case=f"{key}|{direction}",
            of=key,
            name=case.definition.name,
            figure=JUDGED[figure],
            labels=shared,
            direction=direction,
            points=points,
            undisturbed=case.definition.undisturbed,
        )
        for (figure, direction), points in case.counting(since).items()
    ]
