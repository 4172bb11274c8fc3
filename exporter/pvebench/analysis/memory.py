"""Answers that are remembered: what has not changed since last time is not judged anew."""

from __future__ import annotations

from collections.abc import Sequence

from pvebench.analysis.event import EventShift, judge_event
from pvebench.analysis.series import History
from pvebench.analysis.trend import Trend, slow_trend
from pvebench.analysis.unknown import Scans
from pvebench.analysis.verdict import CaseStep


class Memory:
    """Scans histories and judges events; asks again only where runs have been added."""

    def __init__(self) -> None:
        self._scans = Scans()
        self._events: dict[tuple[str, str, float], tuple[object, EventShift]] = {}
        self._trends: dict[tuple[object, ...], tuple[object, Trend | None]] = {}

    def scan(self, history: History) -> tuple[CaseStep, ...]:
        """Return the steps that are found without knowing of events."""
        return self._scans.steps(history)

    def trend(self, history: History, *, least: int) -> Trend | None:
        """Return the slow trend of a history's newest runs, at least `least` of them."""
        first = history.points[0].time if history.points else 0.0
        key = (history.figure.name, history.case, len(history.levelled))
        state = (first, len(history.points), history.levelled)
        known = self._trends.get(key)
        if known is None or known[0] != state:
            known = self._trends[key] = (state, slow_trend(history.logs(), least=least))
        return known[1]

    def event(
        self, node: str, histories: Sequence[History], at: float, *, until: float, strictness: float
    ) -> EventShift:
        """Return what an event did; the answer of last time while no run has been added."""
        state = (
            until, strictness,
            tuple((one.case, one.split(at), one.split(until), one.levelled) for one in histories),
        )  # fmt: skip
        key = (node, histories[0].figure.name, at)
        known = self._events.get(key)
        if known is None or known[0] != state:
            shift = judge_event(histories, at, until=until, strictness=strictness)
            known = self._events[key] = (state, shift)
        return known[1]
