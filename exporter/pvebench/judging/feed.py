"""The results' good runs as material for judging; only what is new is read."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter
from sys import intern
from typing import Final, TypeVar

from pvebench.analysis.case_history import CaseHistory, GoodRuns
from pvebench.analysis.figures import FIGURES
from pvebench.analysis.judge import Material
from pvebench.judging.figures import METRICS, PARTS, figures_of, shared_labels
from pvebench.model.definition import Definition
from pvebench.model.run import Outcome
from pvebench.results import DefinitionChange, Results
from pvebench.store import Decision, RunNumbers, Store

T = TypeVar("T")

MOST_POINTS: Final = 1000
"""Newest runs of a case that are kept at least."""
FORGOTTEN_SHARE: Final = 0.2
"""Of the runs of a figure; so many are let go of at once."""
ENOUGH_OK: Final = 20
"""Runs that are `ok` beside which those count that are good with a reason."""


class _Series:
    """One figure of a case, oldest first, as columns."""

    def __init__(self) -> None:
        self._times, self._values = array("d"), array("d")
        self._environments: list[str] = []
        self._ok = bytearray()
        self._counting: tuple[float, GoodRuns] | None = None

    def add(self, run: RunNumbers, value: float) -> None:
        """Take over a run: most come last."""
        self._counting = None
        place = bisect_right(self._times, run.finished)
        self._times.insert(place, run.finished)
        self._values.insert(place, value)
        self._environments.insert(place, intern(run.environment))
        self._ok.insert(place, run.outcome is Outcome.OK)
        if len(self._times) >= 2 * MOST_POINTS:
            self._drop(len(self._times) - MOST_POINTS)

    def forget(self, before: float) -> None:
        """Let go of the runs that ended before a moment, once they are a good part of all."""
        old = bisect_left(self._times, before)
        if old > FORGOTTEN_SHARE * len(self._times):
            self._drop(old)

    def _drop(self, count: int) -> None:
        # Not at every run: a history that begins elsewhere is judged from its beginning.
        for column in (self._times, self._values, self._environments, self._ok):
            del column[:count]
        self._counting = None

    def counting(self, since: float) -> GoodRuns:
        """Return the runs that count, since a moment; the same ones until there are more.

        Noisy runs and those that were not steady are never a baseline alone: they count beside
        as many `ok` ones as make a baseline, and not before.
        """
        if self._counting is None or self._counting[0] != since:
            present = slice(bisect_left(self._times, since), None)
            times, values = self._times[present], self._values[present]
            environments, ok = self._environments[present], self._ok[present]
            if ok.count(True) < min(ENOUGH_OK, len(ok)):
                times, values = array("d", compress(times, ok)), array("d", compress(values, ok))
                environments = [*compress(environments, ok)]
            self._counting = since, GoodRuns.of_columns(times, environments, values)
        return self._counting[1]


@dataclass(slots=True)
class _Case:
    definition: Definition
    series: dict[tuple[str, str], _Series] = field(default_factory=dict)


def _put(ordered: list[T], one: T, key: Callable[[T], float]) -> None:
    """Insert it in order; most come last, which a search would not know."""
    if not ordered or key(ordered[-1]) <= key(one):
        ordered.append(one)
    else:
        insort(ordered, one, key=key)


class Feed:
    """Keeps the figures of good runs.

    Args:
        environments: digests; only runs in these count. None: all.
    """

    def __init__(self, results: Results, *, environments: frozenset[str] | None = None) -> None:
        self._results = results
        self._environments = environments
        self._cases: dict[str, _Case] = {}
        # Of a stretch in one environment the ends are enough.
        self._timeline: dict[str, list[tuple[float, str]]] = {}
        self._decisions: list[Decision] = []
        self._removals = results.now.removals
        self.newest_run = 0

    @property
    def store(self) -> Store:
        """Where the runs are."""
        return self._results.store

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided, oldest first."""
        return tuple(self._decisions)

    @property
    def nodes(self) -> list[str]:
        """The nodes with good runs."""
        return sorted(self._timeline)

    @property
    def environments(self) -> dict[str, str]:
        """Digest -> slug."""
        return {one.environment: one.slug for one in self._results.now.episodes}

    def labels(self, case_key: str) -> Mapping[str, str]:
        """Return the labels that the results of a case carry."""
        return self._cases[case_key].definition.labels

    def definition_changes(self) -> tuple[DefinitionChange, ...]:
        """Return which of the judged cases mean something else than before."""
        return self._results.now.definition_changes()

    def read(self) -> bool:
        """Read what is new; tell whether there was anything."""
        if self._removals != (removals := self._results.now.removals):
            self._forget()
            self._removals = removals
        # A run is in the database before the results have been told of it: that one is next.
        known = self._results.now.version
        new = self._results.store.numbers(METRICS, parts=PARTS, after=self.newest_run)
        return self.take(run for run in new if run.run <= known)

    def take(self, new: Iterable[RunNumbers], *, until: float = math.inf) -> bool:
        """Take over runs; tell whether there was anything, runs or decisions.

        Args:
            until: what was decided after that moment is not known yet.
        """
        decisions = self._results.store.decisions
        decided = decisions.count() != len(self._decisions)
        if decided:
            self._decisions = [one for one in decisions.all() if one.made.timestamp() <= until]
        # A database that fails in the middle costs no run its judging: the rest is read next time.
        more = False
        for run in new:
            more = True
            if self._environments is None or run.environment in self._environments:
                self._add(run)
            self.newest_run = max(self.newest_run, run.run)
        return more or decided

    def _forget(self) -> None:
        """Let go of what the store has let go of."""
        oldest = self._results.store.oldest_good_runs()
        self._cases = {key: case for key, case in self._cases.items() if key in oldest}
        for key, case in self._cases.items():
            for series in case.series.values():
                series.forget(oldest[key])

    def _add(self, run: RunNumbers) -> None:
        case = self._cases.get(run.case_key)
        if case is None:
            definition = self._results.now.cases[run.case_key].definition
            case = self._cases[run.case_key] = _Case(definition)
        for name, direction, value in figures_of(run.values, case.definition.tool):
            series = case.series.get((name, direction))
            if series is None:
                series = case.series[name, direction] = _Series()
            series.add(run, value)
        timeline = self._timeline.setdefault(run.node, [])
        _put(timeline, (run.finished, run.environment), itemgetter(0))
        if len(timeline) > 2 and len({digest for _, digest in timeline[-3:]}) == 1:
            del timeline[-2]

    def material(self, node: str) -> Material:
        """Return what is known of a node, with the decisions taken into account.

        Only cases with the definition that is in force: an earlier one is another history.
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
            histories += _histories(key, case, reset)
        return Material(
            node=node,
            histories=histories,
            timeline=self._timeline[node],
            facts={one.environment: one.facts for one in view.episodes},
            accepted_until=accepted,
        )

    def _decided(self, case: _Case) -> tuple[float, float]:
        """Return since when the history of a case counts, and until when it is accepted."""
        reset = accepted = float("-inf")
        for decision in self._decisions:
            if not decision.concerns(case.definition.scenario, case.definition.workload):
                continue
            until = decision.until.timestamp()
            if decision.kind == "accept":
                accepted = max(accepted, until)
            else:
                # The run that was the newest one does not count any more either.
                reset = max(reset, until + 1e-6)
        return reset, accepted


def _histories(key: str, case: _Case, since: float) -> list[CaseHistory]:
    shared = shared_labels(case.definition)
    return [
        CaseHistory(
            case=f"{key}|{direction}",
            of=key,
            name=case.definition.name,
            figure=FIGURES[figure],
            labels=shared,
            direction=direction,
            points=series.counting(since),
        )
        for (figure, direction), series in case.series.items()
    ]
