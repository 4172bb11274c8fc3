"""Steps of a case: their sizes, and whether the present level still shows them.

State of the case, state of a change and exit code all follow from the latter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.arrays import Matrix
from pvebench.analysis.case_history import CaseHistory, CaseStep, Dropped, dropped
from pvebench.analysis.difference import difference
from pvebench.analysis.slow_variation import slow_variation

SIDE: Final = 60
"""Maximum number of runs on each side of a comparison: older runs are less relevant."""
MISSED: Final = 0.01
"""Nominal chance that the interval of a reported step misses: with 2%, 7% do, because the place
was chosen, and of small steps only the larger estimates are reported."""
NO_CHANGE: Final = 1.01
"""Half of an interval that contains 0, as a share of the size."""
WAVE: Final = 60
"""Runs within which slow variation hardly averages out."""
WIDER: Final = 2.0
"""Standard deviations of it that the interval of a size includes."""
SURELY: Final = 0.9
"""Limit of half of an interval that this widens, as a share of the size."""
UNSURE: Final = 2
"""Usual error, in runs, of the estimated time of a step."""


def lasting(
    history: CaseHistory, steps: Sequence[CaseStep]
) -> tuple[tuple[CaseStep, ...], list[Dropped]]:
    """Return the steps with their sizes, and those that are too small."""
    logs = history.logs()
    borders = [0, *(history.split(step.time) for step in steps), len(logs)]
    slow = slow_variation(logs, borders[1:-1])
    found = []
    for step, begin, at, end in zip(steps, borders, borders[1:], borders[2:], strict=False):
        size = _of_now(history, logs, step, (begin, at, end))
        waves = sum(1 / max(1.0, min(SIDE, runs) / WAVE) for runs in (at - begin, end - at))
        found.append(_less_certain(size, WIDER * slow * math.sqrt(waves)))
    large = [
        step
        for step in found
        if step.group is not None or abs(step.effect) >= history.figure.least_effect
    ]
    return tuple(large), dropped(found, large, "too small to matter")


def _of_now(
    history: CaseHistory, logs: Matrix, step: CaseStep, borders: tuple[int, int, int]
) -> CaseStep:
    """Return the step with the size of the present level, if that still shows it.

    Otherwise the size stays that of the runs next to the step, with an interval that has both.
    """
    next_to = _sized(logs, step, borders)
    if borders[-1] < len(logs):
        return next_to
    now = _sized(logs, step, borders, present=True)
    least = max(history.figure.least_effect, _near(next_to.effect))
    if (abs(now.effect) >= least and not now.low <= 0 <= now.high) or step.group is not None:
        return now
    reach = max(next_to.effect - now.low, now.high - next_to.effect)
    return _wider(next_to, max(reach, NO_CHANGE * abs(next_to.effect)))


def _less_certain(step: CaseStep, by: float) -> CaseStep:
    """Return the step with an interval that includes the slow variation of both levels."""
    reach = (step.high - step.low) / 2
    # That a level changed has been decided: only by how much is less certain.
    return _wider(step, max(reach, min(math.hypot(reach, by), SURELY * abs(step.effect))))


def _wider(step: CaseStep, reach: float) -> CaseStep:
    return replace(step, low=step.effect - reach, high=step.effect + reach)


def sized(history: CaseHistory, step: CaseStep) -> CaseStep:
    """Return the latest step of a history with its size, estimated from the latest runs."""
    logs = history.logs()
    return _sized(logs, step, (0, history.split(step.time), len(logs)), present=True)


def _sized(
    logs: Matrix, step: CaseStep, borders: tuple[int, int, int], *, present: bool = False
) -> CaseStep:
    """Return a step with a size estimated from the runs up to the neighboring steps.

    Args:
        borders: first run of the level before it, and after it; end of the latter.
        present: measure the latest runs instead of those next to it.
    """
    begin, at, end = borders
    # Runs next to an estimated time may belong to the other side.
    unsure = 0 if step.known else min(UNSURE, (end - at) // 4, (at - begin) // 4)
    before, after = logs[max(begin, at - SIDE) : at - unsure], logs[at + unsure : end]
    if len(before) < 2 or not len(after):
        return step
    size = difference(before, after[-SIDE:] if present else after[:SIDE], chance=MISSED)
    return replace(
        step, effect=size.effect, low=size.low, high=size.high, runs=len(logs) - at, left=size.level
    )


# --- course of each step relative to those before and after it ---

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
