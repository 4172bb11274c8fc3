"""Ranking of the configurations of a workload on a storage, with significance.

Only undisturbed, durable configurations without host caching are ranked: those that ignore
flushes, leave writes in host memory, or may read from warm caches, are excluded, as are those
with noisy runs only. Every output reads `rankings`, so that no two answers contradict each other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Final
from weakref import WeakKeyDictionary

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.difference import CHANCE, Difference, difference
from pvebench.model.definition import Definition, further_options
from pvebench.model.disk import Bus, Cache
from pvebench.model.durability import Durable, KnownDurability, durable_of
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.run_metrics import JUDGED
from pvebench.model.workload import Direction
from pvebench.store.live_results import Trend, View, cached_by_trend
from pvebench.store.records import Point

LEAST_RUNS: Final = 3
"""Minimum runs of each configuration to test a difference."""
MAX_EQUAL_LOSS: Final = 0.1
"""Largest loss that the noise of configurations called equal may hide."""
EMULATED: Final = "tcg"
"""Fact `accel` of an environment without hardware virtualization."""
NEWEST: Final = 10
"""Maximum newest runs for the current value of a configuration."""
_THROUGHPUT: Final = JUDGED["throughput"]


class Exclusion(StrEnum):
    """Why a configuration is not ranked."""

    NO = ""
    DISTURBED = "disturbed"
    """Not a configuration to choose: `Definition.undisturbed`."""
    HOST = "host"
    """Measured on the host, without a VM."""
    LXC = "lxc"
    """Measured in a container, without a VM."""
    NOT_DURABLE = "not_durable"
    """A crash loses flushed data: by the cache mode or options of the storage, or as measured."""
    UNFLUSHED = "unflushed"
    """Its writes end in host memory: the result is not that of the disk."""
    WARM = "warm"
    """Reads came from memory as measured, or may have: see `pvebench.model.run_metrics.WARM`."""
    NOISY = "noisy"
    """Each of its runs was noisy or not steady."""


class Rank(StrEnum):
    """Result of the comparison with the fastest."""

    FASTEST = "fastest"
    EQUAL = "equal"
    """Within noise."""
    SLOWER = "slower"
    """Significantly slower."""
    UNKNOWN = "unknown"
    """Too few runs of one of the two, or too much noise to exclude MAX_EQUAL_LOSS."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How much more one configuration gives than another: 0.1 is 10% more.

    Attributes:
        low, high: CI; NaN: fewer than `LEAST_RUNS` runs of one of them.
    """

    ratio: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        """Whether there are enough runs for a CI."""
        return not math.isnan(self.low)

    @property
    def rank(self) -> Rank:
        """Rank of a configuration by its gap to the fastest."""
        if self.high < 0:
            return Rank.SLOWER
        return Rank.EQUAL if self.low >= -MAX_EQUAL_LOSS else Rank.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCase:
    """One configuration in a ranking.

    Attributes:
        level: its current value as of `level_of`, in the trend's unit.
        runs: number of runs that count; 0 if all are noisy.
        gap: to the fastest: -0.18 is 18% less.
    """

    key: str
    definition: Definition
    exclusion: Exclusion
    level: float
    runs: int
    rank: Rank = Rank.UNKNOWN
    gap: Gap = Gap(0.0)

    @property
    def compared(self) -> bool:
        """Whether its gap to the fastest is shown, such as that of snapshots to none."""
        return not self.exclusion or (self.exclusion is Exclusion.DISTURBED and self.gap.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All configurations of a storage under one workload.

    Attributes:
        metric: `iops` or `bandwidth`.
        places: ranked ones, the fastest first.
        excluded: the others, with the reason.
        emulated: whether the results are from an emulated CPU: they say little about others.
    """

    node: str
    storage: str
    workload: str
    metric: str
    places: tuple[RankedCase, ...] = ()
    excluded: tuple[RankedCase, ...] = ()
    emulated: bool = False

    @property
    def sound(self) -> bool:
        """Whether the value of the first counts: enough runs, on real hardware."""
        return not self.emulated and self.places[0].runs >= LEAST_RUNS

    @property
    def decided(self) -> bool:
        """Whether the first may be called the fastest: all others are equal or slower, too."""
        return self.sound and all(place.rank is not Rank.UNKNOWN for place in self.places)

    @property
    def fastest(self) -> RankedCase | None:
        """The first; None if none is ranked."""
        return self.places[0] if self.places else None

    @property
    def answers(self) -> bool:
        """Whether it compares anything to choose."""
        return bool(self.places) or any(
            place.exclusion is not Exclusion.DISTURBED for place in self.excluded
        )

    @property
    def usual(self) -> RankedCase | None:
        """The default configuration of Proxmox VE, if it is ranked; else None."""
        every = (place for place in (*self.places, *self.excluded) if is_usual(place.definition))
        usual = min(every, key=_usual_rank, default=None)
        return usual if usual in self.places else None

    def place(self, key: str) -> RankedCase | None:
        """Return a case of the ranking; None if it has no result."""
        return next((place for place in (*self.places, *self.excluded) if place.key == key), None)


def is_usual(definition: Definition) -> bool:
    """Return whether it is the disk of a new VM: scsi, no cache, no option but I/O thread."""
    plain = not set(further_options(definition)) - {"iothread-1"}
    return plain and definition.bus == Bus.SCSI and definition.cache == Cache.NONE


def _usual_rank(place: RankedCase) -> tuple[bool, int]:
    return (place.definition.format != "raw", len(further_options(place.definition)))


def exclusion_of(definition: Definition, known: KnownDurability, trend: Trend) -> Exclusion:
    """Return why a configuration is not ranked, if so."""
    newest = counted(trend)[-1] if trend.points else None
    if not definition.undisturbed:
        return Exclusion.DISTURBED
    if definition.bus in (Bus.HOST, Bus.LXC):
        return Exclusion(definition.bus)
    if durable_of(definition, known) is Durable.NO:
        return Exclusion.NOT_DURABLE
    if writes_unflushed(definition):
        return Exclusion.UNFLUSHED
    if definition.is_warm or (newest and newest.warm):
        return Exclusion.WARM
    return Exclusion.NOISY if newest and not newest.ok else Exclusion.NO


def is_synced(definition: Definition) -> bool:
    """Return whether the workload flushes its writes."""
    return any(definition.parameters.get(name) for name in ("fsync", "fdatasync", "sync"))


def writes_unflushed(definition: Definition) -> bool:
    """Return whether completed writes may still be in host memory only."""
    writes = Direction.WRITE in definition.directions
    return writes and not is_synced(definition) and definition.cache == Cache.WRITEBACK


def emulated_in(periods: Iterable[EnvironmentPeriod]) -> frozenset[str]:
    """Return the digests of environments with an emulated CPU."""
    return frozenset(
        period.environment for period in periods if period.facts.get("accel") == EMULATED
    )


def shown_definitions(view: View) -> dict[str, Definition]:
    """Return the cases of the current packs, or of all results without packs."""
    if view.planned:
        return {key: case.definition for key, case in view.planned.items()}
    return {key: view.cases[key].definition for key in view.current().values()}


def rankings(view: View, cases: Mapping[str, Definition] | None = None) -> tuple[Ranking, ...]:
    """Return the rankings that every output reads, of `shown_definitions` unless given.

    Those of one storage are together; some may be empty.
    """
    groups: dict[tuple[str, ...], dict[str, Definition]] = {}
    for key, case in (shown_definitions(view) if cases is None else cases).items():
        group = (case.node, case.storage, case.workload, case.conditions)
        groups.setdefault(group, {})[key] = case
    emulated, durability = emulated_in(view.periods), view.durability
    return tuple(
        _ranking(groups[group], view.trends, emulated, durability) for group in sorted(groups)
    )


def answers(view: View, cases: Mapping[str, Definition] | None = None) -> tuple[Ranking, ...]:
    """Return the rankings that compare anything to choose; none without any result."""
    return tuple(ranking for ranking in rankings(view, cases) if ranking.answers)


def _ranking(
    cases: Mapping[str, Definition],
    trends: Mapping[str, Trend],
    emulated: Collection[str],
    durability: KnownDurability,
) -> Ranking:
    measured = {key: trends[key] for key in cases if key in trends and trends[key].points}
    newest = max(
        (trend.points[-1] for trend in measured.values()), key=lambda p: p.run, default=None
    )
    environment = newest.environment if newest else ""
    metric = next((trend.metric for trend in measured.values()), "")
    places = [
        RankedCase(
            key=key,
            definition=cases[key],
            exclusion=exclusion_of(cases[key], durability, trend),
            level=level_of(trend),
            runs=len(totals(trend)) if counted(trend)[-1].ok else 0,
        )
        for key, trend in measured.items()
        # Results of two tools with different metrics do not compare, nor those of two environments.
        if trend.metric == metric and trend.points[-1].environment == environment
    ]
    ranked = sorted(
        (place for place in places if not place.exclusion), key=lambda place: -place.level
    )
    of = next(iter(cases.values()))
    return Ranking(
        node=of.node,
        storage=of.storage,
        workload=of.workload,
        metric=metric,
        places=tuple(_compared(ranked, ranked, trends)),
        excluded=tuple(_compared([place for place in places if place.exclusion], ranked, trends)),
        emulated=environment in emulated,
    )


@cached_by_trend
def counted(trend: Trend) -> tuple[Point, ...]:
    """Return the points of a case's current value, oldest first; the trend has points.

    They are of the newest runs since the environment changed; of warm ones only without others,
    and of noisy ones only without these.
    """
    environment = trend.points[-1].environment
    period = [*takewhile(lambda point: point.environment == environment, reversed(trend.points))]
    sound = [point for point in period if point.ok] or period
    points = [point for point in sound if not point.warm] or sound
    runs = sorted({point.run for point in points})[-NEWEST:]
    return tuple(point for point in reversed(points) if point.run in runs)


@cached_by_trend
def totals(trend: Trend) -> tuple[float, ...]:
    """Return the value of each counted run, all directions together, oldest first."""
    sums: dict[int, float] = {}
    for point in counted(trend):
        sums[point.run] = sums.get(point.run, 0.0) + point.value
    return tuple(sums.values())


@cached_by_trend
def levels_of(trend: Trend) -> dict[Direction, float]:
    """Return the current value of each direction: the median of its counted runs."""
    values: dict[Direction, list[float]] = {}
    for point in counted(trend):
        values.setdefault(point.direction, []).append(point.value)
    return {direction: statistics.median(known) for direction, known in values.items()}


def level_of(trend: Trend) -> float:
    """Return the current value of a case, all directions together."""
    return sum(levels_of(trend).values())


def _compared(
    places: Iterable[RankedCase], ranked: Sequence[RankedCase], trends: Mapping[str, Trend]
) -> Iterator[RankedCase]:
    """Yield the configurations compared with the fastest."""
    for place in places:
        if not ranked or place is ranked[0]:
            yield replace(place, rank=Rank.FASTEST) if ranked else place
            continue
        first = ranked[0]
        # The error probability is divided among the comparisons with the fastest.
        chance = CHANCE / max(1, len(ranked) - 1)
        gap = gap_between([(trends[first.key], trends[place.key])], chance=chance)
        if min(place.runs, first.runs) < LEAST_RUNS:
            gap = Gap(gap.ratio)
        yield replace(place, rank=gap.rank, gap=gap)


# --- The comparison of two configurations, under one workload or several.


def gap_between(pairs: Sequence[tuple[Trend, Trend]], *, chance: float = CHANCE) -> Gap:
    """Return how much more the second gives than the first, the geometric mean over workloads.

    The ratio is that of the current values, which are medians; the interval, which is one of means,
    is widened to contain it.

    Args:
        pairs: both configurations per workload.
        chance: probability that the interval misses; lower for several comparisons.
    """
    levels = [[max(_THROUGHPUT.floor, level_of(trend)) for trend in pair] for pair in pairs]
    effect = statistics.fmean(math.log(second / first) for first, second in levels)
    if any(len(totals(trend)) < LEAST_RUNS for pair in pairs for trend in pair):
        return Gap(math.expm1(effect))
    apart = [_difference(*pair, chance) for pair in pairs]
    middle = statistics.fmean(difference.effect for difference in apart)
    reach = math.hypot(*((one.high - one.low) / 2 for one in apart)) / len(apart)
    low, high = min(effect, middle - reach), max(effect, middle + reach)
    return Gap(math.expm1(effect), math.expm1(low), math.expm1(high))


def _difference(first: Trend, second: Trend, chance: float) -> Difference:
    """Return a difference; cached, because of a page of a thousand cases a new run changes few."""
    known = _differences(first).setdefault(second, {})
    if chance not in known:
        known[chance] = difference(_logs(first), _logs(second), chance=chance)
    return known[chance]


@cached_by_trend
def _differences(_: Trend) -> WeakKeyDictionary[Trend, dict[float, Difference]]:
    """Return the cache of a configuration's comparisons, until the other one has a new run."""
    return WeakKeyDictionary()


def _logs(trend: Trend) -> Matrix:
    return np.log(np.maximum(totals(trend), _THROUGHPUT.floor))


def of_storage(cases: Mapping[str, Definition]) -> dict[str, dict[str, Definition]]:
    """Return `node/storage` -> key -> case, sorted."""
    groups: dict[str, dict[str, Definition]] = {}
    for key, case in sorted(cases.items(), key=lambda item: (item[1].node, item[1].storage)):
        groups.setdefault(f"{case.node}/{case.storage}", {})[key] = case
    return groups
