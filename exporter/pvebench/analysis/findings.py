"""What to tell: every change once, with all that moved together with it, and what it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pvebench.analysis.attribution import Difference, Match
from pvebench.analysis.causes import Candidate
from pvebench.analysis.figures import Figure
from pvebench.analysis.groups import Group

Kind = Literal["slower", "faster", "suspicious", "stall", "cost", "operation", "accounting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How far one figure has moved; logarithms, plus for better.

    Attributes:
        cases: that moved.
        runs: after the change, of the case with the fewest; of a slow one: over which it came.
    """

    figure: Figure
    effect: float
    low: float
    high: float
    cases: int
    runs: int


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
        differences: between the environments, the likeliest to matter first.
        candidates: what happened near a change at an unknown time.
        issues: known ones that fit.
        reason: why a gain is suspicious.
        accepted: somebody has accepted it.
        over: later changes have taken back the better half of it.
        back: it takes back the better half of what had changed before.
    """

    time: float
    node: str
    known: bool
    kind: Kind
    group: Group | None
    all_but: bool
    cases: tuple[str, ...]
    names: tuple[str, ...]
    of: int
    moves: tuple[Move, ...]
    differences: tuple[Difference, ...]
    candidates: tuple[Candidate, ...] = ()
    issues: tuple[Match, ...] = ()
    reason: str = ""
    accepted: bool = False
    slow: bool = False
    over: bool = False
    back: bool = False

    @property
    def regression(self) -> bool:
        """Whether somebody should look at it."""
        return not self.accepted and (self.kind == "suspicious" or self.moves[0].effect < 0)
