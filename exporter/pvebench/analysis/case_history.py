"""History of a case and the steps in it, as logarithms; positive is better."""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal, Self, TypeAlias, overload

from pvebench.analysis.arrays import Flags, Matrix, Places, Words, np
from pvebench.model.figure import VerdictFigure

# --- groups of related cases: by bus, cache mode, format, storage, workload ---

Label = tuple[str, str]
Group = tuple[Label, ...]
"""(label, value) pairs of all members; empty: all cases."""

LEAST_MEMBERS: Final = 3
"""Minimum cases in a group, and outside it."""
LEAST_MOVED: Final = 0.7
"""Minimum share of the cases with common labels that shifted, to name a group after the labels."""


def groups_of(labels: Sequence[Mapping[str, str]]) -> dict[Group, Flags]:
    """Return every group of one label or of a pair of labels, as a mask over the cases."""
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
        (*first, *second): single[first] & single[second]
        for first, second in itertools.combinations(single, 2)
        if first[0][0] != second[0][0]
    }
    most = len(labels) - LEAST_MEMBERS
    return {
        group: mask
        for group, mask in {**single, **pairs}.items()
        if LEAST_MEMBERS <= mask.sum() <= most
    }


def common_group(
    members: Sequence[Mapping[str, str]],
    judged: Collection[Mapping[str, str]],
    everyone: Collection[Mapping[str, str]],
) -> Group | None:
    """Return the labels that the members share, if most judged cases with these are members.

    None if no common labels identify them; empty if nearly all cases are members. Labels that
    everyone has identify nothing.
    """
    if len(members) < LEAST_MEMBERS:
        return None
    shared = set(members[0].items())
    for labels in members[1:]:
        shared &= set(labels.items())
    telling = {
        (key, value)
        for key, value in shared
        if any(labels.get(key) != value for labels in everyone)
    }
    carriers = sum(telling <= set(labels.items()) for labels in judged)
    if len(members) < LEAST_MOVED * carriers:
        return None
    return tuple(sorted(telling))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShift:
    """How a group of cases shifted together; effects are logarithms, positive is better.

    Attributes:
        labels: common labels of its members; empty for all cases.
        all_but: True if the members are the cases without these labels.
        effect, low, high: shift and its 95% confidence interval: relative to the other cases, with
            that of all cases if they shifted, too.
        p_value: adjusted for the number of tested groups.
    """

    labels: Group
    all_but: bool = False
    effect: float
    low: float
    high: float
    p_value: float

    def of(self, effect: float, wider: float) -> GroupShift:
        """Return it with another effect, which has a further independent error."""
        reach = math.hypot(self.high - self.effect, wider)
        return replace(self, effect=effect, low=effect - reach, high=effect + reach)


Column: TypeAlias = "array[float]"
ChangeKind = Literal["level", "drift", "mode", "bursts"]
"""How a case changed; see `CaseStep`."""

# --- runs and steps of a case ---

LEAST_BASELINE: Final = 4
"""Minimum runs of a baseline; with so few only large changes are detectable."""


@dataclass(frozen=True, slots=True)
class GoodRun:
    """One successful run of a case.

    Attributes:
        time: its end, seconds since the epoch, UTC.
        environment: ID of its environment.
        value: result in base units, finite, not negative.
    """

    time: float
    environment: str
    value: float


class GoodRuns(Sequence[GoodRun]):
    """Successful runs of one metric of a case in chronological order.

    Stored as columns, because years of many cases have millions of runs. Logarithms are computed
    once and shared with slices.

    Raises:
        ValueError: the runs are not in chronological order.
    """

    __slots__ = ("_logs", "environments", "times", "values")

    def __init__(self, runs: Iterable[GoodRun] = ()) -> None:
        ordered = tuple(runs)
        self.times = array("d", [run.time for run in ordered])
        """End of each run."""
        self.environments = [run.environment for run in ordered]
        self.values = array("d", [run.value for run in ordered])
        self._logs: tuple[VerdictFigure, Matrix] | None = None
        if any(earlier > later for earlier, later in pairwise(self.times)):
            raise ValueError("the runs of a history are not in chronological order")

    @classmethod
    def of_columns(cls, times: Column, environments: list[str], values: Column) -> Self:
        """Return runs from chronological columns, which must not be changed afterwards."""
        runs = cls.__new__(cls)
        runs.times, runs.environments, runs.values = times, environments, values
        runs._logs = None  # noqa: SLF001 # same class
        return runs

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
        cut._logs = self._logs and (self._logs[0], self._logs[1][place])  # noqa: SLF001 # same class
        return cut

    def chosen(self, places: Places) -> GoodRuns:
        """Return the runs at these places, in ascending order."""
        indexes = places.tolist()
        cut = GoodRuns.of_columns(
            array("d", [self.times[place] for place in indexes]),
            [self.environments[place] for place in indexes],
            array("d", [self.values[place] for place in indexes]),
        )
        cut._logs = self._logs and (self._logs[0], self._logs[1][places])  # noqa: SLF001 # same class
        return cut

    def with_logs(self, figure: VerdictFigure, logs: Matrix) -> GoodRuns:
        """Return the runs with other logarithms."""
        runs = GoodRuns.of_columns(self.times, self.environments, self.values)
        runs._logs = figure, logs  # noqa: SLF001 # same class
        return runs

    def logs(self, figure: VerdictFigure) -> Matrix:
        """Return [runs] logarithms of the values, positive is better; read-only."""
        if self._logs is None or self._logs[0] is not figure:
            logs = np.log(np.maximum(np.array(self.values), figure.floor))
            self._logs = figure, logs if figure.more_is_better else -logs
        return self._logs[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseHistory:
    """All comparable runs of one metric of a case, oldest first.

    Attributes:
        case: identity, unique within a metric: the case's key and the direction.
        figure: the metric.
        of: the case's key.
        name: display name of the case.
        direction: direction of the metric, or empty.
        labels: labels of related cases: bus, cache, format, storage, aio.
        points: runs since the start of the baseline; incomparable runs (with another scenario
            fingerprint) belong to another history.
        levelled: (time, effect) of known steps: earlier runs count as if they were after them.
        undisturbed: whether it measures the configuration itself (`Definition.undisturbed`).
    """

    case: str
    of: str
    name: str
    figure: VerdictFigure
    labels: Mapping[str, str]
    points: GoodRuns
    direction: str = ""
    levelled: tuple[tuple[float, float], ...] = ()
    undisturbed: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.labels, MappingProxyType):
            object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))

    def logs(self) -> Matrix:
        """Return [runs] logarithms, positive is better, with known steps leveled out."""
        leveled = self.points.logs(self.figure).copy()
        for time, effect in self.levelled:
            leveled[: self.split(time)] += effect
        return leveled

    def extent(self) -> object:
        """Return a key that changes with its runs and known steps."""
        first = self.points[0].time if self.points else 0.0
        return self.case, first, len(self.points), self.levelled

    def even(self, hours: Matrix) -> CaseHistory:
        """Return the history without effects of hours, [runs] logarithms."""
        logs = self.points.logs(self.figure) - hours
        return replace(self, points=self.points.with_logs(self.figure, logs))

    def without(self, steps: Iterable[CaseStep]) -> CaseHistory:
        """Return the history with these steps, and no others, leveled out."""
        known = sorted((step.time, step.effect) for step in steps)
        return replace(self, levelled=tuple(known))

    def times(self) -> Sequence[float]:
        """Return the end of each run."""
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
        """Return the number of runs before the time `at`."""
        return bisect_left(self.points.times, at)

    def runs_since(self, time: float) -> int:
        """Return the number of runs from a time on."""
        return len(self.points) - self.split(time)

    def runs_between(self, first: float, second: float) -> int:
        """Return the number of runs between two times, in any order."""
        return abs(self.split(first) - self.split(second))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStep:
    """A step of one case; effects are logarithms, positive is better.

    Attributes:
        time: time of the event, or of the first run after the step if no event explains it.
        known: True if an environment change explains it.
        confirmed: whether it is certain, alone or with its group.
        p_value: significance in this case alone, without its groups.
        group: the group it shifted with, or None.
        runs: number of runs after it.
        kind: `drift`: it began at `time` or before; `mode`, `bursts`: only a share of the runs
            after it changed, at random or for several runs each.
        share: share of the runs after it that changed.
        mode: True if the case visits the new level repeatedly, so that it is not reported.
        left: level before it, a logarithm without the effect of the hour.
        end: time of the step that completed taking back most of it; None: no step did.
        back: it takes back most of the earlier steps, or leads to a usual level.
        accepted: whether a decision accepts it.
        reason: why the improvement is implausible; empty: it is plausible, or none.
    """

    time: float
    known: bool
    effect: float
    low: float
    high: float
    p_value: float
    runs: int
    confirmed: bool = True
    group: GroupShift | None = None
    kind: ChangeKind = "level"
    share: float = 1.0
    mode: bool = False
    left: float = 0.0
    end: float | None = None
    back: bool = False
    accepted: bool = False
    reason: str = ""

    @property
    def reached(self) -> float:
        """Level after it."""
        return self.left + self.effect

    @property
    def slow(self) -> bool:
        """Whether it is a gradual change."""
        return self.kind == "drift"

    @property
    def certain(self) -> bool:
        """Whether its interval does not contain 0."""
        return self.slow or not self.low < 0 < self.high

    @property
    def lasts(self) -> bool:
        """Whether the present level shows it, and it is none that the case had before."""
        return self.certain and self.end is None and not self.back


def step_at(history: CaseHistory, time: float, effect: float, *, p_value: float = 0.0) -> CaseStep:
    """Return a step at a time without an event, whose size is not known well yet."""
    return CaseStep(
        time=time,
        known=False,
        effect=effect,
        low=effect,
        high=effect,
        p_value=p_value,
        runs=history.runs_since(time),
    )


Dropped = tuple[CaseStep, str]
"""A detected step that does not count, and why."""


def dropped(before: Iterable[CaseStep], after: Iterable[CaseStep], reason: str) -> list[Dropped]:
    """Return the steps that are no longer there after a decision."""
    kept = {step.time for step in after}
    return [(step, reason) for step in before if step.time not in kept]
