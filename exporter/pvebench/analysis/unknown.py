"""Changes at unknown times of many histories, remembered so that a new run costs one look."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pvebench.analysis.detector import Step
from pvebench.analysis.scan import PlaceboScan
from pvebench.analysis.series import History
from pvebench.analysis.verdict import CaseStep

Key = tuple[str, str]
MOST: Final = 40
"""Runs on each side of a step that tell its size."""


@dataclass(slots=True)
class _Seen:
    """What is known of a history: its first run, how many there were, what was found in them."""

    first: float
    runs: int
    levelled: tuple[tuple[float, float], ...]
    steps: list[Step] = field(default_factory=list)


class Scans:
    """Finds steps in histories; one more run than last time costs one look at its end."""

    def __init__(self, detector: PlaceboScan | None = None) -> None:
        self._detector = detector or PlaceboScan()
        self._seen: dict[Key, _Seen] = {}

    def steps(self, history: History) -> tuple[CaseStep, ...]:
        """Return the steps of a history, oldest first."""
        key = (history.figure.name, history.case)
        seen = self._seen.get(key)
        if seen is None or not self._grown(seen, history):
            seen = self._seen[key] = self._afresh(history)
        elif seen.runs < len(history.points):
            starts = [0, *(step.index for step in seen.steps)]
            step = self._detector.newest(history.logs(), starts)
            seen.steps += [] if step is None else [step]
            seen.runs += 1
        return _revised(seen.steps, history)

    def _grown(self, seen: _Seen, history: History) -> bool:
        """Tell whether the history is the one that was seen, with at most one run more."""
        return (
            bool(history.points)
            and history.points[0].time == seen.first
            and 0 <= len(history.points) - seen.runs <= 1
            and history.levelled == seen.levelled
        )

    def _afresh(self, history: History) -> _Seen:
        first = history.points[0].time if history.points else 0.0
        steps = list(self._detector.detect(history.logs()))
        return _Seen(first, len(history.points), history.levelled, steps)


def _revised(steps: Sequence[Step], history: History) -> tuple[CaseStep, ...]:
    """Return the steps with their size revised by the runs that have come since.

    A step is found after few runs; how large it is, is told better by all up to the next one.
    """
    logs = history.logs()
    borders = [0, *(step.index for step in steps), len(logs)]
    found = []
    for place, step in enumerate(steps, 1):
        before = logs[borders[place - 1] : step.index][-MOST:]
        after = logs[step.index : borders[place + 1]][:MOST]
        effect, reach = step.effect, (step.high - step.low) / 2
        if len(after) > step.runs and before:
            effect = statistics.median(after) - statistics.median(before)
            reach *= math.sqrt((1 / len(after) + 1 / MOST) / (1 / step.runs + 1 / MOST))
        found.append(
            CaseStep(
                time=history.points[step.index].time, known=False, effect=effect,
                low=effect - reach, high=effect + reach, p_value=step.p_value,
                runs=len(logs) - step.index,
            )
        )  # fmt: skip
    return tuple(found)
