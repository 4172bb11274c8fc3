"""The results' good runs as material for judging; only what is new is read."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TypeVar

from pvebench.analysis.case_history import CaseHistory
from pvebench.analysis.figures import FIGURES
from pvebench.analysis.judge import Material
from pvebench.judging.columns import CaseColumns
from pvebench.judging.figures import NUMBERS, shared_labels
from pvebench.model.definition import Definition
from pvebench.results import DefinitionChange, Results
from pvebench.store import CaseNumbers, Decision, Store

T = TypeVar("T")


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
        return self.take(
            self._results.store.numbers.read(NUMBERS, after=self.newest_run, until=known)
        )

    def take(self, new: Iterable[Sequence[CaseNumbers]], *, until: float = math.inf) -> bool:
        """Take over runs; tell whether there was anything, runs or decisions.

        Args:
            new: pieces, each of later runs.
            until: what was decided after that moment is not known yet.
        """
        decisions = self._results.store.decisions
        decided = decisions.count() != len(self._decisions)
        if decided:
            self._decisions = [one for one in decisions.all() if one.made.timestamp() <= until]
        # A database that fails in the middle costs no run its judging: the rest is read next time.
        before = self.newest_run
        for piece in filter(None, new):
            self._add(piece)
            self.newest_run = max(self.newest_run, *(max(one.runs) for one in piece))
        return self.newest_run > before or decided

    def _forget(self) -> None:
        """Let go of what the store has let go of."""
        oldest = self._results.store.oldest_good_runs()
        self._cases = {key: case for key, case in self._cases.items() if key in oldest}
        for key, case in self._cases.items():
            case.columns.forget(oldest[key])

    def _add(self, piece: Iterable[CaseNumbers]) -> None:
        times: dict[str, list[CaseNumbers]] = {}
        for one in piece:
            own = one if self._environments is None else one.at(_within(one, self._environments))
            if not own.runs:
                continue
            case = self._cases.get(own.case_key)
            if case is None:
                definition = self._results.now.cases[own.case_key].definition
                case = self._cases[own.case_key] = _Case(definition, CaseColumns(definition.tool))
            times.setdefault(case.definition.node, []).append(own)
            case.columns.add(own)
        for node, numbers in times.items():
            timeline = self._timeline.get(node)
            for end in _ends(numbers, timeline[-1][0] if timeline else -math.inf):
                self._add_time(node, end)

    def _add_time(self, node: str, end: tuple[float, str]) -> None:
        timeline = self._timeline.setdefault(node, [])
        _put(timeline, end, itemgetter(0))
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


def _within(numbers: CaseNumbers, environments: frozenset[str]) -> list[int]:
    digests = numbers.environments
    return [place for place, digest in enumerate(digests) if digest in environments]


def _ends(cases: Sequence[CaseNumbers], after: float) -> Iterable[tuple[float, str]]:
    """Return when runs of a node ended, and in which environment, in the order of their numbers.

    Args:
        after: when the last one known ended. Of later runs in one environment two are enough.
    """
    digests = {digest for one in cases for digest in set(one.environments)}
    first = min(min(one.finished) for one in cases)
    if len(digests) == 1 and first >= after:
        (only,) = digests
        last = max(max(one.finished) for one in cases)
        return [(first, only), (last, only)][: 1 + (first < last)]
    every = (zip(one.runs, one.finished, one.environments, strict=True) for one in cases)
    in_order = sorted(chain.from_iterable(every))
    return [(finished, digest) for _, finished, digest in in_order]


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
