"""A case's history as values, and the steps in it: logarithms with plus for better."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal, Self, TypeAlias, overload

from pvebench.analysis.arrays import Flags, Matrix, Places, Words, np

# --- What is judged: which numbers of a run, what their change means, and the words for it.

FigureKind = Literal["speed", "stall", "cost", "operation", "accounting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
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
    kind: FigureKind
    more_is_better: bool
    noun: str
    worse: str
    better: str
    least_effect: float
    floor: float


def _figure(
    name: str, kind: FigureKind, noun: str, words: tuple[str, str], least: float, floor: float
) -> Figure:
    return Figure(
        name=name,
        kind=kind,
        more_is_better=words[0] in {"slower", "smaller"},
        noun=noun,
        worse=words[0],
        better=words[1],
        least_effect=least,
        floor=floor,
    )


_HIGHER: Final = ("higher", "lower")
_LONGER: Final = ("longer", "shorter")
FIGURES: Final[Mapping[str, Figure]] = {
    figure.name: figure
    for figure in (
        _figure("throughput", "speed", "throughput", ("slower", "faster"), 0.015, 1e-3),
        _figure("longest_stall", "stall", "longest stall", _LONGER, 0.4, 1e-3),
        _figure("cpu_cost", "cost", "host CPU per I/O", _HIGHER, 0.03, 1e-9),
        _figure("idle_cost", "cost", "host CPU of the idle VM", _HIGHER, 0.05, 1e-5),
        _figure("operation_seconds", "operation", "duration", _LONGER, 0.05, 1e-4),
        _figure("boot_time", "operation", "boot time", _LONGER, 0.05, 1e-3),
        _figure("trimmed_bytes", "operation", "space given back", ("smaller", "larger"), 0.05, 1.0),
        _figure("io_pressure", "accounting", "reported I/O pressure", _HIGHER, 0.2, 1e-4),
        _figure("latency_p99", "speed", "p99 latency", _HIGHER, 0.05, 1e-7),
    )
}
"""In the order in which they are told: the first that moved is what a change is called by."""


# --- Groups of related cases: what shares a bus, a cache mode, a format, a storage, a workload.

Label = tuple[str, str]
Group = tuple[Label, ...]
"""(label, value) pairs that all members carry; empty: all cases."""

LEAST_MEMBERS: Final = 3
"""Cases a group needs, and that must be outside it."""
LEAST_MOVED: Final = 0.7
"""Share of those with some labels in common that must have moved to be called by them."""


def groups_of(labels: Sequence[Mapping[str, str]]) -> dict[Group, Flags]:
    """Return every group of one label or of a pair of them, as a mask over the cases."""
    values: dict[str, Words] = {}
    for key in sorted({key for case in labels for key in case}):
        column = np.array([case.get(key, "") for case in labels])
        if len(set(column.tolist())) > 1:
            values[key] = column
    single: dict[Group, Flags] = {
        ((key, value),): column == value
        for key, column in values.items()
        for value in sorted(set(column.tolist()))
        if value
    }
    pairs = {
        (*one, *two): single[one] & single[two]
        for one, two in itertools.combinations(single, 2)
        if one[0][0] != two[0][0]
    }
    most = len(labels) - LEAST_MEMBERS
    return {
        group: mask
        for group, mask in {**single, **pairs}.items()
        if LEAST_MEMBERS <= mask.sum() <= most
    }


def common_group(
    members: Sequence[Mapping[str, str]], everyone: Sequence[Mapping[str, str]]
) -> Group | None:
    """Return the labels that the members share, if most of those that carry them are members.

    None if they share nothing that would name them; empty if nearly all are members.
    """
    if len(members) < LEAST_MEMBERS:
        return None
    shared = set(members[0].items())
    for labels in members[1:]:
        shared &= set(labels.items())
    telling = {
        (key, value) for key, value in shared if any(one.get(key) != value for one in everyone)
    }
    carriers = sum(telling <= set(labels.items()) for labels in everyone)
    if len(members) < LEAST_MOVED * carriers:
        return None
    return tuple(sorted(telling))


Column: TypeAlias = "array[float]"

LEAST_BASELINE: Final = 4
"""Runs that something can be compared with; of so few only large changes can be told."""


@dataclass(frozen=True, slots=True)
class GoodRun:
    """One good run of a case.

    Attributes:
        time: when it ended, seconds since the epoch, UTC.
        environment: id of the environment it ran in.
        value: in base units, finite, not negative.
    """

    time: float
    environment: str
    value: float


class GoodRuns(Sequence[GoodRun]):
    """Good runs of one case and figure in the order of time, cut and read again and again.

    Kept as columns: of years of many cases there are millions. Their logarithms are taken once,
    and handed on to what is cut from them.

    Raises:
        ValueError: they are in another order.
    """

    __slots__ = ("_logs", "environments", "times", "values")

    def __init__(self, runs: Iterable[GoodRun] = ()) -> None:
        given = tuple(runs)
        self.times = array("d", [run.time for run in given])
        """When they ended."""
        self.environments = [run.environment for run in given]
        self.values = array("d", [run.value for run in given])
        self._logs: tuple[Figure, Matrix] | None = None
        if any(one > other for one, other in pairwise(self.times)):
            raise ValueError("the runs of a history are not in the order of time")

    @classmethod
    def of_columns(cls, times: Column, environments: list[str], values: Column) -> Self:
        """Return runs that are in the order of time; the columns belong to them from now on."""
        made = cls.__new__(cls)
        made.times, made.environments, made.values = times, environments, values
        made._logs = None  # noqa: SLF001 # one of us
        return made

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, place: int) -> GoodRun: ...
    @overload
    def __getitem__(self, place: slice) -> GoodRuns: ...
    def __getitem__(self, place: int | slice) -> GoodRun | GoodRuns:
        if isinstance(place, int):
            return GoodRun(self.times[place], self.environments[place], self.values[place])
        cut = GoodRuns.of_columns(self.times[place], self.environments[place], self.values[place])
        cut._logs = self._logs and (self._logs[0], self._logs[1][place])  # noqa: SLF001 # likewise
        return cut

    def chosen(self, places: Places) -> GoodRuns:
        """Return the runs at these places, which are in their order."""
        wanted = places.tolist()
        cut = GoodRuns.of_columns(
            array("d", [self.times[place] for place in wanted]),
            [self.environments[place] for place in wanted],
            array("d", [self.values[place] for place in wanted]),
        )
        cut._logs = self._logs and (self._logs[0], self._logs[1][places])  # noqa: SLF001 # one of us
        return cut

    def logs(self, figure: Figure) -> Matrix:
        """Return [runs] logarithms of the values, plus for better; not to be written to."""
        if self._logs is None or self._logs[0] is not figure:
            logs = np.log(np.maximum(np.array(self.values), figure.floor))
            self._logs = figure, logs if figure.more_is_better else -logs
        return self._logs[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseHistory:
    """All comparable runs of one case and figure, oldest first.

    Attributes:
        case: identity; unique within a figure: the case's key and the direction.
        figure: what is judged.
        of: the case's key.
        name: of the case, for people.
        direction: of the figure, or empty.
        labels: what related cases share: bus, cache, format, storage, aio.
        points: since the baseline's start; runs that are not comparable (another scenario
            fingerprint) belong to another history.
        ceiling: value that the device cannot beat, or None; a gain beyond it is implausible.
        levelled: (time, effect) of steps that are known already: earlier runs count as if they
            had been made after them.
    """

    case: str
    of: str
    name: str
    figure: Figure
    labels: Mapping[str, str]
    points: GoodRuns
    direction: str = ""
    ceiling: float | None = None
    levelled: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.labels, MappingProxyType):
            object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))

    def logs(self) -> Matrix:
        """Return [runs] logarithms, plus for better, with known steps levelled out."""
        found = self.points.logs(self.figure).copy()
        for time, effect in self.levelled:
            found[: self.split(time)] += effect
        return found

    def times(self) -> Sequence[float]:
        """Return when the runs ended."""
        return self.points.times

    def since(self, start: float) -> CaseHistory:
        """Return the history without the runs before the time `start`."""
        count = self.split(start)
        return self if count == 0 else replace(self, points=self.points[count:])

    def before(self, until: float) -> CaseHistory:
        """Return the history without the runs from the time `until` on."""
        count = self.split(until)
        return self if count == len(self.points) else replace(self, points=self.points[:count])

    def split(self, at: float) -> int:
        """Return how many runs there are before the time `at`."""
        return bisect_left(self.points.times, at)

    def runs_between(self, one: float, other: float) -> int:
        """Return how many runs lie between two times, in either order."""
        return abs(self.split(one) - self.split(other))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStep:
    """A confirmed step of one case; effects are logarithms, plus for better.

    Attributes:
        time: of the event, or of the first run after the step where no event explains it.
        known: True if an environment change explains it.
        group: what it moved with, or None.
        runs: it rests on.
        slow: True if it is no step but a creep that began at `time`, or before.
        mode: True if the case is at its new level again and again: it is no news.
    """

    time: float
    known: bool
    effect: float
    low: float
    high: float
    p_value: float
    runs: int
    group: Group | None = None
    slow: bool = False
    mode: bool = False
