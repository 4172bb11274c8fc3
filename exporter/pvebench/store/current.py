"""The present of all cases in memory: read from the store once, then told of every run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import structlog

from pvebench.errors import StoreError
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run import Outcome, Run, Unit, rates
from pvebench.model.units import KIB
from pvebench.model.workload import Case, Direction
from pvebench.store import CaseRecord, Point, Store, StoredRun, Totals, summed
from pvebench.store.definitions import DefinitionChange, current_keys, definition_changes

# --- The newest points of the number that people look at first, of every case.

P = ParamSpec("P")
T = TypeVar("T")

MAIN_METRICS: Final[dict[str, Unit]] = {"iops": Unit.IOPS, "bandwidth": Unit.BYTES_PER_SECOND}
BANDWIDTH_FROM_BYTES: Final = 128 * KIB
"""From this block size on, people think in bandwidth."""
TREND_RUNS: Final = 30


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Trend:
    """The newest good runs' main numbers, oldest first; no point where none moves data.

    Equal only to itself, so that what is made of it can be remembered cheaply.
    """

    metric: str = ""
    points: tuple[Point, ...] = ()

    def after(self, run: StoredRun) -> Trend:
        """Return the trend with a newer good run, and no longer than TREND_RUNS runs."""
        metric = self.metric or _metric_of(run)
        new = tuple(
            Point(run.number, run.finished, run.environment, one.direction, one.value)
            for one in run.samples
            if one.metric == metric and not one.part and one.direction is not None
        )
        points = (*self.points, *sorted(new, key=lambda point: point.direction))
        kept = set(sorted({point.run for point in points})[-TREND_RUNS:])
        return Trend(metric, tuple(point for point in points if point.run in kept))


def remembered(function: Callable[Concatenate[Trend, P], T]) -> Callable[Concatenate[Trend, P], T]:
    """Have a function asked once for each trend; what it said goes with the trend.

    A cache of a fixed size would fill up with what was said of runs long gone.
    """
    said: WeakKeyDictionary[Trend, dict[tuple[object, ...], T]] = WeakKeyDictionary()

    @wraps(function)
    def answer(trend: Trend, /, *more: P.args, **named: P.kwargs) -> T:
        of_trend = said.setdefault(trend, {})
        question = (*more, *named.items())
        if question not in of_trend:
            of_trend[question] = function(trend, *more, **named)
        return of_trend[question]

    return answer


def main_metric(definition: Definition) -> str:
    """Return which metric people look at first for a case: by its block size."""
    size = definition.parameters.get("bs")
    # bonnie++ and hdparm stream with a block size of their own, and count no operations.
    large = size is None or (isinstance(size, int) and size >= BANDWIDTH_FROM_BYTES)
    return "bandwidth" if large else "iops"


def _metric_of(run: StoredRun) -> str:
    """Return the metric of a case's first good run: the wanted one, or the other if it has it."""
    there = {one.metric for one in run.samples if one.direction is not None}
    wanted = main_metric(run.definition)
    return next((name for name in (wanted, *MAIN_METRICS) if name in there), "")


def read_trends(
    store: Store, definitions: Mapping[str, Definition], *, limit: int = TREND_RUNS
) -> dict[str, Trend]:
    """Return case key -> trend of the last `limit` good runs; cases without any are absent."""
    found: dict[str, Trend] = {}
    wanted = {key: main_metric(definition) for key, definition in definitions.items()}
    for metric in MAIN_METRICS:
        found |= _read(store, metric, [key for key, one in wanted.items() if one == metric], limit)
    for metric in MAIN_METRICS:
        found |= _read(store, metric, [key for key in wanted if key not in found], limit)
    return found


def _read(store: Store, metric: str, keys: list[str], limit: int) -> dict[str, Trend]:
    trends = store.trend(keys, metric, limit=limit) if keys else {}
    return {key: Trend(metric, tuple(points)) for key, points in trends.items()}


log = structlog.get_logger()

FAILURES: Final = 10
"""Newest runs that are not ok, kept for those who look."""
HOST_ROW_AGE: Final = timedelta(days=7)
"""An older run of the host is no longer what a guest's run is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """A case of the present packs.

    Attributes:
        every_seconds: how often it is to run.
    """

    key: str
    definition: Definition
    every_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One consistent moment.

    Attributes:
        version: the newest run's number.
        planned: key -> case of the present packs.
        cases: key -> what is known, also of cases that are in no pack any more.
        trends: key -> newest points of its main number.
        failures: the newest runs that are not ok, newest first.
        episodes: of all nodes, in the order in which they began.
        removals: how often old runs may have been removed since the start.
    """

    version: int = 0
    simulated: bool = False
    planned: Mapping[str, PlannedCase] = field(default_factory=dict)
    cases: Mapping[str, CaseRecord] = field(default_factory=dict)
    trends: Mapping[str, Trend] = field(default_factory=dict)
    failures: Sequence[StoredRun] = ()
    episodes: Sequence[EnvironmentPeriod] = ()
    totals: Totals = field(default_factory=Totals)
    removals: int = 0

    def current(self) -> dict[tuple[str, str, str], str]:
        """Return place -> key of the definition that is in force."""
        planned = ((key, one.definition) for key, one in self.planned.items())
        return current_keys(self.cases, planned)

    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """Return which cases mean something else than before, the newest change first."""
        return definition_changes(self.cases, self.current().values())

    def definition(self, key: str) -> Definition | None:
        """Return what a case means; None if it is neither planned nor was ever tried."""
        if key in self.planned:
            return self.planned[key].definition
        return self.cases[key].definition if key in self.cases else None


Listener = Callable[[str | None], None]
"""Called with the key of the case that changed; None: the packs did."""


class Results:
    """Keeps the present of every case; safe to use from several threads.

    Everything that wants to know "the latest" asks here, so that nobody keeps a copy with a
    cursor of its own. Long histories stay in the store.

    Args:
        store: read whole once, now; written by `keep`.
        planned: the cases of the present packs.
    """

    def __init__(self, store: Store, planned: Iterable[PlannedCase] = ()) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._rounds: dict[str, Counter[str]] = {}
        # The number first: where another process measures meanwhile, a case may be newer than
        # the version, but no run below it is unknown.
        version, cases = store.newest_run(), store.cases()
        self._view = View(
            version=version,
            simulated=store.simulated,
            planned={one.key: one for one in planned},
            cases=cases,
            trends=read_trends(store, {key: one.definition for key, one in cases.items()}),
            failures=tuple(store.runs(limit=FAILURES, not_ok=True)),
            episodes=tuple(store.episodes()),
            totals=store.totals(),
        )

    @property
    def now(self) -> View:
        """The present."""
        return self._view

    def case(self, key: str) -> CaseRecord | None:
        """Return what is known of a case; None: it was never tried."""
        return self._view.cases.get(key)

    def listen(self, listener: Listener) -> None:
        """Have somebody told of every change, in the thread that made it; it must be quick."""
        self._listeners.append(listener)

    def plan(self, planned: Iterable[PlannedCase]) -> None:
        """Set the cases of the present packs: the settings were reloaded."""
        with self._lock:
            self._view = replace(self._view, planned={one.key: one for one in planned})
        self._tell(None)

    def keep(self, run: Run) -> bool:
        """Store a finished run, then know of it; return whether an episode begins with it.

        Keeping the same run again changes nothing.

        Raises:
            StoreError: the database cannot be written now; the same call may work later.
        """
        # The lock goes around both: of two workers the one that is stored first is told first,
        # else the newer number would make the older run look as if it were known.
        with self._lock:
            number = self.store.add_run(run)
            if number <= self._view.version:
                return False
            begins = self._note(run, number)
        self._tell(run.case.key)
        return begins

    def _note(self, run: Run, number: int) -> bool:
        view, stored = self._view, StoredRun.of(run, number)
        key, known = stored.case_key, self._view.cases.get(stored.case_key)
        trend = view.trends.get(key, Trend())
        episodes, begins = _continued(view.episodes, run)
        self._view = replace(
            view,
            version=number,
            cases={**view.cases, key: _followed(known, stored)},
            trends={**view.trends, key: trend.after(stored)} if run.outcome.good else view.trends,
            failures=view.failures
            if run.outcome is Outcome.OK
            else (stored, *view.failures)[:FAILURES],
            episodes=episodes,
            totals=self._sums(view.totals.runs + 1),
        )
        self._count_round(run, begins=begins)
        return begins

    def _sums(self, runs: int) -> Totals:
        """Return the totals after something was stored; nothing may keep it from being told."""
        try:
            return self.store.totals(runs_known=runs)
        except StoreError as error:
            log.warning("the sums are brought up to date by the next run", reason=error.reason)
            return replace(self._view.totals, runs=runs)

    def end_cycle(self, uid: str) -> None:
        """Record that a cycle went through to its end. Raises StoreError."""
        self.store.end_cycle(uid)
        with self._lock:
            self._view = replace(self._view, totals=self._sums(self._view.totals.runs))

    def recount(self) -> None:
        """Count the runs anew: old ones were removed."""
        with self._lock:
            removals = self._view.removals + 1
            self._view = replace(self._view, totals=self.store.totals(), removals=removals)

    def _tell(self, key: str | None) -> None:
        for listener in self._listeners:
            try:
                listener(key)
            except Exception:
                # Whatever ails one of them, the measuring and the others go on.
                log.exception("somebody could not take in a new result")

    def _count_round(self, run: Run, *, begins: bool) -> None:
        rounds = self._rounds.get(run.case.scenario.node)
        if rounds is None or not run.outcome.good:
            return
        if begins:
            rounds.clear()
        rounds[run.case.key] += 1

    def rounds(self, node: str) -> Mapping[str, int] | None:
        """Return case key -> good runs in the node's present episode; None: it is the first."""
        mine = [one for one in self._view.episodes if one.node == node]
        if node not in self._rounds:
            since = mine[-1].started if mine else None
            found = self.store.good_runs_since(node, since) if since else {}
            self._rounds[node] = Counter(found)
        return self._rounds[node] if len(mine) > 1 else None

    def host_rates(self, case: Case, now: datetime) -> dict[Direction, float]:
        """Return what the host itself reached with the case's workload on its storage.

        From the newest good run of the same conditions within the week before `now`; I/O per
        second, or bytes per second where the tool gives no other rate. Empty if there is none.
        """
        wanted = Definition.of(case)
        place = (wanted.node, case.scenario.host_slug, wanted.workload)
        runs = [
            record.good
            for record in self._view.cases.values()
            if record.good is not None
            and record.definition.place == place
            and record.definition.device_conditions == wanted.device_conditions
            and record.good.finished > now - HOST_ROW_AGE
        ]
        if not runs:
            return {}
        return rates(max(runs, key=lambda run: run.finished).samples)


def _followed(known: CaseRecord | None, run: StoredRun) -> CaseRecord:
    """Return a case's record after one more run."""
    outcomes = Counter(known.outcomes if known else {})
    outcomes[run.outcome] += 1
    failures, sums = (known.failures_in_row, known.sums) if known else (0, {})
    return CaseRecord(
        last=run,
        good=run if run.outcome.good else known.good if known else None,
        outcomes=outcomes,
        failures_in_row=0 if run.outcome.good else failures + 1,
        first_started=min(known.first_started, run.started) if known else run.started,
        sums=summed(sums, run.samples) if run.outcome.good else sums,
    )


def _continued(
    episodes: Sequence[EnvironmentPeriod], run: Run
) -> tuple[Sequence[EnvironmentPeriod], bool]:
    """Return the episodes after one more run, and whether the node's environment changed.

    The first episode of a node is no change.
    """
    if not run.outcome.good:
        return episodes, False
    node, environment = run.case.scenario.node, run.environment
    place = next((i for i in reversed(range(len(episodes))) if episodes[i].node == node), None)
    if place is not None and episodes[place].environment == environment.digest:
        longer = replace(episodes[place], finished=max(episodes[place].finished, run.finished))
        return (*episodes[:place], longer, *episodes[place + 1 :]), False
    new = EnvironmentPeriod(
        node=node,
        environment=environment.digest,
        slug=environment.slug,
        facts=environment.facts,
        started=run.started,
        finished=run.finished,
    )
    return (*episodes, new), place is not None
