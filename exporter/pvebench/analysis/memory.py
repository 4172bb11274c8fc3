"""Answers that are remembered: what has not changed since last time is not judged anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.known_times.event_shift import (
    EventShift,
    at_rung,
    judge_event,
    like_with_like,
    rungs_of,
    upheld,
)
from pvebench.analysis.levels.performance_index import Levels, levels_by_environment
from pvebench.analysis.slow_change import Trend, slow_trend
from pvebench.analysis.unknown_times import ChangePoint, LevelScan, Scanned
from pvebench.analysis.verdict import Verdict


@dataclass(slots=True)
class _Seen:
    """What is known of a history: its first run, how many there were, what was found in them."""

    first: float
    runs: int
    levelled: tuple[tuple[float, float], ...]
    found: Scanned


@dataclass(frozen=True, slots=True)
class Moved:
    """What a history shows of itself: steps, oldest first, and what may become one."""

    steps: tuple[CaseStep, ...]
    doubt: CaseStep | None


class Memory:
    """Scans histories and judges events; asks again only where runs have been added."""

    def __init__(self) -> None:
        self._scans: dict[tuple[str, str], _Seen] = {}
        # By rung: what it was judged by, and what was found there and at the rungs below.
        self._events: dict[tuple[str, float, str], dict[int, tuple[object, EventShift]]] = {}
        self._trends: dict[tuple[object, ...], tuple[object, Trend | None]] = {}
        self._levels: dict[str, tuple[object, Levels]] = {}
        self._verdicts: dict[tuple[str, str], tuple[object, Verdict]] = {}

    def scan(self, history: CaseHistory) -> Moved:
        """Return the steps that are found without knowing of events.

        A few more runs than last time cost a look at the history's end.
        """
        key = (history.figure.name, history.case)
        seen = self._scans.get(key)
        first, _ = _extent(history)
        if (
            seen is None
            or (seen.first, seen.levelled) != (first, history.levelled)
            or len(history.points) < seen.runs
        ):
            found = LevelScan(history.logs(), history.times()).detect()
        elif seen.runs == len(history.points):
            found = seen.found
        else:
            scan = LevelScan(history.logs(), history.times())
            found = scan.newest(seen.found.steps, seen.runs)
        self._scans[key] = _Seen(first, len(history.points), history.levelled, found)
        return _moved(found, history)

    def trend(self, history: CaseHistory, least: int) -> Trend | None:
        """Return the slow trend of a history's newest runs, at least `least` of them."""
        key = (history.figure.name, history.case, len(history.levelled))
        state = (_extent(history), history.levelled)
        known = self._trends.get(key)
        if known is None or known[0] != state:
            known = self._trends[key] = (state, slow_trend(history.logs(), least=least))
        return known[1]

    def levels(self, history: CaseHistory) -> Levels:
        """Return what a case reached in each environment."""
        state = _extent(history)
        known = self._levels.get(history.case)
        if known is None or known[0] != state:
            known = self._levels[history.case] = (state, levels_by_environment(history))
        return known[1]

    def verdict(
        self, history: CaseHistory, known: object, conclude: Callable[[], Verdict]
    ) -> Verdict:
        """Return the verdict on a history; that of last time while neither has changed.

        Args:
            known: all that it follows from beside the runs.
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
        """Return what an event did; the answer of last time while no run has been added."""
        histories = [like_with_like(history, at, until) for history in histories]
        rungs = rungs_of(histories, at, until)
        known = self._events.setdefault((node, at, histories[0].figure.name), {})
        states = {rung: (strictness, _rung_state(histories, at, rung)) for rung in rungs}
        same = [rung for rung in rungs if rung in known and known[rung][0] == states[rung]]
        found = known[same[-1]][1] if same else EventShift(groups=(), cases={})
        for rung in rungs[rungs.index(same[-1]) + 1 if same else 0 :]:
            cut = [at_rung(history, at, until, rung) for history in histories]
            found = upheld(found, judge_event(cut, at, until=math.inf, strictness=strictness))
            known[rung] = (states[rung], found)
        if until < math.inf:
            # No runs are added to an earlier event: its last rung is all that is asked for.
            for rung in known.keys() - rungs[-1:]:
                del known[rung]
        return found


def _rung_state(histories: Sequence[CaseHistory], at: float, rung: int) -> object:
    """Return what tells whether the histories up to a rung, or a lower one, have changed."""
    return tuple(
        (one.case, one.split(at), min(len(one.points), one.split(at) + rung), one.levelled)
        for one in histories
    )


def _extent(history: CaseHistory) -> tuple[float, int]:
    """Return what tells whether a history has changed: its first run, and how many there are."""
    return history.points[0].time if history.points else 0.0, len(history.points)


def _moved(found: Scanned, history: CaseHistory) -> Moved:
    steps = tuple(_step(one, history) for one in found.steps)
    return Moved(steps, _step(found.doubt, history) if found.doubt else None)


def _step(found: ChangePoint, history: CaseHistory) -> CaseStep:
    # How large it is, is told later by all runs around it.
    return CaseStep(
        time=history.points[found.index].time,
        known=False,
        effect=found.effect,
        low=found.effect,
        high=found.effect,
        p_value=found.p_value,
        runs=len(history.points) - found.index,
        mode=found.mode,
    )
