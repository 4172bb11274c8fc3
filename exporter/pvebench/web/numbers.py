"""The main numbers of a case with their recent past, for a cell of a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.model.run import Unit
from pvebench.model.workload import Direction
from pvebench.results import MAIN_METRICS, Trend, remembered
from pvebench.store import CaseRecord, Point, StoredRun
from pvebench.web.charts import Spark, spark
from pvebench.web.texts import show_spread, show_value

SPREAD_RUNS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The main number of one direction, and its recent past.

    Attributes:
        metric: `iops` or `bandwidth`.
        value: of the last good run, in `unit`.
        spread: standard deviation / mean over the last runs; None below two runs.
        runs: how many runs the spread is of.
    """

    direction: Direction
    metric: str
    unit: Unit
    value: float
    text: str
    spread: float | None
    spread_text: str
    runs: int
    spark: Spark | None


def numbers_of(trend: Trend | None) -> tuple[Number, ...]:
    """Return the numbers of each direction; none where no run was good or none moves data."""
    return () if trend is None else _numbers(trend)


# A page of a thousand cases is made anew every few seconds.
@remembered
def _numbers(trend: Trend) -> tuple[Number, ...]:
    by_direction: dict[Direction, list[Point]] = {}
    for point in trend.points:
        by_direction.setdefault(point.direction, []).append(point)
    return tuple(_number(trend.metric, mine) for mine in by_direction.values())


def _number(metric: str, points: Sequence[Point]) -> Number:
    unit = MAIN_METRICS[metric]
    values = [point.value for point in points[-SPREAD_RUNS:]]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return Number(
        direction=points[-1].direction,
        metric=metric,
        unit=unit,
        value=values[-1],
        text=show_value(values[-1], unit),
        spread=spread,
        spread_text="" if spread is None else show_spread(spread),
        runs=len(values),
        spark=spark(points, unit),
    )


def figure_of(record: CaseRecord) -> str:
    """Return the main figure of a case that moves no data: its boot, or what an idle VM costs."""
    run: StoredRun | None = record.good
    found = {(one.metric, one.part): one for one in run.samples} if run else {}
    boots = record.definition.tool == "boot"
    sample = found.get(("boot_time", "") if boots else ("host_cpu", "qemu"))
    return "" if sample is None else show_value(sample.value, sample.unit)
