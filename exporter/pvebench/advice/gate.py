"""Canary gate: an upgraded node against its own past and its peers at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from pvebench.analysis.sequential import LEAST_BEFORE, Bound, Decision, bound
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.store.current import Trend

CHANCE: Final = 0.05
"""Probability of a stop without a loss, over all looks and series."""
WINDOW: Final = 1.5
"""A peer's run within so many intervals of a canary's run is of the same time."""
_SHARED: Final = ("storage", "bus", "cache", "format", "workload")
"""Labels whose cases are judged together, too."""
_LEAST_VARIANCE: Final = 1e-6
"""A case with less noise does not count more than its rounding."""
_EARLIEST, _LATEST = 0.7, 2.2
"""10% and 90% quantiles of the time until a decision, relative to its estimate."""
LIMIT: Final = 1000
"""Newest runs of a case that count."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Logarithms of the canary relative to its peers, oldest first.

    Attributes:
        own: the same without peers, for display.
        interval: seconds between values.
    """

    name: str
    labels: Mapping[str, str]
    before: tuple[float, ...]
    after: tuple[float, ...]
    own_loss: float
    interval: float

    @cached_property
    def variance(self) -> float:
        """Variance before the upgrade."""
        mean = math.fsum(self.before) / len(self.before)
        return math.fsum((value - mean) ** 2 for value in self.before) / len(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One series, a case or a group of cases, with its bound.

    Attributes:
        cases: number of cases.
        own_loss: loss relative to the node's own past; NaN: unknown.
        seconds: time until a decision; None: unknown.
    """

    name: str
    cases: int
    bound: Bound
    own_loss: float
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One look at the canary.

    Attributes:
        since: start of the new environment, Unix seconds.
        peers: nodes that it is compared with; empty: only with its own past.
        groups: all cases together, then those that share a label.
        unpaired: cases without a peer or with too few runs before the upgrade.
    """

    canary: str
    since: float
    tolerance: float
    peers: tuple[str, ...]
    groups: tuple[Judged, ...]
    cases: tuple[Judged, ...]
    unpaired: tuple[str, ...] = ()
    decision: Decision = field(default=Decision.UNDECIDED)

    @property
    def seconds(self) -> float | None:
        """Time until the last group is decided; None: unknown."""
        waiting = [one.seconds for one in self.groups if one.bound.decision is not Decision.PASS]
        known = [one for one in waiting if one is not None]
        return max(known) if known and len(known) == len(waiting) else None

    @property
    def wait(self) -> tuple[float, float] | None:
        """Earliest and latest time until the decision, in 80% of upgrades; None: unknown.

        Noise decides when the last group is certain: no single time is right within 20% in more
        than 42% of simulated upgrades, so the range of `make bench-advice` is stated.
        """
        seconds = self.seconds
        return None if seconds is None else (seconds * _EARLIEST, seconds * _LATEST)


def start_of(periods: Iterable[EnvironmentPeriod], node: str) -> EnvironmentPeriod | None:
    """Return the current environment period of a node if another precedes it."""
    own = [period for period in periods if period.node == node]
    return own[-1] if len(own) > 1 else None


def gate(
    canary: str,
    since: float,
    tolerance: float,
    cases: Mapping[str, Definition],
    trends: Mapping[str, Trend],
    *,
    peers: Collection[str] = (),
    periods: Sequence[EnvironmentPeriod] = (),
) -> GateResult:
    """Return one look at a canary; looks may repeat after every run.

    Args:
        since: start of the canary's new environment, Unix seconds.
        tolerance: largest acceptable loss, 0.05 for 5%.
        cases, trends: of all nodes, with long trends.
        peers: nodes to compare with; empty: all others.
        periods: a peer's runs count from and to its environment at `since`.
    """
    nodes = set(peers) or {one.node for one in cases.values()} - {canary}
    spans = {node: _span(periods, node, since) for node in nodes}
    own = {key: one for key, one in cases.items() if one.node == canary}
    found, unpaired, used = [], [], set()
    for key, one in sorted(own.items()):
        others = [
            (other.node, _values(trends.get(name), spans[other.node]))
            for name, other in cases.items()
            if other.node in nodes and _alike(one, other)
        ]
        used |= {node for node, values in others if values}
        series = _series(one, trends.get(key), [values for _, values in others], since)
        if len(series.before) < LEAST_BEFORE:
            unpaired.append(one.name)
        else:
            found.append(series)
    return _result(canary, since, tolerance, found, tuple(unpaired), tuple(sorted(used)))


def _span(periods: Sequence[EnvironmentPeriod], node: str, since: float) -> tuple[float, float]:
    """Return start and end of the node's environment at a moment; without periods, no limits."""
    own = [one for one in periods if one.node == node]
    current = [one for one in own if one.started.timestamp() <= since]
    if not current:
        return -math.inf, math.inf
    later = [one.started.timestamp() for one in own if one.started.timestamp() > since]
    begin = current[-1].started.timestamp() if len(current) > 1 else -math.inf
    return begin, min(later, default=math.inf)


def _alike(one: Definition, other: Definition) -> bool:
    same = (one.scenario, one.workload) == (other.scenario, other.workload)
    return same and one.conditions == other.conditions


Values = Sequence[tuple[float, float]]
"""(Unix seconds, logarithm) of the runs of a case, oldest first."""


def _values(trend: Trend | None, span: tuple[float, float]) -> Values:
    """Return the runs with a positive value: zeros are no baseline."""
    sums: dict[int, float] = {}
    times: dict[int, float] = {}
    for point in trend.points if trend else ():
        times[point.run] = point.finished.timestamp()
        sums[point.run] = sums.get(point.run, 0.0) + point.value
    return sorted(
        (times[run], math.log(value))
        for run, value in sums.items()
        if value > 0 and span[0] <= times[run] < span[1]
    )


def _series(one: Definition, trend: Trend | None, others: Sequence[Values], since: float) -> Series:
    own = _values(trend, (-math.inf, math.inf))
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(own)]
    interval = median(gaps) if gaps else 0.0
    known = [values for values in others if values]
    pairs = own if not known else list(_paired(own, known, WINDOW * interval))
    before = tuple(value for time, value in pairs if time < since)
    after = tuple(value for time, value in pairs if time >= since)
    past = [value for time, value in own if time < since]
    present = [value for time, value in own if time >= since]
    return Series(
        name=one.name,
        labels=one.labels,
        before=before,
        after=after,
        own_loss=-math.expm1(fmean(present) - fmean(past)) if past and present else math.nan,
        interval=interval,
    )


def _paired(own: Values, others: Sequence[Values], window: float) -> Iterator[tuple[float, float]]:
    """Yield the canary's values minus the mean of its peers' nearest ones in the window."""
    for time, value in own:
        near = [found for values in others if (found := _nearest(values, time, window)) is not None]
        if near:
            yield time, value - fmean(near)


def _nearest(values: Values, time: float, window: float) -> float | None:
    place = bisect_left(values, (time, -math.inf))
    around = values[max(0, place - 1) : place + 1]
    at, value = min(around, key=lambda one: abs(one[0] - time))
    return value if abs(at - time) <= window else None


def _result(
    canary: str,
    since: float,
    tolerance: float,
    found: Sequence[Series],
    unpaired: tuple[str, ...],
    peers: tuple[str, ...],
) -> GateResult:
    groups = list(_groups(found))
    # Half of the error probability for single cases, a quarter for all together, which an update
    # usually concerns, and a quarter for the other groups.
    more = max(1, len(groups) - 1)
    judged = [
        _judged(name, own, tolerance, CHANCE / 4 / (more if place else 1))
        for place, (name, own) in enumerate(groups)
    ]
    single = [_judged(one.name, [one], tolerance, CHANCE / 2 / len(found)) for one in found]
    return GateResult(
        canary=canary,
        since=since,
        tolerance=tolerance,
        peers=peers,
        groups=tuple(judged),
        cases=tuple(single),
        unpaired=unpaired,
        decision=_decision(judged, single),
    )


def _decision(groups: Sequence[Judged], cases: Sequence[Judged]) -> Decision:
    """Return the decision: any loss stops; only groups without a loss pass."""
    decisions = [one.bound.decision for one in groups]
    if Decision.STOP in [*decisions, *(one.bound.decision for one in cases)]:
        return Decision.STOP
    passed = decisions and all(one is Decision.PASS for one in decisions)
    return Decision.PASS if passed else Decision.UNDECIDED


def _groups(found: Sequence[Series]) -> Iterator[tuple[str, list[Series]]]:
    """Yield all cases, then each label's cases if they are several but not all."""
    if found:
        yield "all cases", list(found)
    for label in _SHARED:
        for value in sorted({one.labels[label] for one in found}):
            own = [one for one in found if one.labels[label] == value]
            if 1 < len(own) < len(found):
                yield f"{label} {value}", own


def _judged(name: str, own: Sequence[Series], tolerance: float, chance: float) -> Judged:
    before, after = _mean(own, after=False), _mean(own, after=True)
    result = bound(before, after, tolerance=tolerance, chance=chance)
    interval = median(one.interval for one in own)
    losses = [one.own_loss for one in own if not math.isnan(one.own_loss)]
    return Judged(
        name=name,
        cases=len(own),
        bound=result,
        own_loss=fmean(losses) if losses else math.nan,
        seconds=None if result.more is None else result.more * result.thinned * interval,
    )


def _mean(own: Sequence[Series], *, after: bool) -> list[float]:
    """Return the mean of the cases per round, weighted by their noise before the upgrade.

    Rounds are counted from the upgrade on, in both directions.
    """
    weights = [1 / max(_LEAST_VARIANCE, one.variance) for one in own]
    rounds = min(len(one.after if after else one.before) for one in own)
    if not rounds:
        return []
    columns = [one.after[:rounds] if after else one.before[-rounds:] for one in own]
    total = sum(weights)
    return [
        sum(weight * value for weight, value in zip(weights, row, strict=True)) / total
        for row in zip(*columns, strict=True)
    ]
