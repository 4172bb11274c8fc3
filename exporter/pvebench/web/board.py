"""The present of every case, kept in memory and read anew only where something changed."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pvebench.model.run import Unit
from pvebench.model.units import KIB
from pvebench.model.workload import Direction
from pvebench.store import Point, Store, StoredRun
from pvebench.web.charts import Spark, spark
from pvebench.web.texts import show_spread, show_value

METRICS: Final[dict[str, Unit]] = {"iops": Unit.IOPS, "bandwidth": Unit.BYTES_PER_SECOND}
BANDWIDTH_FROM_BYTES: Final = 128 * KIB
"""From this block size on, people think in bandwidth."""
SPREAD_RUNS: Final = 10
TREND_RUNS: Final = 30
FAILURES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """A case of the present packs.

    Attributes:
        definition: as `store.define` makes it.
        every_seconds: how often it is to run.
    """

    key: str
    definition: Mapping[str, Any]
    every_seconds: float


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseState:
    """What is known of one case that was tried.

    Attributes:
        last: the last attempt, without samples.
        good: the last good run, without samples; None if none was ever good.
        numbers: of the good run.
        figure: what it says where it moves no data, such as the time of a boot.
    """

    last: StoredRun
    good: StoredRun | None
    numbers: tuple[Number, ...]
    figure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One consistent reading: what changes only when a run is added.

    Attributes:
        version: grows with every change.
        planned: the cases of the present packs.
        states: case key -> what is known, also of cases that are no longer in a pack.
        failures: the newest runs that are not ok.
    """

    version: int
    simulated: bool
    planned: Mapping[str, PlannedCase]
    states: Mapping[str, CaseState]
    failures: Sequence[StoredRun]


class Board:
    """Gives the content of the pages; safe to use from several threads.

    Args:
        planned: the cases of the present packs.
    """

    def __init__(self, store: Store, planned: Iterable[PlannedCase] = ()) -> None:
        self.store = store
        self._planned = {case.key: case for case in planned}
        self._lock = threading.Lock()
        self._content = Content(
            version=0, simulated=store.simulated, planned=self._planned, states={}, failures=()
        )

    def plan(self, planned: Iterable[PlannedCase]) -> None:
        """Set the cases of the present packs anew: the settings were reloaded."""
        with self._lock:
            self._planned = {case.key: case for case in planned}
            self._content = replace(self._content, planned=self._planned)

    def content(self) -> Content:
        """Return the present content; asks the store only for what is new."""
        with self._lock:
            known = self._content
            version, changed = self.store.history.changed(known.version)
            if changed:
                new = self.store.history.failures(after=known.version, upto=version, limit=FAILURES)
                self._content = Content(
                    version=version, simulated=known.simulated, planned=self._planned,
                    states={**known.states, **read_states(self.store, changed)},
                    failures=(*new, *known.failures)[:FAILURES],
                )  # fmt: skip
            return self._content


def main_metric(definition: Mapping[str, Any]) -> str:
    """Return which metric people look at first for a case: by its block size."""
    size = definition["workload"]["parameters"].get("bs")
    # bonnie++ and hdparm stream with a block size of their own, and count no operations.
    large = size is None or (isinstance(size, int) and size >= BANDWIDTH_FROM_BYTES)
    return "bandwidth" if large else "iops"


def read_states(store: Store, case_keys: Collection[str]) -> dict[str, CaseState]:
    """Return what is known of some cases, in a handful of queries."""
    last = store.history.newest(case_keys)
    good = store.history.newest(case_keys, good=True)
    metrics = {key: main_metric(run.definition) for key, run in good.items()}
    trends = read_trends(store, metrics, limit=TREND_RUNS)
    return {
        key: CaseState(
            last=run, good=good.get(key), numbers=_numbers(*trends.get(key, ("", ()))),
            figure="" if key in trends or key not in good else _figure(store, good[key].number),
        )
        for key, run in last.items()
    }  # fmt: skip


def _figure(store: Store, number: int) -> str:
    """Return the main figure of a run that moves no data: its boot, or what an idle VM costs."""
    run = store.run(number)
    found = {(one.metric, one.part): one for one in run.samples} if run else {}
    tool = str(run.definition["workload"]["tool"]) if run else ""
    wanted = ("boot_time", "") if tool == "boot" else ("host_cpu", "qemu")
    sample = found.get(wanted)
    return "" if sample is None else show_value(sample.value, sample.unit)


def read_trends(
    store: Store, metrics: Mapping[str, str], *, limit: int
) -> dict[str, tuple[str, list[Point]]]:
    """Return case key -> (metric, points); the other metric where the wanted one has none."""
    found: dict[str, tuple[str, list[Point]]] = {}
    for metric in METRICS:
        keys = [key for key, wanted in metrics.items() if wanted == metric]
        trends = store.history.trend(keys, metric, limit=limit) if keys else {}
        found |= {key: (metric, points) for key, points in trends.items()}
    for metric in METRICS:
        keys = [key for key in metrics if key not in found]
        trends = store.history.trend(keys, metric, limit=limit) if keys else {}
        found |= {key: (metric, points) for key, points in trends.items()}
    return found


def _numbers(metric: str, points: Sequence[Point]) -> tuple[Number, ...]:
    by_direction: dict[Direction, list[Point]] = {}
    for point in points:
        by_direction.setdefault(point.direction, []).append(point)
    return tuple(_number(metric, mine) for mine in by_direction.values())


def _number(metric: str, points: Sequence[Point]) -> Number:
    unit = METRICS[metric]
    values = [point.value for point in points[-SPREAD_RUNS:]]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return Number(
        direction=points[-1].direction, metric=metric, unit=unit,
        value=values[-1], text=show_value(values[-1], unit),
        spread=spread, spread_text="" if spread is None else show_spread(spread),
        runs=len(values), spark=spark(points, unit),
    )  # fmt: skip
