"""What became of each step of a case: whether its present level still shows it.

State of the case, state of a change and exit code all follow from this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.case_history import CaseHistory, CaseStep

LEFT: Final = 0.35
"""Share of a step within which a level counts as back at the level before it …"""
FARTHEST: Final = math.log(2)
"""… limited to a share of this distance: a third of a thousandfold stall is no recovery."""
DURABLE_GAIN: Final = math.log(1.25)
"""Improvement of synchronous writes that software cannot cause, since they wait for the device."""
ANY_GAIN: Final = math.log(2.0)
"""Improvement of any metric that is implausible."""


def with_courses(
    history: CaseHistory, steps: Sequence[CaseStep], accepted_until: float
) -> tuple[CaseStep, ...]:
    """Return all steps of a case, oldest first, relative to those before and after each."""
    return tuple(
        replace(
            (found := _with_end(steps, step)),
            accepted=step.time <= accepted_until,
            reason="" if found.back else gain_reason(history, found, steps[0].left),
        )
        for step in steps
    )


def _with_end(steps: Sequence[CaseStep], step: CaseStep) -> CaseStep:
    near, side = _near(step.effect), math.copysign(1, step.effect)
    ends = (
        later.time
        for later in steps
        if later.time > step.time and (later.reached - step.left) * side < near
    )
    # Only a large enough distance from the baseline is one that a step can take back.
    base = steps[0].left
    back = step.mode or abs(step.reached - base) < _near(step.left - base)
    return replace(step, end=next(ends, None), back=back)


def _near(effect: float) -> float:
    """Return the distance from the level before an effect that counts as back there."""
    return LEFT * min(abs(effect), FARTHEST)


def decisive_steps(steps: Sequence[CaseStep]) -> list[CaseStep]:
    """Return the open steps that decide the state of a case: its regressions, if it has any."""
    lasting = [step for step in steps if step.lasts and not step.accepted]
    return [step for step in lasting if step.effect < 0] or lasting


def gain_reason(history: CaseHistory, step: CaseStep, base: float) -> str:
    """Return why the improvement of a step over a level is implausible; empty: it is plausible."""
    # Runs of other programs have no labels; software may become any number of times faster.
    if step.effect <= 0 or not history.labels:
        return ""
    durable = history.figure.more_is_better and history.labels.get("durable") == "yes"
    if history.figure.kind == "speed" and durable and step.reached - base > DURABLE_GAIN:
        return (
            "software cannot make durable writes so much faster; they may no longer wait for "
            "the device"
        )
    if history.figure.kind in {"speed", "stall"} and step.reached - base > ANY_GAIN:
        return "improvements above 100% are rarely real; an operation may no longer be done"
    return ""
