"""What became of each step of a case: whether its present level still shows it.

State of the case, state of a change and exit code all follow from this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class StepCourse:
    """A step relative to those before and after it.

    Attributes:
        end: time of the step that completed taking back most of it, Unix seconds;
            None: no step did.
        back: it takes back most of the earlier steps, or leads to a usual level.
        certain: its interval does not contain 0.
    """

    end: float | None
    back: bool
    certain: bool

    @property
    def lasts(self) -> bool:
        """Whether the present level shows the step, and it is none that the case had before."""
        return self.certain and self.end is None and not self.back


def step_course(steps: Sequence[CaseStep], step: CaseStep) -> StepCourse:
    """Return the course of a step; `steps`: all of its case, oldest first."""
    base = steps[0].left if steps else 0.0
    certain = step.slow or not step.low < 0 < step.high
    if step.kind != "level":
        return StepCourse(None, back=False, certain=certain)
    near = _near(step.effect)
    ends = (
        other_step.time
        for other_step in steps
        if other_step.time > step.time
        and (other_step.reached - step.left) * math.copysign(1, step.effect) < near
    )
    # Only a large enough distance from the baseline is one that a step can take back.
    back = step.mode or abs(step.reached - base) < _near(step.left - base)
    return StepCourse(next(ends, None), back, certain)


def _near(effect: float) -> float:
    """Return the distance from the level before an effect that counts as back there."""
    return LEFT * min(abs(effect), FARTHEST)


def decisive_steps(steps: Sequence[CaseStep], accepted: Collection[CaseStep]) -> list[CaseStep]:
    """Return the open steps that decide the state of a case: its regressions, if it has any."""
    lasting = [step for step in steps if step not in accepted and step_course(steps, step).lasts]
    return [step for step in lasting if step.effect < 0] or lasting


def gain_reason(history: CaseHistory, steps: Sequence[CaseStep], step: CaseStep) -> str:
    """Return why the improvement after a step is implausible; empty: it is plausible."""
    # Runs of other programs have no labels; software may become any number of times faster.
    if step.effect <= 0 or step_course(steps, step).back or not history.labels:
        return ""
    effect = step.reached - (steps[0].left if step in steps else step.left)
    durable = history.figure.more_is_better and history.labels.get("durable") == "yes"
    if history.figure.kind == "speed" and durable and effect > DURABLE_GAIN:
        return (
            "software cannot make durable writes so much faster; they may no longer wait for "
            "the device"
        )
    if history.figure.kind in {"speed", "stall"} and effect > ANY_GAIN:
        return "improvements above 100% are rarely real; an operation may no longer be done"
    return ""
