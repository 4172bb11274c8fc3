"""What may have moved a level that moved at an unknown time: what happened near it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pvebench.analysis.placebo import LEAST


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that may have moved a level: at `time` (seconds since the epoch, UTC)."""

    time: float
    kind: Literal["environment", "configuration", "gap"]
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A happening near a change. `runs` counts from the change to it; 0: exactly there."""

    happening: Happening
    runs: int


def gaps(times: Sequence[float], *, factor: float = 5.0) -> tuple[Happening, ...]:
    """Return pauses `factor` times as long as usual: something may have happened meanwhile."""
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) < LEAST:
        return ()
    usual = statistics.median(pauses)
    return tuple(
        Happening(times[index + 1], "gap", f"no run for {pause / 3600:.0f} h")
        for index, pause in enumerate(pauses)
        if pause > factor * usual and usual > 0
    )


def candidates(
    times: Sequence[float], index: int, happenings: Sequence[Happening], *, within: int = 5
) -> tuple[Candidate, ...]:
    """Return the happenings at most `within` runs from the change at `index`, nearest first.

    An environment change comes before a configuration change and a gap at the same distance.
    """
    order = ("environment", "configuration", "gap")
    near = []
    for happening in happenings:
        place = sum(time < happening.time for time in times)
        if abs(place - index) <= within:
            near.append(Candidate(happening, place - index))
    near.sort(key=lambda one: (abs(one.runs), order.index(one.happening.kind)))
    return tuple(near)
