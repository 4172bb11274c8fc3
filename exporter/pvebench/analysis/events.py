"""Events close together: which of them a change came with, as far as the runs between them tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep
from pvebench.analysis.change import Difference, differences, incomparable
from pvebench.analysis.levels import MAD_TO_SIGMA, TINY

# --- Events: the moments at which the environment of a node changed.

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An environment change.

    Attributes:
        time: end of the first good run after it, seconds since the epoch, UTC.
        before, after: facts on both sides.
    """

    time: float
    before: Facts
    after: Facts

    @property
    def differences(self) -> tuple[Difference, ...]:
        """What differs, the likeliest to matter first."""
        return differences(self.before, self.after)


def environment_changes(
    timeline: Sequence[tuple[float, str]], facts: Mapping[str, Facts]
) -> list[Event]:
    """Return the changes of environment between good runs, oldest first.

    Args:
        timeline: (end, environment's digest) of a node's good runs, oldest first: at least the
            first of every stretch in one environment.
        facts: digest -> facts.
    """
    return [
        Event(time=time, before=facts.get(old, {}), after=facts.get(new, {}))
        for (_, old), (time, new) in itertools.pairwise(timeline)
        if old != new
    ]


def merged(events: Sequence[Event], rounds: Sequence[float], *, least: int = 2) -> list[Event]:
    """Return the events with those made one that have fewer than `least` rounds between them.

    Two packages upgraded within the same round cannot be told apart by any measurement.

    Args:
        rounds: times of the runs of the case that has the most of them.
    """
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if last is not None and sum(last.time <= at < event.time for at in rounds) < least:
            found[-1] = Event(time=last.time, before=last.before, after=event.after)
        else:
            found.append(event)
    return [event for event in found if event.before != event.after]


def comparable_since(events: Sequence[Event]) -> tuple[float, str]:
    """Return since when the present numbers compare, and what ended it before; "" if nothing."""
    for event in reversed(events):
        apart = incomparable(event.before, event.after)
        if apart:
            what = ", ".join(f"{one.before or '?'} -> {one.after or '?'}" for one in apart)
            return event.time, f"another machine: {what}"
    return float("-inf"), ""


CLOSE: Final = 20
"""Runs between two events beyond which nobody takes the one for the other."""
SIDE: Final = 40
"""Runs that a level is taken from, before the events and after them."""
LIKELY: Final = 4.6
"""Logarithm of the odds, a hundred to one, by which the runs must speak for one event."""
FARTHEST: Final = 3.0
"""Scales from a level that a single run counts at most: one glitch decides nothing."""

Moved = tuple[CaseHistory, CaseStep, Sequence[CaseStep]]
"""A history, the step in question, and all steps of that history."""


@dataclass(frozen=True, slots=True)
class CameWith:
    """The events that a change may have come with.

    Attributes:
        events: oldest first; never empty.
        runs: between the first and the last of them, of the case that has the most.
    """

    events: tuple[Event, ...]
    runs: int


def came_with(moved: Sequence[Moved], event: Event, changes: Sequence[Event]) -> CameWith:
    """Return which of the events close to one may have brought what was taken for its effect.

    Args:
        moved: cases that moved together, of one figure.
        event: that the step is told with; it may be several that were made one.
        changes: all changes of the environment, oldest first.
    """
    levelled = [_levelled(*one) for one in moved]
    near = [change for change in changes if _is_near(change, event, levelled)]
    if len(near) < 2:
        return CameWith((event,), 0)
    times = [change.time for change in near]
    odds = _odds([one for one in levelled if one.split(times[0]) >= LEAST_BASELINE], times)
    likely = tuple(
        change for change, own in zip(near, odds, strict=True) if own > max(odds) - LIKELY
    )
    first, last = likely[0].time, likely[-1].time
    return CameWith(likely, max(one.runs_between(first, last) for one in levelled))


def _levelled(history: CaseHistory, step: CaseStep, steps: Sequence[CaseStep]) -> CaseHistory:
    others = tuple((one.time, one.effect) for one in steps if one is not step)
    return replace(history, levelled=others)


def _is_near(change: Event, event: Event, histories: Sequence[CaseHistory]) -> bool:
    """Tell whether a change lies close to an event, with runs of a case on both sides."""
    return any(
        one.runs_between(change.time, event.time) <= CLOSE
        and LEAST_BASELINE <= one.split(change.time) < len(one.points)
        for one in histories
    )


def _odds(histories: Sequence[CaseHistory], times: Sequence[float]) -> list[float]:
    """Return the logarithm of how well the runs fit a step at each of the times."""
    borders = [-np.inf, *times, np.inf]
    parts = [
        _pooled([_between(one, times[0], *ends) for one in histories], newest=not number)
        for number, ends in enumerate(itertools.pairwise(borders))
    ]
    level = float(np.median(parts[0]))
    away = np.abs(parts[0] - level)
    # Few runs may lie close together by chance.
    scale = (1 + 2 / len(away)) * max(TINY, MAD_TO_SIGMA * float(np.median(away)))
    later = float(np.median(parts[-1]))
    before, after = ([_fit(part, where, scale) for part in parts] for where in (level, later))
    return [sum(before[: number + 1]) + sum(after[number + 1 :]) for number in range(len(times))]


def _between(history: CaseHistory, first: float, begin: float, end: float) -> Matrix:
    """Return the runs between two times, held against the level before the first event."""
    logs, split = np.array(history.logs()), history.split(first)
    level = np.median(logs[max(0, split - SIDE) : split])
    found: Matrix = logs[history.split(begin) : history.split(end)] - level
    return found[-SIDE:] if end == first else found[:SIDE]


def _pooled(rows: Sequence[Matrix], *, newest: bool) -> Matrix:
    """Return one value a round, the median of the cases: what the host shares counts once."""
    longest = max(len(row) for row in rows)
    table = np.full((len(rows), longest), np.nan)
    for place, row in enumerate(rows):
        table[place, longest - len(row) if newest else 0 :][: len(row)] = row
    found: Matrix = np.nanmedian(table, axis=0)
    return found[~np.isnan(found)]


def _fit(runs: Matrix, level: float, scale: float) -> float:
    return float(-np.sum(np.clip((runs - level) / scale, -FARTHEST, FARTHEST) ** 2) / 2)
