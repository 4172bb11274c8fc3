"""What is told: every change once, with all that moved with it, and what it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pvebench.analysis.causes import Candidate, Difference, Match
from pvebench.analysis.figures import Figure
from pvebench.analysis.groups import Group
from pvebench.analysis.meanwhile import Meanwhile

ChangeKind = Literal["slower", "faster", "suspicious", "stall", "cost", "operation", "accounting"]
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
class Finding:
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
        reason: why a gain is suspicious.
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
    meanwhile: tuple[Meanwhile, ...] = ()
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
        return not self.accepted and (self.kind == "suspicious" or self.moves[0].effect < 0)


def told_once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with those made one that are the same on several nodes.

    The same versions came, the same cases by what they share moved the same way and about as
    far. A change at an unknown time is each node's own.
    """
    found: list[Finding] = []
    for finding in findings:
        place = next((i for i, one in enumerate(found) if _same(one, finding)), None)
        if place is None:
            found.append(finding)
        else:
            found[place] = _joined(found[place], finding)
    return tuple(found)


def _same(one: Finding, other: Finding) -> bool:
    apart = other.node not in one.node.split(AND)
    alike = one.known and one.group is not None and _marks(one) == _marks(other)
    return apart and alike and _as_far(one.moves[0], other.moves[0])


def _marks(one: Finding) -> tuple[object, ...]:
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


def _joined(one: Finding, other: Finding) -> Finding:
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
