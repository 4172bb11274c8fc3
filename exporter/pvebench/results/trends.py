"""The newest points of the number that people look at first, of every case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from pvebench.model.definition import Definition
from pvebench.model.run import Unit
from pvebench.model.units import KIB
from pvebench.store import Point, Store, StoredRun

P = ParamSpec("P")
T = TypeVar("T")

MAIN_METRICS: Final[dict[str, Unit]] = {"iops": Unit.IOPS, "bandwidth": Unit.BYTES_PER_SECOND}
BANDWIDTH_FROM_BYTES: Final = 128 * KIB
"""From this block size on, people think in bandwidth."""
TREND_RUNS: Final = 30


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Trend:
    """The newest good runs' main numbers, oldest first; no point where none moves data.

    Equal only to itself, so that what is made of it can be remembered cheaply.
    """

    metric: str = ""
    points: tuple[Point, ...] = ()

    def after(self, run: StoredRun) -> Trend:
        """Return the trend with a newer good run, and no longer than TREND_RUNS runs."""
        metric = self.metric or _metric_of(run)
        new = tuple(
            Point(run.number, run.finished, run.environment, one.direction, one.value)
            for one in run.samples
            if one.metric == metric and not one.part and one.direction is not None
        )
        points = (*self.points, *sorted(new, key=lambda point: point.direction))
        kept = set(sorted({point.run for point in points})[-TREND_RUNS:])
        return Trend(metric, tuple(point for point in points if point.run in kept))


def remembered(function: Callable[Concatenate[Trend, P], T]) -> Callable[Concatenate[Trend, P], T]:
    """Have a function asked once for each trend; what it said goes with the trend.

    A cache of a fixed size would fill up with what was said of runs long gone.
    """
    said: WeakKeyDictionary[Trend, dict[tuple[object, ...], T]] = WeakKeyDictionary()

    @wraps(function)
    def answer(trend: Trend, /, *more: P.args, **named: P.kwargs) -> T:
        of_trend = said.setdefault(trend, {})
        question = (*more, *named.items())
        if question not in of_trend:
            of_trend[question] = function(trend, *more, **named)
        return of_trend[question]

    return answer


def main_metric(definition: Definition) -> str:
    """Return which metric people look at first for a case: by its block size."""
    size = definition.parameters.get("bs")
    # bonnie++ and hdparm stream with a block size of their own, and count no operations.
    large = size is None or (isinstance(size, int) and size >= BANDWIDTH_FROM_BYTES)
    return "bandwidth" if large else "iops"


def _metric_of(run: StoredRun) -> str:
    """Return the metric of a case's first good run: the wanted one, or the other if it has it."""
    there = {one.metric for one in run.samples if one.direction is not None}
    wanted = main_metric(run.definition)
    return next((name for name in (wanted, *MAIN_METRICS) if name in there), "")


def read_trends(
    store: Store, definitions: Mapping[str, Definition], *, limit: int = TREND_RUNS
) -> dict[str, Trend]:
    """Return case key -> trend of the last `limit` good runs; cases without any are absent."""
    found: dict[str, Trend] = {}
    wanted = {key: main_metric(definition) for key, definition in definitions.items()}
    for metric in MAIN_METRICS:
        found |= _read(store, metric, [key for key, one in wanted.items() if one == metric], limit)
    for metric in MAIN_METRICS:
        found |= _read(store, metric, [key for key in wanted if key not in found], limit)
    return found


def _read(store: Store, metric: str, keys: list[str], limit: int) -> dict[str, Trend]:
    trends = store.trend(keys, metric, limit=limit) if keys else {}
    return {key: Trend(metric, tuple(points)) for key, points in trends.items()}
