"""A case's history as values: metrics, logarithms with plus for better, comparable segments."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import numpy as np

    from pvebench.analysis.levels import Matrix

Kind = Literal["speed", "stall", "cost", "operation", "accounting"]

LEAST_BASELINE: Final = 20
"""Runs a history needs before a change can be judged; below it there is no baseline yet."""
MOST_AFTER: Final = 30
"""Runs after a change that are looked at: the newest ones."""
MOST_MISSING: Final = 0.3
"""Share of rounds that a case may have missed to be compared with the fleet round by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A kind of number that is judged.

    Attributes:
        name: as in labels.
        kind: what its change means.
        more_is_better: whether a larger value is the better one.
        noun, worse, better: words of the verdict.
        least_effect: smallest change (log) worth a verdict.
        floor: smallest value that is told from zero, in the metric's unit.
    """

    name: str
    kind: Kind
    more_is_better: bool
    noun: str
    worse: str
    better: str
    least_effect: float
    floor: float


def _metric(
    name: str, kind: Kind, noun: str, words: tuple[str, str], least: float, floor: float
) -> Metric:
    return Metric(
        name=name, kind=kind, more_is_better=words[0] in {"slower", "smaller"}, noun=noun,
        worse=words[0], better=words[1], least_effect=least, floor=floor,
    )  # fmt: skip


_HIGHER: Final = ("higher", "lower")
_LONGER: Final = ("longer", "shorter")
METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric
    for metric in (
        _metric("throughput", "speed", "throughput", ("slower", "faster"), 0.015, 1e-3),
        _metric("latency_p99", "speed", "p99 latency", _HIGHER, 0.05, 1e-7),
        _metric("longest_stall", "stall", "longest stall", _LONGER, 0.4, 1e-3),
        _metric("cpu_cost", "cost", "host CPU per I/O", _HIGHER, 0.03, 1e-9),
        _metric("idle_cost", "cost", "host CPU of the idle VM", _HIGHER, 0.05, 1e-5),
        _metric("operation_seconds", "operation", "duration", _LONGER, 0.05, 1e-4),
        _metric("boot_time", "operation", "boot time", _LONGER, 0.05, 1e-3),
        _metric("trimmed_bytes", "operation", "space given back", ("smaller", "larger"), 0.05, 1.0),
        _metric("io_pressure", "accounting", "reported I/O pressure", _HIGHER, 0.2, 1e-4),
    )
}


@dataclass(frozen=True, slots=True)
class Point:
    """One good run of a case.

    Attributes:
        time: when it ended, seconds since the epoch, UTC.
        environment: id of the environment it ran in.
        value: in the metric's unit, finite, not negative.
    """

    time: float
    environment: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All comparable runs of one case and metric, oldest first.

    Attributes:
        case: identity; unique within a metric.
        metric: what is judged.
        labels: what related cases share: bus, cache, format, storage, aio.
        points: since the baseline's start; runs that are not comparable (another scenario
            fingerprint) belong to another history.
        ceiling: value that the device cannot beat, or None; a gain beyond it is suspicious.
    """

    case: str
    metric: Metric
    labels: Mapping[str, str]
    points: tuple[Point, ...]
    ceiling: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))
        times = [point.time for point in self.points]
        if times != sorted(times):
            raise ValueError(f"the runs of {self.case} are not in the order of time")

    def logs(self) -> list[float]:
        """Return the runs as logarithms, plus for better."""
        return [oriented(point.value, self.metric) for point in self.points]

    def split(self, at: float) -> int:
        """Return how many runs there are before the time `at`."""
        return bisect_left(self.points, at, key=lambda point: point.time)


def oriented(value: float, metric: Metric) -> float:
    """Return the logarithm of `value`, with plus for better."""
    sign = 1.0 if metric.more_is_better else -1.0
    return sign * math.log(max(value, metric.floor))


def comparable(values: Sequence[tuple[float, str]]) -> list[int]:
    """Return where a new segment of comparable runs begins, the first one (0) included.

    Args:
        values: (time, key) of each run; runs compare only where the key (the fingerprints of
            scenario and workload) is the same.
    """
    return [
        index for index, (_, key) in enumerate(values) if index == 0 or values[index - 1][1] != key
    ]


@dataclass(frozen=True, slots=True)
class Aligned:
    """Histories side by side around one moment.

    Attributes:
        rows: index of each row's history in what was given.
        before: [rows, rounds] logarithms, gaps filled with the run before them.
        after: [rows, runs after], padded with the row's median.
        counts: [rows] real runs after.
    """

    rows: tuple[int, ...]
    before: Matrix
    after: Matrix
    counts: Matrix


def align(histories: Sequence[History], at: float) -> Aligned | None:
    """Return the histories that have a baseline before `at` and runs after it, by rounds.

    A round is the time between two runs of the case that has the most of them: that is when
    a disturbance of the whole host is felt by all. None if no history can be used.
    """
    import numpy as np

    splits = [history.split(at) for history in histories]
    able = [
        index
        for index, (history, split) in enumerate(zip(histories, splits, strict=True))
        if split >= LEAST_BASELINE and len(history.points) > split
    ]
    if not able:
        return None
    clock = max(able, key=lambda index: splits[index])
    ticks = np.array([point.time for point in histories[clock].points[: splits[clock]]])
    rows, before = [], []
    for index in able:
        row = _by_round(histories[index], splits[index], ticks)
        if row is not None:
            rows.append(index)
            before.append(row)
    counts = np.array([len(histories[i].points) - splits[i] for i in rows], dtype=float)
    most = min(int(np.median(counts)), MOST_AFTER)
    after = np.array([_padded(histories[i].logs()[splits[i] :], most) for i in rows])
    return Aligned(tuple(rows), np.array(before), after, np.minimum(counts, most))


def _by_round(history: History, split: int, ticks: Matrix) -> Matrix | None:
    """Return one value a round, or None if too many rounds are without one."""
    import numpy as np

    values = np.array(history.logs()[:split])
    if split == len(ticks):
        return values
    times = np.array([point.time for point in history.points[:split]])
    rounds = np.clip(np.searchsorted(ticks, times, side="right") - 1, 0, None)
    known = np.unique(rounds)
    if len(known) < (1 - MOST_MISSING) * len(ticks):
        return None
    row = np.full(len(ticks), np.nan)
    row[rounds] = values
    latest = np.maximum.accumulate(np.where(np.isnan(row), -1, np.arange(len(ticks))))
    latest = np.where(latest < 0, known[0], latest)
    filled: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = row[latest]
    return filled


def _padded(values: list[float], most: int) -> list[float]:
    import statistics

    newest = values[-most:]
    return newest + [statistics.median(newest)] * (most - len(newest))
