"""Current state of all cases in memory: read from the store once, then updated by every run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from pvebench.errors import StoreError
from pvebench.log import log
from pvebench.model.definition import Definition
from pvebench.model.durability import Durability, KnownDurability
from pvebench.model.environment import EnvironmentPeriod, unflushed_in
from pvebench.model.run import Outcome, Run, Unit
from pvebench.model.run_metrics import rates, warm_text
from pvebench.model.storage_use import WriteCost
from pvebench.model.units import KIB
from pvebench.model.workload import Case, Direction
from pvebench.store.changes import DefinitionChange, definition_changes
from pvebench.store.records import CaseRecord, Point, StoredRun, Totals
from pvebench.store.store import Store
from pvebench.store.writing import moved_bytes

# --- The newest points of each case's main metric.

P = ParamSpec("P")
T = TypeVar("T")

MAIN_METRICS: Final[dict[str, Unit]] = {"iops": Unit.IOPS, "bandwidth": Unit.BYTES_PER_SECOND}
BANDWIDTH_FROM_BYTES: Final = 64 * KIB
"""Block size from which on the main metric is the bandwidth, on boards too."""
TREND_RUNS: Final = 30


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Trend:
    """Main metric of the newest good runs, oldest first; no points if none moves data.

    Equal only to itself, so that values computed from it can be cached cheaply.
    """

    metric: str = ""
    points: tuple[Point, ...] = ()

    def after(self, run: StoredRun) -> Trend:
        """Return the trend with a newer good run, and no longer than TREND_RUNS runs."""
        metric, at = self.metric or _metric_of(run), (run.number, run.finished, run.environment)
        state = run.outcome is Outcome.OK, bool(warm_text(run.samples))
        new = tuple(
            Point(*at, sample.direction, sample.value, *state)
            for sample in run.samples
            if sample.metric == metric and not sample.part and sample.direction is not None
        )
        points = (*self.points, *sorted(new, key=lambda point: point.direction))
        kept = set(sorted({point.run for point in points})[-TREND_RUNS:])
        return Trend(metric, tuple(point for point in points if point.run in kept))


def cached_by_trend(
    function: Callable[Concatenate[Trend, P], T],
) -> Callable[Concatenate[Trend, P], T]:
    """Cache the results of a function for each trend; they are freed with the trend.

    A cache of a fixed size would fill up with results for outdated trends.
    """
    results: WeakKeyDictionary[Trend, dict[tuple[object, ...], T]] = WeakKeyDictionary()

    @wraps(function)
    def cached(trend: Trend, /, *more: P.args, **named: P.kwargs) -> T:
        of_trend = results.setdefault(trend, {})
        arguments = (*more, *named.items())
        if arguments not in of_trend:
            of_trend[arguments] = function(trend, *more, **named)
        return of_trend[arguments]

    return cached


def main_metric(definition: Definition) -> str:
    """Return the main metric of a case, by its block size."""
    size = definition.parameters.get("bs")
    # bonnie++ and hdparm stream with a block size of their own, and count no operations.
    large = size is None or (isinstance(size, int) and size >= BANDWIDTH_FROM_BYTES)
    return "bandwidth" if large else "iops"


def _metric_of(run: StoredRun) -> str:
    """Return the metric for a case's first good run: the main one, else another that it has."""
    measured = {sample.metric for sample in run.samples if sample.direction is not None}
    main = main_metric(run.definition)
    return next((name for name in (main, *MAIN_METRICS) if name in measured), "")


def read_trends(
    store: Store, definitions: Mapping[str, Definition], *, limit: int = TREND_RUNS
) -> dict[str, Trend]:
    """Return case key -> trend of the last `limit` good runs; cases without any are absent."""
    trends: dict[str, Trend] = {}
    main = {key: main_metric(definition) for key, definition in definitions.items()}
    for metric in MAIN_METRICS:
        trends |= _read(store, metric, [key for key, name in main.items() if name == metric], limit)
    for metric in MAIN_METRICS:
        trends |= _read(store, metric, [key for key in main if key not in trends], limit)
    return trends


def _read(store: Store, metric: str, keys: list[str], limit: int) -> dict[str, Trend]:
    trends = store.trend(keys, metric, limit=limit) if keys else {}
    return {key: Trend(metric, tuple(points)) for key, points in trends.items()}


FAILURES: Final = 10
"""Number of newest runs that are not ok, kept for display."""
HOST_RUN_AGE: Final = timedelta(days=7)
"""Maximum age of a host run that guest runs are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """A case of the current packs.

    Attributes:
        every_seconds: interval between its runs.
    """

    key: str
    definition: Definition
    every_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Consistent snapshot of the current state.

    Attributes:
        version: number of the newest run.
        planned: key -> case of the current packs.
        cases: key -> state of the case, including cases that are no longer in a pack.
        trends: key -> newest points of its main metric.
        failures: the newest runs that are not ok, newest first.
        periods: environment periods of all nodes, in the order of their start.
        devices: `node/storage` -> its device in words.
        measured: (node, storage, configuration) -> measured durability.
        costs: bytes that the packs write to each storage.
        removals: how often old runs may have been removed since the start of pvebench.
    """

    version: int = 0
    simulated: bool = False
    planned: Mapping[str, PlannedCase] = field(default_factory=dict)
    cases: Mapping[str, CaseRecord] = field(default_factory=dict)
    trends: Mapping[str, Trend] = field(default_factory=dict)
    failures: Sequence[StoredRun] = ()
    periods: Sequence[EnvironmentPeriod] = ()
    totals: Totals = field(default_factory=Totals)
    devices: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[tuple[str, str, str], Durability] = field(default_factory=dict)
    costs: tuple[WriteCost, ...] = ()
    removals: int = 0

    @property
    def durability(self) -> KnownDurability:
        """What is known of the durability of all storages."""
        return KnownDurability(self.measured, unflushed_in(self.periods))

    def current(self) -> dict[tuple[str, str, str], str]:
        """Return place (node, scenario, workload) -> key of its current definition.

        That is the one that the current packs plan. Elsewhere it is the one of the last run, of a
        scaled run only if there is no other.
        """
        ordered = sorted(self.cases.values(), key=lambda record: _rank(record.last))
        newest = {record.definition.place: record.key for record in ordered}
        return newest | {case.definition.place: key for key, case in self.planned.items()}

    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """Return the changed definitions of current cases, newest change first."""
        return definition_changes(self.cases, self.current().values())

    def definition(self, key: str) -> Definition | None:
        """Return the definition of a case; None: it is not planned and has no run."""
        if key in self.planned:
            return self.planned[key].definition
        return self.cases[key].definition if key in self.cases else None


def _rank(last: StoredRun) -> tuple[bool, datetime, int]:
    return last.definition.scale == 1.0, last.finished, last.number


Listener = Callable[[StoredRun | None], None]
"""Called with a run that was stored; None: the packs changed."""


class LiveResults:
    """Current state of every case; safe to use from several threads.

    All readers of the latest results use it, so that none keeps a copy with its own cursor. Long
    histories stay in the store.

    Args:
        store: read completely once, now; written by `keep`.
        planned: the cases of the current packs.
    """

    def __init__(self, store: Store, planned: Iterable[PlannedCase] = ()) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._period_runs: dict[str, Counter[str]] = {}
        # The number first: if another process stores runs at the same time, a case may be newer
        # than the version, but no run up to the version is missing.
        version, cases = store.newest_run(), store.cases()
        self._view = View(
            version=version,
            simulated=store.simulated,
            planned={case.key: case for case in planned},
            cases=cases,
            trends=read_trends(store, {key: case.definition for key, case in cases.items()}),
            failures=tuple(store.runs(limit=FAILURES, not_ok=True)),
            periods=tuple(store.periods()),
            totals=store.totals(),
            devices=store.identities.devices(),
            measured=store.durability(),
        )

    @property
    def now(self) -> View:
        """The current state."""
        return self._view

    def listen(self, listener: Listener) -> None:
        """Call a function after every change, in the thread that made it; it must be quick."""
        self._listeners.append(listener)

    def plan(self, planned: Iterable[PlannedCase], costs: tuple[WriteCost, ...] = ()) -> None:
        """Set the cases of the current packs and their cost, after a change of either."""
        cases = {case.key: case for case in planned}
        with self._lock:
            self._view = replace(self._view, planned=cases, costs=costs)
        self._notify_listeners(None)

    def keep(self, run: Run) -> bool:
        """Store a finished run, then update the state; return whether a period starts with it.

        Storing the same run again changes nothing.

        Raises:
            StoreError: the database cannot be written now; a retry may succeed.
        """
        # One lock for both: listeners get the runs of two workers in the order of their numbers,
        # since after a newer number an older run would count as already seen.
        with self._lock:
            stored = self.store.add_run(run)
            if stored.number <= self._view.version:
                return False
            starts_period = self._note(run, stored)
        self._notify_listeners(stored)
        return starts_period

    def _note(self, run: Run, stored: StoredRun) -> bool:
        view = self._view
        key, record = stored.case_key, self._view.cases.get(stored.case_key)
        trend = view.trends.get(key, Trend())
        periods, starts_period = _continued(view.periods, run)
        before, runs = view.totals.bytes, view.totals.runs + 1
        moved = {at: before.get(at, 0.0) + size for at, size in moved_bytes(run).items()}
        self._view = replace(
            view,
            version=stored.number,
            cases={**view.cases, key: (record or CaseRecord.before(stored)).after(stored)},
            trends={**view.trends, key: trend.after(stored)} if run.outcome.good else view.trends,
            failures=view.failures
            if run.outcome is Outcome.OK
            else (stored, *view.failures)[:FAILURES],
            periods=periods,
            totals=replace(view.totals, bytes={**before, **moved}, runs=runs),
            devices=view.devices if record else self._devices(),
        )
        self._count_good_run(run, starts_period=starts_period)
        return starts_period

    def _devices(self) -> Mapping[str, str]:
        """Return the devices after the first run of a case, which may have recorded one."""
        try:
            return self.store.identities.devices()
        except StoreError as error:
            log.warning("reading identities failed", reason=error.reason)
            return self._view.devices

    def end_cycle(self, uid: str) -> None:
        """Record the end of a complete cycle. Raises StoreError."""
        if (ended := self.store.end_cycle(uid)) is not None:
            with self._lock:
                totals = self._view.totals
                cycles = {**totals.cycles, ended: totals.cycles.get(ended, 0) + 1}
                self._view = replace(self._view, totals=replace(totals, cycles=cycles))

    def recount(self) -> None:
        """Read the totals again after a removal of old runs."""
        with self._lock:
            removals = self._view.removals + 1
            self._view = replace(self._view, totals=self.store.totals(), removals=removals)

    def _notify_listeners(self, run: StoredRun | None) -> None:
        for listener in self._listeners:
            try:
                listener(run)
            except Exception:
                # A failing listener must not stop the measurement or the other listeners.
                log.exception("result subscriber failed")

    def _count_good_run(self, run: Run, *, starts_period: bool) -> None:
        counts = self._period_runs.get(run.case.scenario.node)
        if counts is None or not run.outcome.good:
            return
        if starts_period:
            counts.clear()
        counts[run.case.key] += 1

    def period_runs(self, node: str) -> Mapping[str, int] | None:
        """Return case key -> good runs in the node's current period; None: it is the first one."""
        periods = [period for period in self._view.periods if period.node == node]
        if node not in self._period_runs:
            since = periods[-1].started if periods else None
            counts = self.store.good_runs_since(node, since) if since else {}
            self._period_runs[node] = Counter(counts)
        return self._period_runs[node] if len(periods) > 1 else None

    def host_rates(self, case: Case, now: datetime) -> dict[Direction, float]:
        """Return the rates of the host itself with the case's workload on its storage.

        From the newest good run of the same conditions within the week before `now`: I/O per
        second, or bytes per second if the tool reports no other rate. Empty if there is none.
        """
        definition = Definition.of(case)
        place = (definition.node, case.scenario.host_slug, definition.workload)
        runs = [
            record.good
            for record in self._view.cases.values()
            if record.good is not None
            and record.definition.place == place
            and record.definition.device_conditions == definition.device_conditions
            and record.good.finished > now - HOST_RUN_AGE
        ]
        if not runs:
            return {}
        return rates(max(runs, key=lambda run: run.finished).samples)


def _continued(
    periods: Sequence[EnvironmentPeriod], run: Run
) -> tuple[Sequence[EnvironmentPeriod], bool]:
    """Return the periods after one more run, and whether the node's environment changed.

    The first period of a node is no change.
    """
    if not run.outcome.good:
        return periods, False
    node, environment = run.case.scenario.node, run.environment
    last = next((i for i in reversed(range(len(periods))) if periods[i].node == node), None)
    if last is not None and periods[last].environment == environment.digest:
        longer = replace(periods[last], finished=max(periods[last].finished, run.finished))
        return (*periods[:last], longer, *periods[last + 1 :]), False
    new = EnvironmentPeriod(
        node=node,
        environment=environment.digest,
        slug=environment.slug,
        facts=environment.facts,
        started=run.started,
        finished=run.finished,
    )
    return (*periods, new), last is not None
