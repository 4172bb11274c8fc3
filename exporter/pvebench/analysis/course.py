"""What a step means among the others of its case: is it over, does it lead back?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.too_good import too_good
from pvebench.analysis.verdict import CaseStep, Verdict

LEFT: Final = 0.5
"""Share of a change that must be left for it to be one still."""


@dataclass(frozen=True, slots=True)
class Course:
    """A step among those before and after it.

    Attributes:
        over: later steps have taken back the better half of it.
        back: it takes back the better half of what was there before.
        reason: why the gain that it led to was too good to be true; empty: it was not.
    """

    over: bool
    back: bool
    reason: str


def course(verdict: Verdict, step: CaseStep) -> Course:
    """Return what a step of a case means among all that the case has had."""
    steps = (*verdict.accepted, *verdict.steps)
    before = sum(one.effect for one in steps if one.time < step.time)
    now = sum(one.effect for one in steps)
    over = not step.slow and (now - before) / step.effect < LEFT
    back = abs(before + step.effect) < LEFT * abs(before)
    gained = step.effect > 0 and not back
    reason = too_good(verdict.history, before + step.effect) if gained else ""
    return Course(over, back, reason)


def most(votes: Sequence[bool]) -> bool:
    """Tell whether most say yes."""
    return 2 * sum(votes) > len(votes)
