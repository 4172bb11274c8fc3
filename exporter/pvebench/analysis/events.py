"""Environment changes of a node, and which of several close ones may have caused a change."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep
from pvebench.analysis.change import Difference, differences, incomparable
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
    def differences(self) -> tuple[Difference, ...]:
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


@dataclass(frozen=True, slots=True)
class CameWith:
    """Events that may have caused a change.

    Attributes:
        events: oldest first; never empty.
        runs: runs between the first and the last of them, of the case with the most.
    """

    events: tuple[Event, ...]
    runs: int


def came_with(moved: Sequence[Moved], event: Event, changes: Sequence[Event]) -> CameWith:
    """Return which of the events near `event` may have caused the effect attributed to it.

    Args:
        moved: cases of one metric that shifted together.
        event: the event of the step; possibly a merged one.
        changes: all changes of the environment, oldest first.
    """
    levelled = [
        history.without(other_step for other_step in steps if other_step is not step)
        for history, step, steps in moved
    ]
    near = [change for change in changes if _is_near(change, event, levelled)]
    if len(near) < 2:
        return CameWith((event,), 0)
    times = [change.time for change in near]
    odds = _odds([item for item in levelled if item.split(times[0]) >= LEAST_BASELINE], times)
    likely = tuple(
        change for change, own in zip(near, odds, strict=True) if own > max(odds) - LIKELY
    )
    first, last = likely[0].time, likely[-1].time
    return CameWith(likely, max(history.runs_between(first, last) for history in levelled))


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
    # The other half of the runs shows the level after it.
    latest = place + min(LATER, (len(clock.points) - place) // 2)
    times = [*clock.times()[max(LEAST_BASELINE, place - EARLIER) : place], at]
    before = len(times) - 1
    times += clock.times()[place + 1 : latest + 1]
    able = [history for history in histories if history.split(times[0]) >= LEAST_BASELINE]
    if not any(history.split(at) < len(history.points) for history in able):
        return at
    odds = _odds(
        able,
        times,
        [case_history for case_history in others if case_history.split(times[0]) >= LEAST_BASELINE],
    )
    best = max(range(len(times)), key=odds.__getitem__)
    apart = odds[before] < odds[best] - DATED and not at < times[best] <= event.latest
    return times[best] if apart else at


def early_step(history: CaseHistory, time: float) -> CaseStep:
    """Return the step of a case at a time that is not that of an event."""
    logs, place = history.logs(), history.split(time)
    before, after = logs[max(0, place - SIDE) : place], logs[place : place + SIDE]
    effect = float(np.median(after) - np.median(before)) if len(before) and len(after) else 0.0
    return CaseStep(
        time=time, known=False, effect=effect, low=effect, high=effect, p_value=0.0, runs=len(after)
    )


def _is_near(change: Event, event: Event, histories: Sequence[CaseHistory]) -> bool:
    """Return whether a change is close to an event, with runs of a case on both sides."""
    return any(
        history.runs_between(change.time, event.time) <= CLOSE
        and LEAST_BASELINE <= history.split(change.time) < len(history.points)
        for history in histories
    )


def _odds(
    histories: Sequence[CaseHistory], times: Sequence[float], others: Sequence[CaseHistory] = ()
) -> list[float]:
    """Return the log-likelihood of a step at each of the times."""
    parts = _parts(histories, times)
    if len(others) >= LEAST_OTHERS:
        shared = _parts(others, times)
        parts = [
            own - host if len(own) == len(host) else own
            for own, host in zip(parts, shared, strict=True)
        ]
    level = float(np.median(parts[0]))
    away = np.abs(parts[0] - level)
    # A few runs may be close together by chance.
    scale = (1 + 2 / len(away)) * max(TINY, MAD_TO_SIGMA * float(np.median(away)))
    later = float(np.median(parts[-1]))
    # A run counts for the nearer level, also where both are farther away than noise takes it.
    scale = max(scale, abs(later - level) / (2 * FARTHEST))
    before, after = ([_fit(part, where, scale) for part in parts] for where in (level, later))
    return [sum(before[: number + 1]) + sum(after[number + 1 :]) for number in range(len(times))]


def _parts(histories: Sequence[CaseHistory], times: Sequence[float]) -> list[Matrix]:
    """Return the pooled runs before, between and after the times."""
    borders = [-np.inf, *times, np.inf]
    return [
        _pooled([_between(history, times[0], *ends) for history in histories], newest=not number)
        for number, ends in enumerate(itertools.pairwise(borders))
    ]


def _between(history: CaseHistory, first: float, begin: float, end: float) -> Matrix:
    """Return the runs between two times relative to the level before the first event."""
    logs, split = np.array(history.logs()), history.split(first)
    level = np.median(logs[max(0, split - SIDE) : split])
    found: Matrix = logs[history.split(begin) : history.split(end)] - level
    return found[-SIDE:] if end == first else found[:SIDE]


def _pooled(rows: Sequence[Matrix], *, newest: bool) -> Matrix:
    """Return one value per cycle, the median of the cases, so that common noise counts once."""
    longest = max(len(row) for row in rows)
    table = np.full((len(rows), longest), np.nan)
    for place, row in enumerate(rows):
        table[place, longest - len(row) if newest else 0 :][: len(row)] = row
    # As `nanmedian`, which takes ten times as long for few rows: NaN is sorted to the end.
    table.sort(axis=0)
    counts = np.count_nonzero(~np.isnan(table), axis=0)
    known = np.flatnonzero(counts)
    middle = counts[known]
    found: Matrix = (table[(middle - 1) // 2, known] + table[middle // 2, known]) / 2
    return found


def _fit(runs: Matrix, level: float, scale: float) -> float:
    return float(-np.sum(np.clip((runs - level) / scale, -FARTHEST, FARTHEST) ** 2) / 2)
