"""Changes at unknown times of many histories, remembered so that a new run costs one look."""

from __future__ import annotations

from dataclasses import dataclass, field

from pvebench.analysis.detector import Step
from pvebench.analysis.scan import PlaceboScan
from pvebench.analysis.series import History
from pvebench.analysis.verdict import CaseStep

Key = tuple[str, str]


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
        return tuple(_at_time(step, history) for step in seen.steps)

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


def _at_time(step: Step, history: History) -> CaseStep:
    return CaseStep(
        time=history.points[step.index].time, known=False, effect=step.effect, low=step.low,
        high=step.high, p_value=step.p_value, runs=len(history.points) - step.index,
    )  # fmt: skip
