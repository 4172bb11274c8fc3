"""Canary gate: an upgraded node against its own past and its peers at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import Final

from pvebench.advice.gate_bound import LEAST_BEFORE, Bound, Decision, bound
from pvebench.analysis.case_history import CaseHistory
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.units import DAY
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.node_verdicts import Verdicts

TOLERANCE: Final = 0.05
"""Largest acceptable loss by default."""
SHOWN_SECONDS: Final = 30 * DAY
"""A node counts as upgraded for so long after the start of its environment."""
_EVER: Final = (-math.inf, math.inf)
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


@dataclass(frozen=True, kw_only=True)
class Series:
    """Logarithms of the canary relative to its peers, oldest first.

    Attributes:
        interval: seconds between values.
    """

    name: str
    labels: Mapping[str, str]
    before: tuple[float, ...]
    after: tuple[float, ...]
    interval: float

    @cached_property
    def variance(self) -> float:
        """Variance before the upgrade."""
        mean = math.fsum(self.before) / len(self.before)
        return math.fsum((value - mean) ** 2 for value in self.before) / len(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSeries:
    """One series, a case or a group of cases, with its bound.

    Attributes:
        cases: number of cases.
        seconds: time until a decision; None: unknown.
    """

    name: str
    cases: int
    bound: Bound
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """One look at the canary.

    Attributes:
        since: start of the new environment, Unix seconds.
        peers: nodes that it is compared with; empty: only with its own past.
        groups: all cases together, then those that share a label.
        unpaired: cases without a peer or with too few runs before the upgrade.
        regressions: confirmed ones of the verdict on the node since the upgrade, as sentences.
        back: the same environment relative to the earlier one after the return to it (A B B A).
    """

    canary: str
    since: float
    tolerance: float
    peers: tuple[str, ...]
    groups: tuple[JudgedSeries, ...]
    cases: tuple[JudgedSeries, ...]
    unpaired: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()
    back: GateResult | None = None

    @cached_property
    def decision(self) -> Decision:
        """Any loss or regression stops; only groups without a loss pass."""
        if self.back is not None:
            return _of_both(self, self.back)
        decisions = [group.bound.decision for group in self.groups]
        cases = [case.bound.decision for case in self.cases]
        if self.regressions or Decision.STOP in [*decisions, *cases]:
            return Decision.STOP
        passed = decisions and all(decision is Decision.PASS for decision in decisions)
        return Decision.PASS if passed else Decision.UNDECIDED

    @property
    def seconds(self) -> float | None:
        """Time until the last group is decided; None: unknown."""
        waiting = [
            group.seconds for group in self.groups if group.bound.decision is not Decision.PASS
        ]
        known = [one for one in waiting if one is not None]
        return max(known) if known and len(known) == len(waiting) else None

    @property
    def wait(self) -> tuple[float, float] | None:
        """Earliest and latest time until the decision, in 80% of upgrades; None: unknown.

        Noise decides when the last group is certain: even the best single time, chosen with full
        knowledge, is rarely right within 20% (`make bench-advice`). So a range is stated.
        """
        seconds = (self.back or self).seconds
        return None if seconds is None else (seconds * _EARLIEST, seconds * _LATEST)


def _of_both(there: GateResult, back: GateResult) -> Decision:
    """Return the decision of A B B A: a loss relative to both sides is one of the update.

    A drift, or a fault that began with the update and stays, is a loss relative to one side only.
    The mean of both sides has a smaller error than each, and a linear drift cancels out in it.
    """
    after = {judged.name: judged.bound for judged in (*back.groups, *back.cases)}
    pairs = {
        judged.name: (judged.bound, after.get(judged.name))
        for judged in (*there.groups, *there.cases)
    }
    if any(_lost(first, second, there.tolerance) for first, second in pairs.values()):
        return Decision.STOP
    groups = [pairs[group.name] for group in there.groups]
    passed = groups and all(
        any(bound is not None and bound.decision is Decision.PASS for bound in both)
        for both in groups
    )
    return Decision.PASS if passed else Decision.UNDECIDED


def _lost(there: Bound, back: Bound | None, tolerance: float) -> bool:
    """Return whether both sides show a loss, and their mean one above the tolerance."""
    if back is None or not min(there.low, back.low) > 0:
        return False
    losses, widths = zip(
        *((_loss(side.loss), _loss(side.loss) - _loss(side.low)) for side in (there, back)),
        strict=True,
    )
    return fmean(losses) - math.hypot(*widths) / 2 > _loss(tolerance)


def _loss(ratio: float) -> float:
    return -math.log1p(-ratio)


def start_of(periods: Iterable[EnvironmentPeriod], node: str) -> EnvironmentPeriod | None:
    """Return the current environment period of a node if another precedes it."""
    environment_periods = [period for period in periods if period.node == node]
    return environment_periods[-1] if len(environment_periods) > 1 else None


def looks(
    verdicts: Verdicts,
    cases: Mapping[str, Definition],
    periods: Sequence[EnvironmentPeriod],
    now: datetime,
) -> Iterator[GateResult]:
    """Yield a look at each node with a new environment in the last `SHOWN_SECONDS`."""
    for node in sorted({case.node for case in cases.values()}):
        period = start_of(periods, node)
        if period and (now - period.started).total_seconds() <= SHOWN_SECONDS:
            yield Gate(node, verdicts, cases, periods).look()


@dataclass(frozen=True, slots=True)
class Gate:
    """A canary and the nodes that it is compared with.

    Attributes:
        cases: of all nodes.
        periods: a peer's runs count from and to its environment at the upgrade.
        tolerance: largest acceptable loss, 0.05 for 5%.
        peers: nodes to compare with; empty: all others.
    """

    canary: str
    verdicts: Verdicts
    cases: Mapping[str, Definition]
    periods: Sequence[EnvironmentPeriod] = ()
    tolerance: float = TOLERANCE
    peers: Collection[str] = ()

    def look(self, since: float | None = None) -> GateResult:
        """Return a look at the newest environment, or at the one before if the node has left it.

        Looks may repeat after every run.

        Args:
            since: start of the new environment, Unix seconds; None: by the periods of the node,
                which are two or more.
        """
        periods = [period for period in self.periods if period.node == self.canary]
        left = (
            since is None
            and len(periods) > 2
            and periods[-1].environment == periods[-3].environment
        )
        since = periods[-1].started.timestamp() if since is None else since
        if not left:
            result = self.since(since)
            return replace(result, regressions=tuple(self._regressions(since)))
        upgrade = periods[-2].started.timestamp()
        there = self.since(upgrade, (-math.inf, since))
        return replace(there, back=self.since(since, (upgrade, math.inf), sign=-1))

    def since(
        self, since: float, span: tuple[float, float] = _EVER, *, sign: int = 1
    ) -> GateResult:
        """Return one look, without regressions of the verdict.

        Args:
            since: start of the canary's new environment, Unix seconds.
            span: only runs in it count, Unix seconds.
            sign: -1: the loss of the time before `since` relative to the time after it.
        """
        nodes = set(self.peers) or {case.node for case in self.cases.values()} - {self.canary}
        spans = {node: _span(self.periods, node, since) for node in nodes}
        histories = throughputs(self.verdicts)
        same: dict[tuple[str, ...], list[tuple[str, Definition]]] = {}
        for key, definition in self.cases.items():
            if definition.node in nodes:
                same.setdefault(_place(definition), []).append((key, definition))
        found, unpaired, used = [], [], set()
        for key, definition in sorted(self.cases.items(), key=itemgetter(0)):
            if definition.node != self.canary:
                continue
            others = [
                (
                    other_definition.node,
                    runs_of(histories.get(name, ()), spans[other_definition.node], sign),
                )
                for name, other_definition in same.get(_place(definition), ())
            ]
            used |= {node for node, runs in others if runs}
            runs = runs_of(histories.get(key, ()), span, sign)
            series = series_of(definition, runs, [values for _, values in others], since)
            if len(series.before) < LEAST_BEFORE:
                unpaired.append(definition.name)
            else:
                found.append(series)
        groups, single = judged_series(found, self.tolerance)
        return GateResult(
            canary=self.canary,
            since=since,
            tolerance=self.tolerance,
            peers=tuple(sorted(used)),
            groups=groups,
            cases=single,
            unpaired=tuple(unpaired),
        )

    def _regressions(self, since: float) -> Iterator[str]:
        """Yield the open regressions of the verdict that began on the node with the upgrade."""
        for change in self.verdicts.changes:
            # A change of several nodes begins on the first of them.
            begun = change.begin >= since - DAY
            if change.regression and self.canary in change.nodes and begun:
                yield sentence(change)


def throughputs(verdicts: Verdicts) -> dict[str, list[CaseHistory]]:
    """Return case key -> its judged throughput, one history per direction."""
    histories: dict[str, list[CaseHistory]] = {}
    for report in verdicts.reports:
        for verdict in report.verdicts:
            if verdict.history.figure.name == "throughput":
                histories.setdefault(verdict.history.of, []).append(verdict.history)
    return histories


def _span(periods: Sequence[EnvironmentPeriod], node: str, since: float) -> tuple[float, float]:
    """Return start and end of the node's environment at a moment; without periods, no limits."""
    environment_periods = [period for period in periods if period.node == node]
    current = [period for period in environment_periods if period.started.timestamp() <= since]
    if not current:
        return -math.inf, math.inf
    later = [
        period.started.timestamp()
        for period in environment_periods
        if period.started.timestamp() > since
    ]
    begin = current[-1].started.timestamp() if len(current) > 1 else -math.inf
    return begin, min(later, default=math.inf)


def _place(definition: Definition) -> tuple[str, ...]:
    """Return what the same case of another node has in common."""
    return definition.scenario, definition.workload, definition.conditions


Runs = Sequence[tuple[float, float]]
"""(Unix seconds, logarithm) of the runs of a case, oldest first."""


def runs_of(histories: Iterable[CaseHistory], span: tuple[float, float], sign: int) -> Runs:
    """Return the runs with a positive value, all directions together: zeros are no baseline."""
    sums: dict[float, float] = {}
    for history in histories:
        for time, value in zip(history.points.times, history.points.values, strict=True):
            if span[0] <= time < span[1]:
                sums[time] = sums.get(time, 0.0) + value
    return sorted((time, sign * math.log(value)) for time, value in sums.items() if value > 0)


def series_of(definition: Definition, own: Runs, others: Sequence[Runs], since: float) -> Series:
    """Return a case relative to the same case of its peers; without peers, its own runs."""
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(own)]
    interval = median(gaps) if gaps else 0.0
    known = [values for values in others if values]
    pairs = own if not known else list(_paired(own, known, WINDOW * interval))
    return Series(
        name=definition.name,
        labels=definition.labels,
        before=tuple(value for time, value in pairs if time < since),
        after=tuple(value for time, value in pairs if time >= since),
        interval=interval,
    )


def _paired(own: Runs, others: Sequence[Runs], window: float) -> Iterator[tuple[float, float]]:
    """Yield the canary's values minus the mean of its peers' nearest ones in the window."""
    for time, value in own:
        near = [found for values in others if (found := _nearest(values, time, window)) is not None]
        if near:
            yield time, value - fmean(near)


def _nearest(values: Runs, time: float, window: float) -> float | None:
    place = bisect_left(values, (time, -math.inf))
    around = values[max(0, place - 1) : place + 1]
    at, value = min(around, key=lambda one: abs(one[0] - time))
    return value if abs(at - time) <= window else None


def judged_series(
    found: Sequence[Series], tolerance: float
) -> tuple[tuple[JudgedSeries, ...], tuple[JudgedSeries, ...]]:
    """Return the groups, all cases together first, and the single cases."""
    groups = list(_groups(found))
    # Half of the error probability for single cases, a quarter for all together, which an update
    # usually concerns, and a quarter for the other groups.
    more = max(1, len(groups) - 1)
    together = (
        _judged(name, series, tolerance, CHANCE / 4 / (more if place else 1))
        for place, (name, series) in enumerate(groups)
    )
    single = (
        _judged(series.name, [series], tolerance, CHANCE / 2 / len(found)) for series in found
    )
    return tuple(together), tuple(single)


def _groups(found: Sequence[Series]) -> Iterator[tuple[str, list[Series]]]:
    """Yield all cases, then each label's cases if they are several but not all."""
    if found:
        yield "all cases", list(found)
    for label in _SHARED:
        for value in sorted({one.labels[label] for one in found}):
            series = [one for one in found if one.labels[label] == value]
            if 1 < len(series) < len(found):
                yield f"{label} {value}", series


def _judged(name: str, own: Sequence[Series], tolerance: float, chance: float) -> JudgedSeries:
    before, after = _mean(own, after=False), _mean(own, after=True)
    result = bound(before, after, tolerance=tolerance, chance=chance)
    interval = median(series.interval for series in own)
    return JudgedSeries(
        name=name,
        cases=len(own),
        bound=result,
        seconds=None if result.more is None else result.more * interval,
    )


def _mean(own: Sequence[Series], *, after: bool) -> list[float]:
    """Return the mean of the cases per round, weighted by their noise before the upgrade.

    Rounds are counted from the upgrade on, in both directions.
    """
    weights = [1 / max(_LEAST_VARIANCE, series.variance) for series in own]
    rounds = min(len(series.after if after else series.before) for series in own)
    if not rounds:
        return []
    columns = [series.after[:rounds] if after else series.before[-rounds:] for series in own]
    total = sum(weights)
    return [
        sum(weight * value for weight, value in zip(weights, row, strict=True)) / total
        for row in zip(*columns, strict=True)
    ]
