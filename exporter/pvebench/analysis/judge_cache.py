"""Cache of the analysis: unchanged histories are not analyzed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.changepoints import ChangePoint, Scanned, scan
from pvebench.analysis.event_effects import around, judge_event
from pvebench.analysis.gradual_change import slow_trend
from pvebench.analysis.group_effects import EventShift
from pvebench.analysis.partial_change import partial_change
from pvebench.analysis.performance_index import Levels, levels_by_environment

T = TypeVar("T")


class Memory:
    """Scans histories and judges events; repeats this only after new runs."""

    def __init__(self) -> None:
        self._results: dict[object, tuple[object, Any]] = {}

    def scan(self, history: CaseHistory) -> tuple[list[CaseStep], list[CaseStep]]:
        """Return the steps that are detected independently of events, and a possible one."""

        def work() -> Scanned:
            return scan(history.logs(), history.times())

        scanned = self.kept("scan", history, history.levelled, work)
        steps = [_step(step, history) for step in scanned.steps]
        return steps, [_step(scanned.doubt, history)] if scanned.doubt else []

    def kept(self, kind: str, history: CaseHistory, known: object, work: Callable[[], T]) -> T:
        """Return what `work` returns about a history; the cached one while its inputs are the same.

        Args:
            kind: of the result.
            known: all inputs of the result but the history.
        """
        key, state = (kind, history.figure.name, history.case), (_extent(history), known)
        return self._same(key, state, work)

    def trend(self, history: CaseHistory, least: int) -> CaseStep | None:
        """Return the trend of at least `least` latest runs of a history."""

        def work() -> CaseStep | None:
            return slow_trend(history.logs(), history.times(), least=least)

        return self.kept(f"trend {len(history.levelled)}", history, history.levelled, work)

    def part(self, history: CaseHistory, since: float) -> CaseStep | None:
        """Return a change of a part of the runs after the time `since`."""
        known = history.levelled, since
        return self.kept("part", history, known, lambda: partial_change(history, since))

    def levels(self, history: CaseHistory) -> Levels:
        """Return the level of a case in each environment."""
        return self.kept("levels", history, None, lambda: levels_by_environment(history))

    def event(
        self,
        node: str,
        histories: Sequence[CaseHistory],
        at: float,
        *,
        until: float,
        strictness: float,
    ) -> EventShift:
        """Return the effect of an event; the cached one while there are no new runs."""
        cut = around(histories, at, until)
        state = strictness, [(_extent(history), history.case, history.levelled) for history in cut]

        def work() -> EventShift:
            return judge_event(cut, at, strictness=strictness)

        return self._same(("event", node, at, histories[0].figure.name), state, work)

    def _same(self, key: object, state: object, work: Callable[[], T]) -> T:
        found: tuple[object, T] | None = self._results.get(key)
        if found is None or found[0] != state:
            found = self._results[key] = (state, work())
        return found[1]


def _extent(history: CaseHistory) -> tuple[float, int]:
    """Return a key that changes with a history: its first run and the number of runs."""
    return history.points[0].time if history.points else 0.0, len(history.points)


def _step(point: ChangePoint, history: CaseHistory) -> CaseStep:
    # Its size is estimated later from all runs around it.
    return CaseStep(
        time=history.points[point.index].time,
        known=False,
        effect=point.effect,
        low=point.effect,
        high=point.effect,
        p_value=point.p_value,
        runs=len(history.points) - point.index,
    )
