"""Canary gate: an upgraded node against its own past and its peers at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import Final

from pvebench.advice.gate_bound import LEAST_BEFORE, TOLERANCE, Bound, Decision, Series, bounds
from pvebench.analysis.arrays import np
from pvebench.analysis.case_history import CaseHistory
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.units import DAY
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.node_verdicts import Verdicts

SHOWN_SECONDS: Final = 30 * DAY
"""A node counts as upgraded for so long after the start of its environment."""
_EVER: Final = (-math.inf, math.inf)
WINDOW: Final = 1.5
"""A peer's run within so many intervals of a canary's run is of the same time."""
_EARLIEST, _LATEST = 0.7, 2.2
"""10% and 90% quantiles of the time until a decision, relative to its estimate."""


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
    groups: tuple[Bound, ...]
    cases: tuple[Bound, ...]
    unpaired: tuple[str, ...] = ()
    regressions: tuple[str, ...] = ()
    back: GateResult | None = None

    @cached_property
    def decision(self) -> Decision:
        """Any loss or regression stops; only groups without a loss pass."""
        if self.back is not None:
            return _of_both(self, self.back)
        if self.regressions or self.stops:
            return Decision.STOP
        passed = all(group.decision is Decision.PASS for group in self.groups)
        return Decision.PASS if passed and self.groups else Decision.UNDECIDED

    @property
    def stops(self) -> list[Bound]:
        """The groups and cases with a loss above the tolerance."""
        every = (*self.groups, *self.cases)
        return [judged for judged in every if judged.decision is Decision.STOP]

    @property
    def wait(self) -> tuple[float, float] | None:
        """Earliest and latest time until the last group is decided, in 80% of upgrades, seconds.

        Noise decides when the last group is certain: even the best single time, chosen with full
        knowledge, is rarely right within 20% (`make bench-advice`). So a range is stated. None:
        unknown.
        """
        groups = (self.back or self).groups
        waits = [group.seconds for group in groups if group.decision is not Decision.PASS]
        known = [seconds for seconds in waits if seconds is not None]
        if not known or len(known) < len(waits):
            return None
        return max(known) * _EARLIEST, max(known) * _LATEST


def _of_both(there: GateResult, back: GateResult) -> Decision:
    """Return the decision of A B B A: a loss relative to both sides is one of the update.

    A drift, or a fault that began with the update and stays, is a loss relative to one side only.
    The mean of both sides has a smaller error than each, and a linear drift cancels out in it.
    """
    after = {judged.series.name: judged for judged in (*back.groups, *back.cases)}
    pairs = [(judged, after.get(judged.series.name)) for judged in (*there.groups, *there.cases)]
    if any(_lost(first, second, there.tolerance) for first, second in pairs):
        return Decision.STOP
    passed = all(
        any(side is not None and side.decision is Decision.PASS for side in sides)
        for sides in pairs[: len(there.groups)]
    )
    return Decision.PASS if passed and there.groups else Decision.UNDECIDED


def _lost(there: Bound, back: Bound | None, tolerance: float) -> bool:
    """Return whether both sides show a loss, and their mean one above the tolerance."""
    sides = [side.apart for side in (there, back) if side is not None and side.apart is not None]
    if len(sides) < 2 or max(side.high for side in sides) >= 0:
        return False
    error = math.hypot(*(side.high - side.effect for side in sides)) / 2
    return fmean(side.effect for side in sides) + error < math.log1p(-tolerance)


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
            return replace(self._since(since), regressions=tuple(self._regressions(since)))
        upgrade = periods[-2].started.timestamp()
        there = self._since(upgrade, (-math.inf, since))
        return replace(there, back=self._since(since, (upgrade, math.inf), sign=-1))

    def _since(
        self, since: float, span: tuple[float, float] = _EVER, *, sign: int = 1
    ) -> GateResult:
        """Return one look, without regressions of the verdict.

        Args:
            since: start of the canary's new environment, Unix seconds.
            span: only runs of the canary in it count, Unix seconds.
            sign: -1: the loss of the time before `since` relative to the time after it.
        """
        nodes = (set(self.peers) or {case.node for case in self.cases.values()}) - {self.canary}
        spans = {node: _span(self.periods, node, since) for node in nodes} | {self.canary: span}
        histories = _throughputs(self.verdicts)
        own: list[tuple[Definition, Runs]] = []
        others: dict[tuple[str, ...], list[tuple[str, Runs]]] = {}
        for key, case in sorted(self.cases.items(), key=itemgetter(0)):
            if case.node not in spans:
                continue
            runs = runs_of(histories.get(key, ()), spans[case.node], sign)
            if case.node == self.canary:
                own.append((case, runs))
            elif runs:
                others.setdefault(_place(case), []).append((case.node, runs))
        peers = {node for case, _ in own for node, _ in others.get(_place(case), ())}
        series = [
            series_of(case, runs, [values for _, values in others.get(_place(case), ())], since)
            for case, runs in own
        ]
        paired = [case for case in series if len(case.before) >= LEAST_BEFORE]
        groups, cases = bounds(paired, self.tolerance)
        return GateResult(
            canary=self.canary,
            since=since,
            tolerance=self.tolerance,
            peers=tuple(sorted(peers)),
            groups=groups,
            cases=cases,
            unpaired=tuple(case.name for case in series if len(case.before) < LEAST_BEFORE),
        )

    def _regressions(self, since: float) -> Iterator[str]:
        """Yield the open regressions of the verdict that began on the node with the upgrade."""
        for change in self.verdicts.changes:
            # A change of several nodes begins on the first of them.
            begun = change.begin >= since - DAY
            if change.regression and self.canary in change.nodes and begun:
                yield sentence(change)


def _throughputs(verdicts: Verdicts) -> dict[str, list[CaseHistory]]:
    """Return case key -> its judged throughput, one history per direction."""
    histories: dict[str, list[CaseHistory]] = {}
    for verdict in verdicts.verdicts:
        if verdict.history.figure.name == "throughput":
            histories.setdefault(verdict.history.of, []).append(verdict.history)
    return histories


def _span(periods: Sequence[EnvironmentPeriod], node: str, since: float) -> tuple[float, float]:
    """Return start and end of the node's environment at a moment; the first one has no start."""
    starts = [period.started.timestamp() for period in periods if period.node == node]
    place = bisect_right(starts, since)
    end = starts[place] if 0 < place < len(starts) else math.inf
    return starts[place - 1] if place > 1 else -math.inf, end


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
    pairs = list(_paired(own, others, WINDOW * interval)) if others else own
    return Series(
        name=definition.name,
        labels=definition.labels,
        before=np.array([value for time, value in pairs if time < since]),
        after=np.array([value for time, value in pairs if time >= since]),
        interval=interval,
    )


def _paired(own: Runs, others: Sequence[Runs], window: float) -> Iterator[tuple[float, float]]:
    """Yield the canary's values minus the mean of its peers' nearest ones in the window."""
    for time, value in own:
        nearest = (_nearest(values, time) for values in others)
        near = [value for at, value in nearest if abs(at - time) <= window]
        if near:
            yield time, value - fmean(near)


def _nearest(values: Runs, time: float) -> tuple[float, float]:
    place = bisect_left(values, (time, -math.inf))
    return min(values[max(0, place - 1) : place + 1], key=lambda run: abs(run[0] - time))
