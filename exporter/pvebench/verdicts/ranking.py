"""Ranking of the configurations of a workload on a storage, with significance.

Only durable configurations without host caching are ranked: those that ignore flushes, or may
read from warm caches, are excluded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from pvebench.analysis.case_history import FIGURES, GoodRun, GoodRuns
from pvebench.analysis.difference import CHANCE, difference
from pvebench.model.definition import Definition, further_options
from pvebench.model.disk import Bus, Cache
from pvebench.store.current import Trend, cached_by_trend

if TYPE_CHECKING:
    from pvebench.analysis.arrays import Matrix


LEAST_RUNS: Final = 3
"""Minimum runs of each configuration to test a difference."""
NEWEST: Final = 10
"""Maximum newest runs for the current value of a configuration."""
_THROUGHPUT: Final = FIGURES["throughput"]


class Exclusion(StrEnum):
    """Why a configuration is not ranked."""

    NO = ""
    HOST = "host"
    """Measured on the host, without a VM."""
    LXC = "lxc"
    """Measured in a container, without a VM."""
    NOT_DURABLE = "not_durable"
    """Flushes are ignored: a host crash loses data that the guest has flushed."""
    WARM = "warm"
    """Reads may come from host memory that earlier runs filled."""


class Rank(StrEnum):
    """Result of the comparison with the fastest."""

    FASTEST = "fastest"
    EQUAL = "equal"
    """Within noise."""
    SLOWER = "slower"
    """Significantly slower."""
    UNKNOWN = "unknown"
    """Too few runs of one of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One configuration in a ranking.

    Attributes:
        level: median of its newest runs in the current environment, in the trend's unit.
        runs: number of those runs.
        ratio: relative to the fastest, -0.18 is 18% less.
        low, high: CI of the ratio; NaN: unknown.
    """

    key: str
    definition: Definition
    exclusion: Exclusion
    level: float
    runs: int
    rank: Rank = Rank.UNKNOWN
    ratio: float = 0.0
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All configurations of a storage under one workload.

    Attributes:
        metric: `iops` or `bandwidth`.
        places: ranked ones, the fastest first.
        excluded: the others, with the reason.
    """

    node: str
    storage: str
    workload: str
    metric: str
    places: tuple[Place, ...] = ()
    excluded: tuple[Place, ...] = ()

    @property
    def fastest(self) -> Place | None:
        """The first; None if none is ranked."""
        return self.places[0] if self.places else None

    @property
    def usual(self) -> Place | None:
        """The default configuration of Proxmox VE, if it is measured."""
        usual = [place for place in self.places if is_usual(place.definition)]
        return min(usual, key=_usual_rank, default=None)

    def place(self, key: str) -> Place | None:
        """Return a case of the ranking; None if it has no result."""
        return next((one for one in (*self.places, *self.excluded) if one.key == key), None)


def is_usual(definition: Definition) -> bool:
    """Return whether it is the disk of a new VM: scsi, no cache, no option but I/O thread."""
    plain = not set(further_options(definition)) - {"iothread-1"}
    return plain and definition.bus == Bus.SCSI and definition.cache == Cache.NONE


def _usual_rank(place: Place) -> tuple[bool, int]:
    return (place.definition.format != "raw", len(further_options(place.definition)))


def exclusion_of(definition: Definition) -> Exclusion:
    """Return why a configuration is not ranked, if so."""
    if definition.bus in (Bus.HOST, Bus.LXC):
        return Exclusion(definition.bus)
    if definition.cache == Cache.UNSAFE:
        return Exclusion.NOT_DURABLE
    return Exclusion.WARM if definition.is_warm else Exclusion.NO


def contests(cases: Mapping[str, Definition], trends: Mapping[str, Trend]) -> tuple[Ranking, ...]:
    """Return the rankings of cases, those of one storage together; some may be empty."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, one in cases.items():
        group = (one.node, one.storage, one.workload, one.conditions)
        groups.setdefault(group, []).append(key)
    return tuple(
        _contest(
            [(key, cases[key], trends[key]) for key in keys if trends.get(key, _NONE).points],
            cases[keys[0]],
        )
        for _, keys in sorted(groups.items())
    )


_NONE: Final = Trend()
_Entry = tuple[str, Definition, Trend]


def _contest(entries: Sequence[_Entry], of: Definition) -> Ranking:
    newest = max((trend.points[-1] for *_, trend in entries), key=lambda p: p.run, default=None)
    environment = newest.environment if newest else ""
    metric = next((trend.metric for *_, trend in entries), "")
    # Results of two tools with different metrics do not compare.
    alike = [entry for entry in entries if entry[2].metric == metric]
    places = [one for entry in alike for one in _entered(*entry, environment)]
    ranked = sorted((one for one in places if not one.exclusion), key=lambda one: -one.level)
    trends = {key: trend for key, _, trend in alike}
    return Ranking(
        node=of.node,
        storage=of.storage,
        workload=of.workload,
        metric=metric,
        places=tuple(_compared(ranked, ranked, trends, environment)),
        excluded=tuple(
            _compared([one for one in places if one.exclusion], ranked, trends, environment)
        ),
    )


def _entered(key: str, definition: Definition, trend: Trend, environment: str) -> Iterator[Place]:
    values = totals(trend, environment)
    if values:
        yield Place(
            key=key,
            definition=definition,
            exclusion=exclusion_of(definition),
            level=statistics.median(values),
            runs=len(values),
        )


@cached_by_trend
def totals(trend: Trend, environment: str) -> tuple[float, ...]:
    """Return the newest runs' values in an environment, all directions together, oldest first."""
    sums: dict[int, float] = {}
    for point in trend.points:
        if point.environment == environment:
            sums[point.run] = sums.get(point.run, 0.0) + point.value
    return tuple(sums.values())[-NEWEST:]


def _compared(
    places: Iterable[Place], ranked: Sequence[Place], trends: Mapping[str, Trend], environment: str
) -> Iterator[Place]:
    """Yield the configurations compared with the fastest."""
    for place in places:
        if not ranked or place is ranked[0]:
            yield replace(place, rank=Rank.FASTEST) if ranked else place
            continue
        first = ranked[0]
        ratio = place.level / first.level - 1 if first.level > 0 else 0.0
        if min(place.runs, first.runs) < LEAST_RUNS:
            yield replace(place, ratio=ratio)
            continue
        # The error probability is divided among the comparisons with the fastest.
        chance = CHANCE / max(1, len(ranked) - 1)
        pair = (trends[first.key], trends[place.key])
        effect, low, high = _apart(*pair, environment, chance)
        rank = Rank.SLOWER if high < 0 else Rank.EQUAL
        yield replace(place, rank=rank, ratio=effect, low=low, high=high)


def _apart(
    first: Trend, other: Trend, environment: str, chance: float
) -> tuple[float, float, float]:
    """Return ratio, low and high of one configuration relative to another.

    Cached: of a page of a thousand cases a new run changes few.
    """
    known = _against(other).setdefault(first, {})
    if (environment, chance) not in known:
        gap = difference(
            _logs(totals(first, environment)), _logs(totals(other, environment)), chance=chance
        )
        ends = math.expm1(gap.effect), math.expm1(gap.low), math.expm1(gap.high)
        known[environment, chance] = ends
    return known[environment, chance]


@cached_by_trend
def _against(
    _: Trend,
) -> WeakKeyDictionary[Trend, dict[tuple[str, float], tuple[float, float, float]]]:
    """Return the cache of a configuration's comparisons, until the other one has a new run."""
    return WeakKeyDictionary()


def _logs(values: Sequence[float]) -> Matrix:
    runs = GoodRuns(GoodRun(float(place), "", value) for place, value in enumerate(values))
    return runs.logs(_THROUGHPUT)


def of_storage(cases: Mapping[str, Definition]) -> dict[str, dict[str, Definition]]:
    """Return `node/storage` -> key -> case, sorted."""
    groups: dict[str, dict[str, Definition]] = {}
    for key, case in sorted(cases.items(), key=lambda item: (item[1].node, item[1].storage)):
        groups.setdefault(f"{case.node}/{case.storage}", {})[key] = case
    return groups
