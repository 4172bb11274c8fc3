"""Cases whose level creeps: one line over many runs, judged among all cases of a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.fleet import adjusted
from pvebench.analysis.memory import Memory
from pvebench.analysis.series import History
from pvebench.analysis.trend import Trend
from pvebench.analysis.verdict import CaseStep

LEVEL: Final = 0.005
"""False discovery rate of creeps among the cases of a figure."""
LEAST_SECONDS: Final = 14 * 86400.0
"""Time that a creep must take: a part of a day or of a week looks like one."""
TIMES: Final = 2.0
"""Times a figure's least effect that a creep must come to: it is told to be acted upon."""


def creeping(
    memory: Memory, histories: Sequence[History], steps: Mapping[str, Sequence[CaseStep]],
    accepted_until: Mapping[str, float], *, strictness: float,
) -> dict[str, CaseStep]:  # fmt: skip
    """Return case -> its creep, where there is one beyond doubt.

    What has been accepted is no creep any more; one that goes on counts from there.

    Args:
        steps: case -> its confirmed steps.
        accepted_until: case -> time up to which its changes have been accepted.
        strictness: how many figures are judged beside this one.
    """
    import numpy as np

    found: dict[str, tuple[History, Trend]] = {}
    for history in histories:
        recent = history.since(accepted_until.get(history.of, -math.inf))
        trend = _clearest(memory, recent, steps[history.case])
        if trend is not None:
            found[history.case] = recent, trend
    if not found:
        return {}
    p_values = [found[one.case][1].p_value if one.case in found else 1.0 for one in histories]
    q_values = adjusted(np.array(p_values))
    return {
        one.case: _step(*found[one.case])
        for one, q_value in zip(histories, q_values, strict=True)
        if one.case in found and q_value <= LEVEL / strictness and _large(*found[one.case])
    }


def without_explained(steps: Sequence[CaseStep], creep: CaseStep | None) -> list[CaseStep]:
    """Return the steps but those that a creep is made of: where it began, the scan sees a step."""
    return [
        step for step in steps
        if creep is None or step.known or step.time < creep.time or step.effect * creep.effect < 0
    ]  # fmt: skip


def _clearest(memory: Memory, history: History, steps: Sequence[CaseStep]) -> Trend | None:
    """Return the clearest trend, with the steps at unknown times as part of it or levelled out.

    A line fits so well only where no few steps would do as well: one step alone, however
    large, comes to a third of the score that a creep needs.
    """
    found = []
    for levelled in ([step for step in steps if step.known], steps):
        own = replace(history, levelled=tuple((step.time, step.effect) for step in levelled))
        trend = memory.trend(own, least=_least(own))
        if trend is not None:
            found.append(trend)
        if len(levelled) == len(steps):
            break
    return min(found, key=lambda trend: trend.p_value, default=None)


def _least(history: History) -> int:
    """Return how many of the newest runs take longer than `LEAST_SECONDS`."""
    if not history.points:
        return 0
    return 1 + len(history.points) - history.split(history.points[-1].time - LEAST_SECONDS)


def _large(history: History, trend: Trend) -> bool:
    return abs(trend.effect) >= TIMES * history.figure.least_effect


def _step(history: History, trend: Trend) -> CaseStep:
    return CaseStep(
        time=history.points[trend.start].time, known=False, slow=True, effect=trend.effect,
        low=trend.low, high=trend.high, p_value=trend.p_value, runs=trend.runs,
    )  # fmt: skip
