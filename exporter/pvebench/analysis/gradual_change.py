"""Gradual changes, too slow for the scan, whose reference level follows them.

One line is fitted over many runs, with a false discovery rate over all cases of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


TrendOf = Callable[[CaseHistory], CaseStep | None]


def slow_trend(history: CaseHistory) -> CaseStep | None:
    """Return the most significant trend of the latest runs; None if there are too few of them.

    A line is fitted through the medians of equal parts of a window and compared with their scatter
    about it, so that oscillations within the window are noise. `WANDER` accounts for a random
    walk. Half an oscillation still looks like a gradual change.
    """
    row, times = history.logs(), history.times()
    least = history.runs_since(times[-1] - LEAST_SECONDS) + 1 if times else 0
    sizes = [runs // PARTS for runs in WINDOWS if least <= runs <= len(row)]
    if not sizes:
        return None
    (slope, error), size = max(
        ((_line(row, size), size) for size in sizes), key=lambda line: abs(line[0][0] / line[0][1])
    )
    effect, reach = PARTS * slope, PARTS * critical(0.05, DEGREES) * error
    chance = float(two_sided(slope / error / WANDER, DEGREES))
    return CaseStep(
        time=times[len(row) - PARTS * size],
        known=False,
        kind="drift",
        effect=effect,
        low=effect - reach,
        high=effect + reach,
        p_value=min(1.0, len(WINDOWS) * chance),
        runs=PARTS * size,
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
        trend_of: returns the trend of a history, `slow_trend`.
        steps: case -> its confirmed steps.
        accepted_until: case -> time up to which its changes are accepted.
        strictness: number of metrics that are judged.
    """
    trends = [
        _clearest(
            trend_of, history.since(accepted_until.get(history.of, -math.inf)), steps[history.case]
        )
        for history in histories
    ]
    q_values = adjusted(np.array([1.0 if trend is None else trend.p_value for trend in trends]))
    return {
        history.case: trend
        for history, trend, q_value in zip(histories, trends, q_values, strict=True)
        if trend is not None
        and q_value <= CREEP_LEVEL / strictness
        and abs(trend.effect) >= TIMES * history.figure.least_effect
    }


def without_explained(steps: Sequence[CaseStep], creep: CaseStep | None) -> list[CaseStep]:
    """Return the steps without those that are part of a gradual change."""
    return [
        step
        for step in steps
        if creep is None or step.known or step.time < creep.time or step.effect * creep.effect < 0
    ]


def _clearest(
    trend_of: TrendOf, history: CaseHistory, steps: Sequence[CaseStep]
) -> CaseStep | None:
    """Return the most significant trend, with steps at unknown times included or leveled out.

    A few steps instead of a gradual change do not fit a line well enough: a single step of any
    size reaches a third of the required score.
    """
    known = [step for step in steps if step.known]
    leveled = [history.without(known)]
    if len(known) < len(steps):
        leveled.append(history.without(steps))
    trends = map(trend_of, leveled)
    clear = (trend for trend in trends if trend is not None)
    return min(clear, key=lambda trend: trend.p_value, default=None)
