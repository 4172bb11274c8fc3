"""The results' good runs as material for judging; only what is new is read."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final, TypeVar

from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.figures import FIGURES
from pvebench.analysis.judge import Material
from pvebench.judging.columns import CaseColumns
from pvebench.judging.figures import NUMBERS, shared_labels
from pvebench.model.definition import Definition
from pvebench.results import DefinitionChange, Results
from pvebench.store import Decision, RunNumbers, Store

T = TypeVar("T")

AT_ONCE: Final = 50_000
"""Runs that are in memory on their way into columns: some ten of each case of a large store."""


@dataclass(slots=True)
class _Case:
    definition: Definition
    columns: CaseColumns


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
        new = self._results.store.numbers(NUMBERS, after=self.newest_run)
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
        runs, more = iter(new), False
        while chunk := [*islice(runs, AT_ONCE)]:
            more = True
            self._add(
                run
                for run in chunk
                if self._environments is None or run.environment in self._environments
            )
            self.newest_run = max(self.newest_run, *(run.run for run in chunk))
        return more or decided

    def _forget(self) -> None:
        """Let go of what the store has let go of."""
        oldest = self._results.store.oldest_good_runs()
        self._cases = {key: case for key, case in self._cases.items() if key in oldest}
        for key, case in self._cases.items():
            case.columns.forget(oldest[key])

    def _add(self, runs: Iterable[RunNumbers]) -> None:
        by_case: dict[str, list[RunNumbers]] = {}
        for run in runs:
            by_case.setdefault(run.case_key, []).append(run)
            self._add_time(run)
        for key, own in by_case.items():
            case = self._cases.get(key)
            if case is None:
                definition = self._results.now.cases[key].definition
                case = self._cases[key] = _Case(definition, CaseColumns(definition.tool))
            case.columns.add(own)

    def _add_time(self, run: RunNumbers) -> None:
        timeline = self._timeline.setdefault(run.node, [])
        _put(timeline, (run.finished, run.environment), itemgetter(0))
        if len(timeline) > 2 and timeline[-3][1] == timeline[-2][1] == timeline[-1][1]:
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
            points=points,
        )
        for (figure, direction), points in case.columns.counting(since).items()
    ]
