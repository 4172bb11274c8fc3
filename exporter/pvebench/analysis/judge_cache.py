"""Cache of the analysis: unchanged histories are not analyzed again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.changepoints import ChangePoint, LevelScan, Scanned
from pvebench.analysis.event_effects import (
    SHARED,
    EventShift,
    at_rung,
    judge_event,
    like_with_like,
    rungs_of,
    upheld,
)
from pvebench.analysis.gradual_change import Trend, slow_trend
from pvebench.analysis.partial_change import partial_change
from pvebench.analysis.performance_index import Levels, levels_by_environment
from pvebench.analysis.verdict import Verdict


@dataclass(slots=True)
class _Seen:
    """Cached scan of a history: its first run, number of runs, and the result."""

    first: float
    runs: int
    levelled: tuple[tuple[float, float], ...]
    found: Scanned


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of a scan: steps, oldest first, and a possible step."""

    steps: tuple[CaseStep, ...]
    doubt: CaseStep | None


class Memory:
    """Scans histories and judges events; repeats this only after new runs."""

    def __init__(self) -> None:
        self._scans: dict[tuple[str, str], _Seen] = {}
        # By rung: state of the histories, and the combined result of this and the lower rungs.
        self._events: dict[tuple[str, float, str], dict[int, tuple[object, EventShift]]] = {}
        self._trends: dict[tuple[object, ...], tuple[object, Trend | None]] = {}
        self._parts: dict[tuple[str, str], tuple[object, CaseStep | None]] = {}
        self._levels: dict[str, tuple[object, Levels]] = {}
        self._verdicts: dict[tuple[str, str], tuple[object, Verdict]] = {}

    def scan(self, history: CaseHistory) -> Moved:
        """Return the steps that are detected independently of events.

        After a few new runs, only the end of the history is scanned.
        """
        key = (history.figure.name, history.case)
        seen = self._scans.get(key)
        first, _ = _extent(history)
        state = first, history.levelled
        if seen is None or (seen.first, seen.levelled) != state or len(history.points) < seen.runs:
            found = LevelScan(history.logs(), history.times()).detect()
        elif seen.runs == len(history.points):
            found = seen.found
        else:
            scan = LevelScan(history.logs(), history.times())
            found = scan.detect(seen.found.steps, seen.runs)
        self._scans[key] = _Seen(first, len(history.points), history.levelled, found)
        return _moved(found, history)

    def trend(self, history: CaseHistory, least: int) -> Trend | None:
        """Return the trend of at least `least` latest runs of a history."""
        key = (history.figure.name, history.case, len(history.levelled))
        state = (_extent(history), history.levelled)
        known = self._trends.get(key)
        if known is None or known[0] != state:
            known = self._trends[key] = (state, slow_trend(history.logs(), least=least))
        return known[1]

    def part(self, history: CaseHistory, since: float) -> CaseStep | None:
        """Return a change of a part of the runs after the time `since`."""
        key = (history.figure.name, history.case)
        state = (_extent(history), history.levelled, since)
        known = self._parts.get(key)
        if known is None or known[0] != state:
            known = self._parts[key] = (state, partial_change(history, since))
        return known[1]

    def levels(self, history: CaseHistory) -> Levels:
        """Return the level of a case in each environment."""
        state = _extent(history)
        known = self._levels.get(history.case)
        if known is None or known[0] != state:
            known = self._levels[history.case] = (state, levels_by_environment(history))
        return known[1]

    def verdict(
        self, history: CaseHistory, known: object, conclude: Callable[[], Verdict]
    ) -> Verdict:
        """Return the verdict on a history; the cached one while its inputs are unchanged.

        Args:
            known: all other inputs of the verdict.
        """
        key, state = (history.figure.name, history.case), (_extent(history), known)
        kept = self._verdicts.get(key)
        if kept is None or kept[0] != state:
            kept = self._verdicts[key] = (state, conclude())
        return kept[1]

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
        if len(histories) < SHARED:
            histories = [like_with_like(history, at, until) for history in histories]
        rungs = rungs_of(histories, at, until)
        known = self._events.setdefault((node, at, histories[0].figure.name), {})
        states = {rung: (strictness, _rung_state(histories, at, rung)) for rung in rungs}
        same = [rung for rung in rungs if rung in known and known[rung][0] == states[rung]]
        result = known[same[-1]][1] if same else EventShift(groups=(), cases={})
        for rung in rungs[rungs.index(same[-1]) + 1 if same else 0 :]:
            cut = [at_rung(history, at, until, rung) for history in histories]
            result = upheld(result, judge_event(cut, at, until=math.inf, strictness=strictness))
            known[rung] = (states[rung], result)
        if until < math.inf:
            # An earlier event gets no new runs: only its last rung is needed.
            for rung in known.keys() - rungs[-1:]:
                del known[rung]
        return result


def _rung_state(histories: Sequence[CaseHistory], at: float, rung: int) -> object:
    """Return a key that changes with the histories up to a rung."""
    return tuple(
        (
            history.case,
            history.split(at),
            min(len(history.points), history.split(at) + rung),
            history.levelled,
        )
        for history in histories
    )


def _extent(history: CaseHistory) -> tuple[float, int]:
    """Return a key that changes with a history: its first run and the number of runs."""
    return history.points[0].time if history.points else 0.0, len(history.points)


def _moved(scanned: Scanned, history: CaseHistory) -> Moved:
    steps = tuple(_step(point, history) for point in scanned.steps)
    return Moved(steps, _step(scanned.doubt, history) if scanned.doubt else None)


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
        mode=point.mode,
    )
