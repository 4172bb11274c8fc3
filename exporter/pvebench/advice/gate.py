"""Canary gate: an upgraded node against its own past and its peers at the same time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, median
from typing import Any, Final

from pvebench.advice.gate_statistic import LEAST_BEFORE, TOLERANCE, Bound, Decision, Series, bounds
from pvebench.analysis.arrays import np
from pvebench.analysis.case_history import CaseHistory
from pvebench.model.definition import Definition
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.units import DAY, count_text, show_clock, show_time
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


# --- A look as text and as data.

EXIT_CODES: Final = {Decision.PASS: 0, Decision.STOP: 1, Decision.UNDECIDED: 10}
_LISTED: Final = 5
"""Maximum single cases of a look."""
_HEADS: Final = {
    Decision.PASS: "Go on: a loss of {tolerance} or more is excluded",
    Decision.STOP: "Stop: the loss is above {tolerance}",
    Decision.UNDECIDED: "Undecided: neither a loss above {tolerance} nor its absence is certain",
}
_HEADS_BACK: Final = {
    Decision.PASS: "Go on: the update did not cause a loss of {tolerance} or more",
    Decision.STOP: "Stop: a loss above {tolerance} began with the update and ended without it",
    Decision.UNDECIDED: "Undecided: a loss above {tolerance} by the update is uncertain",
}


def gate_lines(result: GateResult, now: datetime) -> Iterator[str]:
    """Yield the lines of a look."""
    yield f"{_head(result)} ({result.canary})."
    against = f"{', '.join(result.peers)} at the same time."
    if not result.peers:
        against = "its own past only: without peers, a fault of a shared storage looks the same."
    yield f"Upgraded {show_time(result.since)}; compared with {against}"
    yield from (f"Regression by the verdict: {text}" for text in result.regressions)
    if result.back is not None:
        returned = show_time(result.back.since)
        yield f"Returned to the environment before on {returned} (A B B A)."
        yield "Relative to the time before the upgrade:"
        yield from _bound_lines(result)
        yield "Relative to the time after the return:"
    elif not result.regressions:
        yield "Verdict: no confirmed regression since the upgrade."
    yield from _bound_lines(result.back or result)
    if result.decision is Decision.UNDECIDED:
        yield _until(result, (result.back or result).groups, now)
    if result.unpaired:
        count = count_text(len(result.unpaired), "case")
        runs = "paired runs" if result.peers else "runs"
        yield f"Not judged, fewer than {LEAST_BEFORE} {runs} before the upgrade: {count}."


def _head(result: GateResult) -> str:
    """Return the decision with its cause, which is the verdict if no series is above."""
    if result.back is None and result.decision is Decision.STOP and not result.stops:
        return "Stop: the verdict confirmed a regression since the upgrade"
    heads = _HEADS if result.back is None else _HEADS_BACK
    return heads[result.decision].format(tolerance=f"{100 * result.tolerance:g}%")


def _bound_lines(result: GateResult) -> Iterator[str]:
    """Yield all groups, and the first cases with a loss above the tolerance."""
    stops = [case for case in result.cases if case.decision is Decision.STOP]
    yield from map(_bound_text, (*result.groups, *stops[:_LISTED]))
    if len(stops) > _LISTED:
        yield f"- {len(stops) - _LISTED} more cases: stop (--format json)"


def _bound_text(bound: Bound) -> str:
    """Return `- bus scsi (4 cases): loss 9.8% (4.2 to 15.0%), 6 runs: stop`."""
    series, runs = bound.series, count_text(len(bound.series.after), "run")
    begin = f"- {series.name} ({count_text(series.cases, 'case')}):"
    if bound.loss is None:
        return f"{begin} {runs}, too few"
    loss, low, high = (100 * ratio for ratio in bound.loss)
    return f"{begin} loss {loss:.1f}% ({low:.1f} to {high:.1f}%), {runs}: {bound.decision}"


def _until(result: GateResult, groups: Sequence[Bound], now: datetime) -> str:
    """Return when an undecided look will be decided, or what it lacks."""
    if not result.groups:
        return "Measure first: no case has enough paired runs before the upgrade."
    if all(group.decision is Decision.PASS for group in groups):  # without cases of too few runs
        return f"Install the update again: fewer than {LEAST_BEFORE} runs with it cannot decide."
    if result.wait is not None:
        first, last = (show_clock(now + timedelta(seconds=end), now) for end in result.wait)
        when = f"about {first}" if first == last else f"between {first} and {last}"
        return f"Expected decision: {when}, if the loss stays the same."
    before = min(len(group.series.before) for group in groups)
    enough = [group.enough or 0 for group in groups if group.seconds is None]
    if min(enough) == 0 or max(enough) <= before:
        return "When it will be decided is unknown: the loss is too near to the tolerance."
    return (
        f"More runs cannot decide: the {count_text(before, 'run')} before are too few. With this "
        f"loss, about {max(enough)} before and as many after do; until then, add peers or raise "
        "the tolerance."
    )


def gate_data(result: GateResult, now: datetime) -> dict[str, Any]:
    """Return a look as plain data."""
    wait = result.wait if result.decision is Decision.UNDECIDED else None
    times = [(now + timedelta(seconds=end)).isoformat(timespec="seconds") for end in wait or ()]
    return {
        "canary": result.canary,
        "decision": str(result.decision),
        "exit_code": EXIT_CODES[result.decision],
        "since": datetime.fromtimestamp(result.since, UTC).isoformat(),
        "tolerance_ratio": result.tolerance,
        "peers": list(result.peers),
        "expected_between": times or None,
        "regressions": list(result.regressions),
        "groups": [_bound_data(group) for group in result.groups],
        "cases": [_bound_data(case) for case in result.cases],
        "not_judged": list(result.unpaired),
        "back": None if result.back is None else gate_data(result.back, now),
    }


def _bound_data(bound: Bound) -> dict[str, Any]:
    loss, low, high = bound.loss or (None, None, None)
    return {
        "name": bound.series.name,
        "cases": bound.series.cases,
        "loss_ratio": loss,
        "low_ratio": low,
        "high_ratio": high,
        "runs_before": len(bound.series.before),
        "runs_after": len(bound.series.after),
        "decision": str(bound.decision),
    }
