"""Events: the moments at which the environment of a node changed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pvebench.analysis.causes import Difference, differences, incomparable

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
