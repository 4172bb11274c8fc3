"""The same change on several nodes is one change: an upgrade goes through a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.findings import Finding, Move

AND: Final = " and "
ALIKE: Final = 1.5
"""Times by which the effects on two nodes may differ and still be told as one."""


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
    came = {(difference.fact, difference.after) for difference in one.differences}
    return one.known, one.kind, one.group, one.all_but, came, one.over, one.back, one.accepted


def _as_far(one: Move, other: Move) -> bool:
    if one.figure is not other.figure or one.effect * other.effect <= 0:
        return False
    return abs(math.log(one.effect / other.effect)) < math.log(ALIKE)


def _joined(one: Finding, other: Finding) -> Finding:
    nodes = sorted({*one.node.split(AND), *other.node.split(AND)})
    return replace(
        one, node=AND.join(nodes), time=min(one.time, other.time),
        cases=(*one.cases, *other.cases), names=(*one.names, *other.names), of=one.of + other.of,
        moves=tuple(_mean(move, other.moves) for move in one.moves),
    )  # fmt: skip


def _mean(move: Move, others: Sequence[Move]) -> Move:
    """Return a figure's move on both nodes, each case counting once; the interval spans both."""
    other = next((found for found in others if found.figure is move.figure), None)
    if other is None:
        return move
    cases = move.cases + other.cases
    effect = (move.cases * move.effect + other.cases * other.effect) / cases
    return replace(
        move, effect=effect, low=min(move.low, other.low), high=max(move.high, other.high),
        cases=cases, runs=min(move.runs, other.runs),
    )  # fmt: skip
