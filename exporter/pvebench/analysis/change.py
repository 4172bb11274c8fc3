"""One change of any number of cases: its size, its likely causes, and its state."""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pvebench.analysis.case_history import ChangeKind, Group
from pvebench.analysis.concurrent_changes import ConcurrentChange
from pvebench.model.environment import FACT_NAMES, KnownIssue
from pvebench.model.figure import VerdictFigure

# --- Likely causes: differences, known issues, events nearby.

INCOMPARABLE: Final = ("accel", "cpu_model", "cpus")
"""Facts that identify the machine: results before and after a change of one do not compare."""
SAME: Final = 0.25
"""Largest difference from the throughput's effect, as a share of it, of a dependent metric."""
LEAST_SHARE: Final = 0.8
"""Minimum share of the changed cases that have an option required by a known issue."""


@dataclass(frozen=True, slots=True)
class FactDifference:
    """One fact that differs between two environments; empty text: unknown."""

    fact: str
    before: str
    after: str


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FactDifference, ...]:
    """Return the differences between two environments, likeliest cause first."""
    facts = [fact for fact in {**before, **after} if before.get(fact) != after.get(fact)]
    rank = {fact: number for number, fact in enumerate(FACT_NAMES)}
    facts.sort(key=lambda fact: (rank.get(fact, len(rank)), fact))
    different = [FactDifference(fact, before.get(fact, ""), after.get(fact, "")) for fact in facts]
    # The package's version is more precise than QEMU's own number.
    packaged = any(
        difference.fact == "qemu_package" and difference.after for difference in different
    )
    return tuple(
        difference for difference in different if not (packaged and difference.fact == "qemu")
    )


def incomparable(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[FactDifference, ...]:
    """Return the differences that make results incomparable."""
    return tuple(
        difference for difference in differences(before, after) if difference.fact in INCOMPARABLE
    )


@dataclass(frozen=True, slots=True)
class Match:
    """A known issue that fits a change.

    Attributes:
        ends: True if the upgrade leaves the affected versions, so that the fix has arrived.
        fixed_in: first version without the issue; empty: unknown.
    """

    issue: KnownIssue
    ends: bool
    fixed_in: str


def known_issues(
    issues: Sequence[KnownIssue],
    before: Mapping[str, str],
    after: Mapping[str, str],
    moved: Mapping[str, float],
    members: Sequence[Mapping[str, str]],
) -> tuple[Match, ...]:
    """Return the known issues that fit, the most specific first.

    Args:
        before, after: facts of the environments on both sides.
        moved: metric -> its effect, logarithm, plus for better.
        members: labels of the changed cases.
    """
    matches = []
    for issue in issues:
        old, new = issue.holds(before), issue.holds(after)
        if (old is None) == (new is None):
            continue
        if not _same_shape(issue, moved, begins=new is not None) or not _fits(issue, members):
            continue
        versions = new or old
        fixed = (versions.fix.fixed_in or versions.fix.before) if versions is not None else ""
        matches.append((_specificity(issue, moved), Match(issue, new is None, fixed)))
    matches.sort(key=lambda pair: -pair[0])
    return tuple(match for _, match in matches)


def derived(name: str, moved: Mapping[str, float]) -> bool:
    """Return whether a metric only follows the throughput.

    At a fixed depth half the rate is twice the latency, and twice the CPU per I/O if the host
    works as hard as before.
    """
    speed = moved.get("throughput")
    if speed is None or name not in moved or name == "throughput":
        return False
    return abs(moved[name] - speed) < SAME * abs(speed)


def _same_shape(issue: KnownIssue, moved: Mapping[str, float], *, begins: bool) -> bool:
    """Return whether a metric of the issue moved its way, independently of the throughput."""
    worse = begins != (issue.kind == "implausible")
    return any(
        name in moved and (moved[name] < 0) == worse and not derived(name, moved)
        for name in issue.moves
    )


def _fits(issue: KnownIssue, members: Sequence[Mapping[str, str]]) -> bool:
    """Return whether enough changed cases have the options that the issue requires."""
    return all(
        _share(members, option, values) >= LEAST_SHARE for option, values in issue.options.items()
    )


def _share(members: Sequence[Mapping[str, str]], option: str, values: Collection[str]) -> float:
    # A case without the label does not contradict the issue.
    return sum(member.get(option, "") in {"", *values} for member in members) / max(1, len(members))


def _specificity(issue: KnownIssue, moved: Mapping[str, float]) -> float:
    """Return a score: shared metrics, options, and whether the issue's first metric moved."""
    common = sum(name in moved for name in issue.moves) / len(issue.moves)
    return common + 0.5 * len(issue.options) + (issue.moves[0] in moved)


@dataclass(frozen=True, slots=True)
class NearbyEvent:
    """An event that may have moved a level, at `time` (Unix seconds).

    `runs` counts from the change to the event; 0: at the same run.
    """

    time: float
    kind: Literal["environment", "gap"]
    text: str
    runs: int = 0


LEAST_PAUSES: Final = 12
"""Minimum pauses that show their usual length."""


def gaps(times: Sequence[float], *, factor: float = 5.0) -> tuple[NearbyEvent, ...]:
    """Return pauses `factor` times as long as usual: the system may have changed.

    Args:
        times: ends of runs, Unix seconds, oldest first.
    """
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) < LEAST_PAUSES:
        return ()
    usual = statistics.median(pauses)
    return tuple(
        NearbyEvent(times[index + 1], "gap", f"no run for {pause / 3600:.0f} h")
        for index, pause in enumerate(pauses)
        if pause > factor * usual and usual > 0
    )


def candidates(
    times: Sequence[float], index: int, events: Sequence[NearbyEvent], *, within: int = 5
) -> tuple[NearbyEvent, ...]:
    """Return the events at most `within` runs from the change at `index`, nearest first.

    An environment change comes before a gap at the same distance.
    """
    counted = (replace(event, runs=bisect_left(times, event.time) - index) for event in events)
    near = [event for event in counted if abs(event.runs) <= within]
    return tuple(sorted(near, key=lambda event: (abs(event.runs), event.kind)))


# --- The change itself.

ChangeState = Literal["open", "accepted", "resolved"]
Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How far one metric has moved; logarithms, plus for better.

    Attributes:
        cases: number of cases that moved.
        runs: after the change, of the case with the fewest; of a drift: over which it developed.
        p_value: of the group, or of the most certain case, adjusted for the number of cases.
    """

    figure: VerdictFigure
    effect: float
    low: float
    high: float
    cases: int
    runs: int
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One event that changed any number of cases; every output shows this object.

    `ChangeTracker` sets `id`, `storages` and `severity` after detection.

    Attributes:
        id: constant; empty: not named yet.
        begin: time of the event, or of the first run after the change, Unix seconds; of a drift:
            since when it is visible.
        end: when later changes had taken back more than half of it, in half of its cases, Unix
            seconds; None: not yet.
        state: `open`: it lasts, and no decision accepts it; `resolved`: it ended, or the latest
            runs no longer show it.
        known: whether an environment change explains it.
        kind: how its cases changed; see `CaseStep`.
        share: share of the runs that changed, if not all of them.
        group: labels that its cases share; empty: all cases; None: cases are only listed.
        all_but: the cases are those outside the group.
        names: names of the cases.
        of: number of judged cases in the group.
        moves: moved metrics, the most important first.
        came_with: differences at each event that may explain it, oldest event first, likeliest
            difference first; the runs cannot separate several events.
        events_apart: runs between the first and the last of those events.
        candidates: events near a change at an unknown time.
        issues: known issues that fit.
        meanwhile: other possible causes that changed at the same time.
        reason: why an improvement is implausible.
        back: it returns to the level before an earlier change.
        storages: storages of its cases, sorted.
        severity: `critical`: much of a storage got slower; `info`: no open regression.
    """

    begin: float
    nodes: tuple[str, ...]
    known: bool
    group: Group | None
    all_but: bool
    cases: tuple[str, ...]
    names: tuple[str, ...]
    of: int
    moves: tuple[Move, ...]
    came_with: tuple[tuple[FactDifference, ...], ...] = ()
    events_apart: int = 0
    candidates: tuple[NearbyEvent, ...] = ()
    issues: tuple[Match, ...] = ()
    meanwhile: tuple[ConcurrentChange, ...] = ()
    reason: str = ""
    kind: ChangeKind = "level"
    share: float = 1.0
    back: bool = False
    state: ChangeState = "open"
    end: float | None = None
    id: str = ""
    storages: tuple[str, ...] = ()
    severity: Severity = "info"

    @property
    def differences(self) -> tuple[FactDifference, ...]:
        """All differences at the events that may explain it."""
        return tuple(difference for event in self.came_with for difference in event)

    @property
    def slow(self) -> bool:
        """Whether it is a drift."""
        return self.kind == "drift"

    @property
    def implausible(self) -> bool:
        """Whether it is an improvement that is rarely real."""
        return bool(self.reason)

    @property
    def worse(self) -> bool:
        """Whether its most important metric moved for the worse."""
        return self.moves[0].effect < 0

    @property
    def regression(self) -> bool:
        """Whether it is open and needs attention."""
        return self.state == "open" and (self.implausible or self.worse)

    def may_be(self, other: Change) -> bool:
        """Return whether another change came with the same new versions and is of its kind."""
        return self.known and other.known and self._traits() == other._traits()

    def _traits(self) -> tuple[object, ...]:
        versions = [
            {(difference.fact, difference.after) for difference in event}
            for event in self.came_with
        ]
        return versions, self.kind, self.state, self.back, self.implausible, self.worse
