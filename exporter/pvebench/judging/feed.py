"""The store's runs as material for judging; only what is new is read."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pvebench.analysis.figures import FIGURES
from pvebench.analysis.judge import Material
from pvebench.analysis.series import History, Point
from pvebench.judging.figures import METRICS, figures_of, shared_labels
from pvebench.store import Decision, RunNumbers, Store

MOST_POINTS: Final = 1000
"""Newest runs of a case that are kept."""


@dataclass(slots=True)
class _Case:
    definition: Mapping[str, Any]
    series: dict[tuple[str, str], list[Point]] = field(default_factory=dict)


def _by_time(point: Point) -> float:
    return point.time


class Feed:
    """Keeps what was read of a store.

    Args:
        environments: digests; only runs in these count. None: all.
    """

    def __init__(self, store: Store, *, environments: frozenset[str] | None = None) -> None:
        self._store = store
        self._environments = environments
        self._cases: dict[str, _Case] = {}
        self._timeline: dict[str, list[tuple[float, str]]] = {}
        self._decisions: list[Decision] = []
        self._facts: dict[str, Mapping[str, str]] = {}
        self.environments: dict[str, str] = {}
        self.newest_run = 0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided, oldest first."""
        return tuple(self._decisions)

    @property
    def nodes(self) -> list[str]:
        """The nodes with good runs."""
        return sorted(self._timeline)

    def labels(self, case_key: str) -> Mapping[str, str]:
        """Return the labels that the results of a case carry."""
        found: Mapping[str, str] = self._cases[case_key].definition["labels"]
        return found

    def read(self) -> bool:
        """Read what is new; tell whether there was anything."""
        return self.take(self._store.numbers.good_runs(METRICS, after=self.newest_run))

    def take(self, new: Sequence[RunNumbers], *, until: float = math.inf) -> bool:
        """Take over runs; tell whether there was anything, runs or decisions.

        Args:
            until: what was decided after that moment is not known yet.
        """
        unknown = {run.case_key for run in new} - self._cases.keys()
        for key, last in self._store.history.newest(unknown, good=True).items():
            self._cases[key] = _Case(last.definition)
        for run in new:
            if self._environments is None or run.environment in self._environments:
                self._add(run)
            self.newest_run = max(self.newest_run, run.run)
        decided = self._store.decisions.count() != len(self._decisions)
        if decided:
            self._decisions = [
                one for one in self._store.decisions.all() if one.made.timestamp() <= until
            ]
        if new:
            known = self._store.environments()
            self._facts = {one["digest"]: one["facts"] for one in known}
            self.environments = {one["digest"]: one["slug"] for one in known}
        return bool(new) or decided

    def _add(self, run: RunNumbers) -> None:
        case = self._cases[run.case_key]
        tool = case.definition["workload"]["tool"]
        for name, direction, value in figures_of(run.values, tool):
            points = case.series.setdefault((name, direction), [])
            insort(points, Point(run.finished, run.environment, value), key=_by_time)
            del points[:-MOST_POINTS]
        insort(self._timeline.setdefault(run.node, []), (run.finished, run.environment))

    def material(self, node: str) -> Material:
        """Return what is known of a node, with the decisions taken into account."""
        histories: list[History] = []
        accepted: dict[str, float] = {}
        for key, case in self._cases.items():
            if case.definition["labels"]["node"] != node:
                continue
            reset, until = self._decided(case)
            accepted[key] = until
            histories += [one.since(reset) for one in _histories(key, case)]
        return Material(
            node=node, histories=histories, timeline=self._timeline[node], facts=self._facts,
            accepted_until=accepted,
        )  # fmt: skip

    def _decided(self, case: _Case) -> tuple[float, float]:
        """Return since when the history of a case counts, and until when it is accepted."""
        reset = accepted = float("-inf")
        labels = case.definition["labels"]
        for decision in self._decisions:
            if not decision.concerns(labels["scenario"], labels["workload"]):
                continue
            until = decision.until.timestamp()
            if decision.kind == "accept":
                accepted = max(accepted, until)
            else:
                # The run that was the newest one does not count any more either.
                reset = max(reset, until + 1e-6)
        return reset, accepted


def _histories(key: str, case: _Case) -> list[History]:
    labels, shared = case.definition["labels"], shared_labels(case.definition)
    name = f"{labels['scenario']}/{labels['workload']}"
    return [
        History(
            case=f"{key}|{direction}", of=key, name=name, figure=FIGURES[figure],
            labels=shared, direction=direction, points=tuple(points),
        )
        for (figure, direction), points in case.series.items()
    ]  # fmt: skip
