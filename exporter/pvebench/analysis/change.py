"""What is told: every change once, with all that moved with it, and what it comes from."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pvebench.analysis.case_history import Figure, Group
from pvebench.analysis.concurrent_changes import ConcurrentChange
from pvebench.analysis.levels import LEAST
from pvebench.model.environment import KnownIssue

# --- What a change may come from: what differs, what is known of that, what happened near it.

LIKELY: Final = (
    "governor",
    "qemu_package",
    "qemu",
    "kernel",
    "zfs",
    "ceph",
    "qemu_server",
    "machine",
    "microcode",
    "fio",
    "guest_kernel",
    "guest_image",
    "cpu_type",
    "pve",
    "host_os",
)
"""Facts that move storage numbers, the likeliest first: pve-manager has hardly ever done so."""
INCOMPARABLE: Final = ("accel", "cpu_model", "cpus")
"""Across a change of these no number compares: it is another machine."""
SAME: Final = 0.25
"""Difference, as share of the throughput's effect, up to which a figure only follows it."""
MOST_OF_THEM: Final = 0.8
"""Share of the changed cases that must have an option which a known issue needs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that differs; empty text: it is not known there."""

    fact: str
    before: str
    after: str


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return what differs between two environments, the likeliest to matter first."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    order = {name: place for place, name in enumerate(LIKELY)}
    names.sort(key=lambda name: (order.get(name, len(order)), name))
    found = tuple(Difference(name, before.get(name, ""), after.get(name, "")) for name in names)
    # The package's version says more than QEMU's own number.
    packaged = any(one.fact == "qemu_package" and one.after for one in found)
    return tuple(one for one in found if not (packaged and one.fact == "qemu"))


def incomparable(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return the differences across which nothing compares."""
    return tuple(one for one in differences(before, after) if one.fact in INCOMPARABLE)


@dataclass(frozen=True, slots=True)
class Match:
    """A known issue that fits a change.

    Attributes:
        ends: True if the upgrade leaves the range of versions that have it: the fix has arrived.
        fixed_in: version that has it no more; empty: none is known.
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
        moved: figure -> its effect, logarithm, plus for better.
        members: labels of the changed cases.
    """
    found = []
    for issue in issues:
        old, new = issue.holds(before), issue.holds(after)
        if (old is None) == (new is None):
            continue
        if not _same_shape(issue, moved, begins=new is not None) or not _fits(issue, members):
            continue
        place = new or old
        fixed = (place.fixed_in or place.before) if place is not None else ""
        found.append((_closeness(issue, moved), Match(issue, new is None, fixed)))
    found.sort(key=lambda pair: -pair[0])
    return tuple(match for _, match in found)


def derived(name: str, moved: Mapping[str, float]) -> bool:
    """Tell whether a figure says only what the throughput says.

    At a fixed depth half the rate is twice the latency, and twice the CPU per I/O if the host
    works as hard as before.
    """
    speed = moved.get("throughput")
    if speed is None or name not in moved or name == "throughput":
        return False
    return abs(moved[name] - speed) < SAME * abs(speed)


def _same_shape(issue: KnownIssue, moved: Mapping[str, float], *, begins: bool) -> bool:
    """Tell whether a figure that the issue moves has moved that way, of its own."""
    worse = begins != (issue.kind == "implausible")
    return any(
        name in moved and (moved[name] < 0) == worse and not derived(name, moved)
        for name in issue.moves
    )


def _fits(issue: KnownIssue, members: Sequence[Mapping[str, str]]) -> bool:
    """Tell whether most changed cases have the options that the issue needs."""
    return all(
        _share(members, option, values) >= MOST_OF_THEM for option, values in issue.options.items()
    )


def _share(members: Sequence[Mapping[str, str]], option: str, values: Collection[str]) -> float:
    # A label that a case does not carry says nothing against the issue.
    return sum(member.get(option, "") in {"", *values} for member in members) / max(1, len(members))


def _closeness(issue: KnownIssue, moved: Mapping[str, float]) -> float:
    """Return how specific the match is: figures in common, options, a first figure that moved."""
    common = sum(name in moved for name in issue.moves) / len(issue.moves)
    return common + 0.5 * len(issue.options) + (issue.moves[0] in moved)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that may have moved a level: at `time` (seconds since the epoch, UTC)."""

    time: float
    kind: Literal["environment", "gap"]
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A happening near a change. `runs` counts from the change to it; 0: exactly there."""

    happening: Happening
    runs: int


def gaps(times: Sequence[float], *, factor: float = 5.0) -> tuple[Happening, ...]:
    """Return pauses `factor` times as long as usual: something may have happened meanwhile."""
    pauses = [after - before for before, after in itertools.pairwise(times)]
    if len(pauses) < LEAST:
        return ()
    usual = statistics.median(pauses)
    return tuple(
        Happening(times[index + 1], "gap", f"no run for {pause / 3600:.0f} h")
        for index, pause in enumerate(pauses)
        if pause > factor * usual and usual > 0
    )


def candidates(
    times: Sequence[float], index: int, happenings: Sequence[Happening], *, within: int = 5
) -> tuple[Candidate, ...]:
    """Return the happenings at most `within` runs from the change at `index`, nearest first.

    An environment change comes before a gap at the same distance.
    """
    order = ("environment", "gap")
    near = []
    for happening in happenings:
        place = sum(time < happening.time for time in times)
        if abs(place - index) <= within:
            near.append(Candidate(happening, place - index))
    near.sort(key=lambda one: (abs(one.runs), order.index(one.happening.kind)))
    return tuple(near)


ChangeKind = Literal["slower", "faster", "implausible", "stall", "cost", "operation", "accounting"]
AND: Final = " and "
ALIKE: Final = 1.5
"""Times by which the effects on two nodes may differ and still be told as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How far one figure has moved; logarithms, plus for better.

    Attributes:
        cases: that moved.
        runs: after the change, of the case with the fewest; of a slow one: over which it came.
        p_value: of the group, or of the clearest of the cases, adjusted for their number.
    """

    figure: Figure
    effect: float
    low: float
    high: float
    cases: int
    runs: int
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change.

    Attributes:
        node: where.
        time: of the event, or of the first run after the change.
        known: whether an environment change explains it.
        slow: whether it came little by little; `time` is then since when it is seen.
        kind: what sort of change it is.
        group: what its cases share; empty: everything; None: they are only listed.
        all_but: the cases are those that do not share it.
        names: of the cases, for people.
        of: how many judged cases share the group.
        moves: the figures that moved, the most telling first.
        came_with: what differs at each event that it may have come with, the oldest first, each
            the likeliest to matter first; of more than one it cannot be told which.
        events_apart: runs between the first and the last of those events.
        candidates: what happened near a change at an unknown time.
        issues: known ones that fit.
        meanwhile: what else changed with it, and may have brought it.
        reason: why a gain is implausible.
        accepted: somebody has accepted it.
        over: later changes have taken back the better half of it.
        until: since when they have; 0 where it is not over.
        back: it takes back the better half of what had changed before.
    """

    time: float
    node: str
    known: bool
    kind: ChangeKind
    group: Group | None
    all_but: bool
    cases: tuple[str, ...]
    names: tuple[str, ...]
    of: int
    moves: tuple[Move, ...]
    came_with: tuple[tuple[Difference, ...], ...] = ()
    events_apart: int = 0
    candidates: tuple[Candidate, ...] = ()
    issues: tuple[Match, ...] = ()
    meanwhile: tuple[ConcurrentChange, ...] = ()
    reason: str = ""
    accepted: bool = False
    slow: bool = False
    over: bool = False
    until: float = 0.0
    back: bool = False

    @property
    def differences(self) -> tuple[Difference, ...]:
        """All that differs at the events that it may have come with."""
        return tuple(one for event in self.came_with for one in event)

    @property
    def regression(self) -> bool:
        """Whether somebody should look at it."""
        return not self.accepted and (self.kind == "implausible" or self.moves[0].effect < 0)


def merge_nodes(findings: Sequence[Change]) -> tuple[Change, ...]:
    """Return the findings with those made one that are the same on several nodes.

    The same versions came, the same cases by what they share moved the same way and about as
    far. A change at an unknown time is each node's own.
    """
    found: list[Change] = []
    for finding in findings:
        place = next((i for i, one in enumerate(found) if _same(one, finding)), None)
        if place is None:
            found.append(finding)
        else:
            found[place] = _joined(found[place], finding)
    return tuple(found)


def _same(one: Change, other: Change) -> bool:
    apart = other.node not in one.node.split(AND)
    alike = one.known and one.group is not None and _marks(one) == _marks(other)
    return apart and alike and _as_far(one.moves[0], other.moves[0])


def _marks(one: Change) -> tuple[object, ...]:
    """Return what must be equal: which versions came, not from which they came."""
    came = tuple(
        frozenset((difference.fact, difference.after) for difference in event)
        for event in one.came_with
    )
    else_changed = {found.text for found in one.meanwhile}
    story = one.known, one.kind, one.group, one.all_but, came, else_changed
    return *story, one.over, one.back, one.accepted


def _as_far(one: Move, other: Move) -> bool:
    if one.figure is not other.figure or one.effect * other.effect <= 0:
        return False
    return abs(math.log(one.effect / other.effect)) < math.log(ALIKE)


def _joined(one: Change, other: Change) -> Change:
    nodes = sorted({*one.node.split(AND), *other.node.split(AND)})
    return replace(
        one,
        node=AND.join(nodes),
        time=min(one.time, other.time),
        cases=(*one.cases, *other.cases),
        names=(*one.names, *other.names),
        of=one.of + other.of,
        moves=tuple(_mean(move, other.moves) for move in one.moves),
    )


def _mean(move: Move, others: Sequence[Move]) -> Move:
    """Return a figure's move on both nodes, each case counting once; the interval spans both."""
    other = next((found for found in others if found.figure is move.figure), None)
    if other is None:
        return move
    cases = move.cases + other.cases
    effect = (move.cases * move.effect + other.cases * other.effect) / cases
    return replace(
        move,
        effect=effect,
        low=min(move.low, other.low),
        high=max(move.high, other.high),
        cases=cases,
        runs=min(move.runs, other.runs),
        p_value=min(move.p_value, other.p_value),
    )
