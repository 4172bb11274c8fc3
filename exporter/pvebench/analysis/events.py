"""Environment changes of a node, and which of several close ones may have caused a change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep, step_at
from pvebench.analysis.change import FactDifference, differences, incomparable
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY

# --- events: changes of a node's environment ---

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An environment change.

    Attributes:
        time: end of the first successful run after it, seconds since the epoch, UTC.
        before, after: facts on both sides.
        latest: time of the last one that was merged with it; 0: none was.
    """

    time: float
    before: Facts
    after: Facts
    latest: float = 0.0

    @property
    def differences(self) -> tuple[FactDifference, ...]:
        """Differences, the most relevant first."""
        return differences(self.before, self.after)


def environment_changes(
    timeline: Sequence[tuple[float, str]], facts: Mapping[str, Facts]
) -> list[Event]:
    """Return the changes of environment between successful runs, oldest first.

    Args:
        timeline: (end, environment's digest) of a node's successful runs, oldest first: at least
            the first of every environment period.
        facts: digest -> facts.
    """
    return [
        Event(time=time, before=facts.get(old, {}), after=facts.get(new, {}))
        for (_, old), (time, new) in itertools.pairwise(timeline)
        if old != new
    ]


def merged(events: Sequence[Event], rounds: Sequence[float], *, least: int = 2) -> list[Event]:
    """Merge events with fewer than `least` cycles between them.

    No measurement can separate two packages that were upgraded within the same cycle.

    Args:
        rounds: times of the runs of the case with the most runs.
    """
    separate: list[Event] = []
    for event in events:
        last = separate[-1] if separate else None
        if last is not None and sum(last.time <= at < event.time for at in rounds) < least:
            separate[-1] = replace(last, after=event.after, latest=event.time)
        else:
            separate.append(event)
    return [event for event in separate if event.before != event.after]


def comparable_since(events: Sequence[Event]) -> tuple[float, str]:
    """Return the start of comparable results, and the reason; empty if all are comparable."""
    for event in reversed(events):
        apart = incomparable(event.before, event.after)
        if apart:
            changes = ", ".join(f"{item.before or '?'} -> {item.after or '?'}" for item in apart)
            return event.time, f"different hardware: {changes}"
    return float("-inf"), ""


# --- events that may have caused a change ---

CLOSE: Final = 20
"""Maximum runs between two events that can be confused."""
SIDE: Final = 40
"""Runs of a level before and after the events."""
LIKELY: Final = 4.6
"""Logarithm of the odds (100:1) from which a less likely event is excluded."""
DATED: Final = 3.0
"""Logarithm of the odds (20:1) from which an effect began before or after an event."""
FARTHEST: Final = 3.0
"""Limit of a single run's distance from a level in scales, so that one glitch is not decisive."""

EARLIER: Final = 40
"""Maximum runs before an event at which its apparent effect may have begun."""
LATER: Final = 20
"""The same after an event."""

LEAST_OTHERS: Final = 3
"""Minimum cases that show what the host shares."""

Moved = tuple[CaseHistory, CaseStep, Sequence[CaseStep]]
"""A history, the step in question, and all steps of that history."""


def came_with(
    moved: Sequence[Moved], event: Event, changes: Sequence[Event]
) -> tuple[list[Event], int]:
    """Return the events that may have caused an effect, and the runs between first and last.

    Args:
        moved: cases of one metric that shifted together.
        event: that the effect is attributed to; possibly a merged one.
        changes: all changes of the environment, oldest first.
    """
    levelled = [
        history.without(other_step for other_step in steps if other_step is not step)
        for history, step, steps in moved
    ]
    near = [change for change in changes if _is_near(change, event, levelled)]
    if len(near) < 2:
        return [event], 0
    odds = _odds(levelled, [change.time for change in near])
    likely = [change for change, own in zip(near, odds, strict=True) if own > max(odds) - LIKELY]
    first, last = likely[0].time, likely[-1].time
    return likely, max(history.runs_between(first, last) for history in levelled)


def began(
    histories: Sequence[CaseHistory], event: Event, others: Sequence[CaseHistory] = ()
) -> float:
    """Return when the apparent effect of an event began, as the runs around it show.

    Args:
        histories: cases of one metric that shifted together, with other steps leveled out.
        others: cases that did not shift, to show what the host shares.
    """
    at = event.time
    clock = max(histories, key=lambda history: history.split(at))
    place = clock.split(at)
    if place < LEAST_BASELINE or not any(history.runs_since(at) for history in histories):
        return at
    # The other half of the runs shows the level after it.
    latest = place + min(LATER, (len(clock.points) - place) // 2)
    times = [*clock.times()[max(LEAST_BASELINE, place - EARLIER) : place], at]
    before = len(times) - 1
    times += clock.times()[place + 1 : latest + 1]
    odds = _odds(histories, times, others)
    best = int(np.argmax(odds))
    apart = odds[before] < odds[best] - DATED and not at < times[best] <= event.latest
    return times[best] if apart else at


def early_step(history: CaseHistory, time: float) -> CaseStep:
    """Return the step of a case at a time that is not that of an event."""
    logs, place = history.logs(), history.split(time)
    before, after = logs[max(0, place - SIDE) : place], logs[place : place + SIDE]
    effect = float(np.median(after) - np.median(before)) if len(before) and len(after) else 0.0
    return step_at(history, time, effect)


def _is_near(change: Event, event: Event, histories: Sequence[CaseHistory]) -> bool:
    """Return whether a change is close to an event, with runs of a case on both sides."""
    return any(
        history.runs_between(change.time, event.time) <= CLOSE
        and LEAST_BASELINE <= history.split(change.time) < len(history.points)
        for history in histories
    )


def _odds(
    histories: Sequence[CaseHistory], times: Sequence[float], others: Sequence[CaseHistory] = ()
) -> Matrix:
    """Return the log-likelihood of a step at each of the times, oldest first."""
    # A cycle begins at each run of the case with the most, or at one of the times instead.
    clock = max(histories, key=lambda history: history.split(times[0]))
    places = np.array([clock.split(time) for time in times])
    begin = max(0, int(places[0]) - SIDE)
    cycles = np.array(clock.times()[begin : places[-1] + SIDE])
    inside = places - begin < len(cycles)
    cycles[(places - begin)[inside]] = np.array(times)[inside]
    until = next(iter(clock.times()[places[-1] + SIDE :]), math.inf)
    runs = _pooled(histories, cycles, until, times[0])
    if len(others) >= LEAST_OTHERS:
        host = _pooled(others, cycles, until, times[0])
        runs = np.where(np.isnan(host), runs, runs - host)
    borders = np.searchsorted(cycles, times)
    early, late = runs[: borders[0]], runs[borders[-1] :]
    level, later = (float(np.nanmedian(part)) if len(part) else 0.0 for part in (early, late))
    # A few runs may be close together by chance.
    usual = MAD_TO_SIGMA * float(np.nanmedian(np.abs(early - level)))
    # A run counts for the nearer level, also where both are farther away than noise takes it.
    scale = max((1 + 2 / len(early)) * max(TINY, usual), abs(later - level) / (2 * FARTHEST))
    before, after = (
        np.append(0.0, np.nancumsum(np.clip((runs - part) / scale, -FARTHEST, FARTHEST) ** 2)) / 2
        for part in (level, later)
    )
    odds: Matrix = after[borders] - after[-1] - before[borders]
    return odds


def _pooled(histories: Sequence[CaseHistory], cycles: Matrix, until: float, first: float) -> Matrix:
    """Return the median of the cases at each cycle, relative to their levels before a time.

    Common noise of a cycle counts once; NaN: no case has a run.
    """
    table = np.full((len(histories), len(cycles)), np.nan)
    for row, history in zip(table, histories, strict=True):
        begin, split, end = map(history.split, (cycles[0], first, until))
        if split >= LEAST_BASELINE:
            logs = history.logs()
            at = np.searchsorted(cycles, history.times()[begin:end], side="right") - 1
            row[at] = logs[begin:end] - np.median(logs[max(0, split - SIDE) : split])
    # As `nanmedian`, which takes ten times as long for few rows: NaN is sorted to the end.
    table.sort(axis=0)
    counts = np.count_nonzero(~np.isnan(table), axis=0)
    every = np.arange(len(cycles))
    found: Matrix = (table[(counts - 1) // 2, every] + table[counts // 2, every]) / 2
    return found
