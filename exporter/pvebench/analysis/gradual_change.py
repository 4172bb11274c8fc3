"""Slow change: a level that creeps, too slowly for a scan whose level creeps along.

One line over many runs, judged among all cases of a figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.difference import critical, two_sided
from pvebench.analysis.group_effects import adjusted
from pvebench.analysis.levels import TINY, median

WINDOWS: Final = (80, 120, 160, 240, 320, 480, 640)
"""Newest runs that are looked at: a creep may have begun lately, or long ago."""
PARTS: Final = 16
"""Equal parts of a window, the level of each of which is looked at."""
DEGREES: Final = PARTS - 2
"""Degrees of freedom of a line through them."""
WANDER: Final = 4.0
"""How many times further a level that wanders by itself (a random walk) strays from where it
was than its scatter about a line tells; measured, see `bench/judging/creep.py`."""
CREEP_LEVEL: Final = 0.005
"""False discovery rate of creeps among the cases of a figure."""
LEAST_SECONDS: Final = 14 * 86400.0
"""Time that a creep must take: a part of a day or of a week looks like one."""
TIMES: Final = 2.0
"""Times a figure's least effect that a creep must come to: it is told to be acted upon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A level that creeps; logarithms, plus for better.

    Attributes:
        start: index of the first run of the window.
        runs: of the window.
        effect, low, high: change over the window and its 95 % interval.
        p_value: of a line as steep in a level that only wanders.
    """

    start: int
    runs: int
    effect: float
    low: float
    high: float
    p_value: float


TrendOf = Callable[[CaseHistory, int], Trend | None]


def slow_trend(values: Sequence[float] | Matrix, *, least: int = WINDOWS[0]) -> Trend | None:
    """Return the clearest creep of the newest runs; None if there are too few of them.

    A line through the medians of equal parts of a window, held against their scatter about
    it: whatever swings to and fro within the window pays for it. What a level that wanders
    would do by itself is paid for by `WANDER`. Half a swing looks like a creep all the same.

    Args:
        values: [runs], oldest first; known steps are levelled out.
        least: runs that a window must have.
    """
    row = np.asarray(values, dtype=float)
    sizes = [runs // PARTS for runs in WINDOWS if least <= runs <= len(row)]
    if not sizes:
        return None
    (slope, error), size = max(
        ((_line(row, size), size) for size in sizes), key=lambda one: abs(one[0][0] / one[0][1])
    )
    effect, reach = PARTS * slope, PARTS * critical(0.05, DEGREES) * error
    chance = float(two_sided(slope / error / WANDER, DEGREES))
    return Trend(
        start=len(row) - PARTS * size,
        runs=PARTS * size,
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=min(1.0, len(WINDOWS) * chance),
    )


def _line(values: Matrix, size: int) -> tuple[float, float]:
    """Return slope and error, a part, of the line through the newest parts of `size` runs each."""
    levels = median(values[len(values) - PARTS * size :].reshape(PARTS, size))
    place = np.arange(PARTS) - (PARTS - 1) / 2
    power = float(place @ place)
    slope = float(place @ levels) / power
    rest = levels - levels.mean() - slope * place
    return slope, max(math.sqrt(float(rest @ rest) / DEGREES / power), TINY)


def creeping(
    trend_of: TrendOf,
    histories: Sequence[CaseHistory],
    steps: Mapping[str, Sequence[CaseStep]],
    accepted_until: Mapping[str, float],
    *,
    strictness: float,
) -> dict[str, CaseStep]:
    """Return case -> its creep, where there is one beyond doubt.

    What has been accepted is no creep any more; one that goes on counts from there.

    Args:
        trend_of: returns the trend of a history's newest runs, at least so many of them.
        steps: case -> its confirmed steps.
        accepted_until: case -> time up to which its changes have been accepted.
        strictness: how many figures are judged beside this one.
    """
    found: dict[str, tuple[CaseHistory, Trend]] = {}
    for history in histories:
        recent = history.since(accepted_until.get(history.of, -math.inf))
        trend = _clearest(trend_of, recent, steps[history.case])
        if trend is not None:
            found[history.case] = recent, trend
    if not found:
        return {}
    p_values = [found[one.case][1].p_value if one.case in found else 1.0 for one in histories]
    q_values = adjusted(np.array(p_values))
    return {
        one.case: _step(*found[one.case])
        for one, q_value in zip(histories, q_values, strict=True)
        if one.case in found and q_value <= CREEP_LEVEL / strictness and _large(*found[one.case])
    }


def without_explained(steps: Sequence[CaseStep], creep: CaseStep | None) -> list[CaseStep]:
    """Return the steps but those that a creep is made of: where it began, the scan sees a step."""
    return [
        step
        for step in steps
        if creep is None or step.known or step.time < creep.time or step.effect * creep.effect < 0
    ]


def _clearest(trend_of: TrendOf, history: CaseHistory, steps: Sequence[CaseStep]) -> Trend | None:
    """Return the clearest trend, with the steps at unknown times as part of it or levelled out.

    A line fits so well only where no few steps would do as well: one step alone, however
    large, comes to a third of the score that a creep needs.
    """
    found = []
    for levelled in ([step for step in steps if step.known], steps):
        own = replace(history, levelled=tuple((step.time, step.effect) for step in levelled))
        trend = trend_of(own, _least(own))
        if trend is not None:
            found.append(trend)
        if len(levelled) == len(steps):
            break
    return min(found, key=lambda trend: trend.p_value, default=None)


def _least(history: CaseHistory) -> int:
    """Return how many of the newest runs take longer than `LEAST_SECONDS`."""
    if not history.points:
        return 0
    return 1 + len(history.points) - history.split(history.points[-1].time - LEAST_SECONDS)


def _large(history: CaseHistory, trend: Trend) -> bool:
    return abs(trend.effect) >= TIMES * history.figure.least_effect


def _step(history: CaseHistory, trend: Trend) -> CaseStep:
    return CaseStep(
        time=history.points[trend.start].time,
        known=False,
        slow=True,
        effect=trend.effect,
        low=trend.low,
        high=trend.high,
        p_value=trend.p_value,
        runs=trend.runs,
    )
