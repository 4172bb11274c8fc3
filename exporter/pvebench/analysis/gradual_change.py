"""Gradual changes, too slow for the scan, whose reference level follows them.

One line is fitted over many runs, with a false discovery rate over all cases of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import CaseHistory, CaseStep
from pvebench.analysis.difference import critical, two_sided
from pvebench.analysis.group_effects import adjusted
from pvebench.analysis.levels import TINY, median
from pvebench.model.units import DAY

WINDOWS: Final = (80, 120, 160, 240, 320, 480, 640)
"""Numbers of latest runs to examine: a gradual change may have begun recently or long ago."""
PARTS: Final = 16
"""Equal parts of a window, with one level each."""
DEGREES: Final = PARTS - 2
"""Degrees of freedom of a line through the levels."""
WANDER: Final = 4.0
"""Factor by which a random walk moves further than its scatter about a line suggests; measured."""
CREEP_LEVEL: Final = 0.005
"""False discovery rate of gradual changes among the cases of a metric."""
LEAST_SECONDS: Final = 14 * DAY
"""Minimum duration of a gradual change: a part of a day or week looks like one."""
TIMES: Final = 2.0
"""Minimum size of a gradual change as a multiple of the metric's least effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A gradual change; logarithms, positive is better.

    Attributes:
        start: index of the first run of the window.
        runs: number of runs in the window.
        effect, low, high: change over the window and its 95% confidence interval.
        p_value: probability of an equally steep line in a random walk.
    """

    start: int
    runs: int
    effect: float
    low: float
    high: float
    p_value: float


TrendOf = Callable[[CaseHistory, int], Trend | None]


def slow_trend(values: Sequence[float] | Matrix, *, least: int = WINDOWS[0]) -> Trend | None:
    """Return the most significant trend of the latest runs; None if there are too few of them.

    A line is fitted through the medians of equal parts of a window and compared with their scatter
    about it, so that oscillations within the window are noise. `WANDER` accounts for a random
    walk. Half an oscillation still looks like a gradual change.

    Args:
        values: [runs], oldest first; known steps are leveled out.
        least: minimum runs of a window.
    """
    row = np.asarray(values, dtype=float)
    sizes = [runs // PARTS for runs in WINDOWS if least <= runs <= len(row)]
    if not sizes:
        return None
    (slope, error), size = max(
        ((_line(row, size), size) for size in sizes), key=lambda line: abs(line[0][0] / line[0][1])
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
    """Return slope and error per part of a line through the latest parts of `size` runs each."""
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
    """Return case -> its confirmed gradual change.

    An accepted gradual change is ignored; one that continues counts from there.

    Args:
        trend_of: returns the trend of a minimum number of latest runs of a history.
        steps: case -> its confirmed steps.
        accepted_until: case -> time up to which its changes are accepted.
        strictness: number of metrics that are judged.
    """
    trends: dict[str, tuple[CaseHistory, Trend]] = {}
    for history in histories:
        recent = history.since(accepted_until.get(history.of, -math.inf))
        trend = _clearest(trend_of, recent, steps[history.case])
        if trend is not None:
            trends[history.case] = recent, trend
    if not trends:
        return {}
    p_values = [
        trends[history.case][1].p_value if history.case in trends else 1.0 for history in histories
    ]
    q_values = adjusted(np.array(p_values))
    return {
        history.case: _step(*trends[history.case])
        for history, q_value in zip(histories, q_values, strict=True)
        if history.case in trends
        and q_value <= CREEP_LEVEL / strictness
        and _large(*trends[history.case])
    }


def without_explained(steps: Sequence[CaseStep], creep: CaseStep | None) -> list[CaseStep]:
    """Return the steps without those that are part of a gradual change."""
    return [
        step
        for step in steps
        if creep is None or step.known or step.time < creep.time or step.effect * creep.effect < 0
    ]


def _clearest(trend_of: TrendOf, history: CaseHistory, steps: Sequence[CaseStep]) -> Trend | None:
    """Return the most significant trend, with steps at unknown times included or leveled out.

    A few steps instead of a gradual change do not fit a line well enough: a single step of any
    size reaches a third of the required score.
    """
    trends = []
    for levelled in ([step for step in steps if step.known], steps):
        case_history = history.without(levelled)
        trend = trend_of(case_history, _least(case_history))
        if trend is not None:
            trends.append(trend)
        if len(levelled) == len(steps):
            break
    return min(trends, key=lambda trend: trend.p_value, default=None)


def _least(history: CaseHistory) -> int:
    """Return how many of the latest runs span more than `LEAST_SECONDS`."""
    if not history.points:
        return 0
    return 1 + len(history.points) - history.split(history.points[-1].time - LEAST_SECONDS)


def _large(history: CaseHistory, trend: Trend) -> bool:
    return abs(trend.effect) >= TIMES * history.figure.least_effect


def _step(history: CaseHistory, trend: Trend) -> CaseStep:
    return CaseStep(
        time=history.points[trend.start].time,
        known=False,
        kind="drift",
        effect=trend.effect,
        low=trend.low,
        high=trend.high,
        p_value=trend.p_value,
        runs=trend.runs,
    )
