"""Steps that the levels on both sides confirm, with their sizes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep, Dropped, dropped
from pvebench.analysis.difference import difference
from pvebench.analysis.levels import MAD_TO_SIGMA, median
from pvebench.analysis.noise_patterns import without_hours
from pvebench.analysis.slow_variation import slow_variation

SIDE: Final = 60
"""Maximum number of runs on each side of a comparison: older runs are less relevant."""
MISSED: Final = 0.01
"""Nominal chance that the interval of a reported step misses: with 2%, 7% do, because the place
was chosen, and of small steps only the larger estimates are reported."""
OUTLIERS: Final = 3
"""Maximum runs that are outliers rather than a level."""
WAVE: Final = 60
"""Runs within which slow variation hardly averages out."""
WIDER: Final = 2.0
"""Standard deviations of it that the interval of a size includes."""
SURELY: Final = 0.9
"""Limit of half of an interval that this widens, as a share of the size."""
FEW: Final = 14
"""Runs below which the latest level may be a cluster of outliers."""
SEPARATE: Final = 4.0
"""Size of a step in scales, from which each run is either before or after it …"""
MOSTLY: Final = 0.7
"""… and the minimum share of the runs after it that are."""
UNSURE: Final = 2
"""Usual error, in runs, of the estimated time of a step."""


def without_own_hours(history: CaseHistory, steps: Sequence[CaseStep]) -> Matrix:
    """Return the runs of a history without the effects of their hours, between these steps."""
    known = [(history.split(step.time), step.effect) for step in steps]
    return without_hours(history.logs(), history.times(), known)


def lasting(
    history: CaseHistory, steps: Sequence[CaseStep]
) -> tuple[tuple[CaseStep, ...], list[Dropped]]:
    """Return the steps with their sizes, and those that the levels on both sides disprove."""
    # Later runs of a level resolve a step; only those next to it disprove it.
    levels = _without_outliers(history, steps)
    ignored = dropped(steps, levels, "too few runs show it")
    next_to = sized(history, levels, present=False)
    while doubtful := _disproved(history, next_to):
        least = min(doubtful, key=lambda step: abs(step.effect) / (step.high - step.low))
        next_to = sized(history, [step for step in next_to if step is not least], present=False)
    ignored += dropped(levels, next_to, "not confirmed by the levels on both sides")
    return _less_certain(history, _of_now(history, next_to)), ignored


def _of_now(history: CaseHistory, next_to: Sequence[CaseStep]) -> list[CaseStep]:
    """Return the steps with the size of the present level, if that still shows them.

    Otherwise the size stays that of the runs next to the step, with an interval that has both.
    """
    found = sized(history, next_to)
    faded = _disproved(history, found)
    steps = []
    for step, now in zip(next_to, found, strict=True):
        reach = max(step.effect - now.low, now.high - step.effect)
        both = replace(step, low=step.effect - reach, high=step.effect + reach)
        steps.append(both if now in faded else now)
    return steps


def _less_certain(history: CaseHistory, steps: Sequence[CaseStep]) -> tuple[CaseStep, ...]:
    """Return the steps with intervals that include the slow variation of both levels."""
    logs = without_own_hours(history, steps)
    borders = [0, *(history.split(step.time) for step in steps), len(logs)]
    slow = slow_variation(logs, borders[1:-1])
    wider = []
    for step, begin, at, end in zip(steps, borders, borders[1:], borders[2:], strict=False):
        waves = sum(1 / max(1.0, min(SIDE, runs) / WAVE) for runs in (at - begin, end - at))
        reach = math.hypot((step.high - step.low) / 2, WIDER * slow * math.sqrt(waves))
        # That a level changed has been decided: only by how much is less certain.
        reach = max((step.high - step.low) / 2, min(reach, SURELY * abs(step.effect)))
        wider.append(replace(step, low=step.effect - reach, high=step.effect + reach))
    return tuple(wider)


def _without_outliers(history: CaseHistory, steps: Sequence[CaseStep]) -> list[CaseStep]:
    """Return the steps without those that only end a few outliers, first runs or after a step."""
    kept: list[CaseStep] = []
    for step in steps:
        runs = history.runs_between(kept[-1].time if kept else -math.inf, step.time)
        if step.known or runs > (OUTLIERS if kept else LEAST_BASELINE):
            kept.append(step)
    if kept and _mixed(history, kept[-1], kept[-2].time if len(kept) > 1 else -math.inf):
        kept.pop()
    return kept


def _mixed(history: CaseHistory, step: CaseStep, begin: float) -> bool:
    """Return whether many of the few runs after the latest step are at the level before it."""
    at, first = history.split(step.time), history.split(begin)
    logs = history.logs()
    before, after = logs[max(first, at - SIDE) : at], logs[at:]
    if step.known or step.group is not None or len(after) >= FEW or len(before) < 2:
        return False
    away = after - median(before)
    scale = MAD_TO_SIGMA * float(median(np.abs(before - median(before))))
    effect = float(median(away))
    there = float(np.mean(away * math.copysign(1, effect) > abs(effect) / 2))
    return abs(effect) >= SEPARATE * scale and there < MOSTLY


def _disproved(history: CaseHistory, steps: Sequence[CaseStep]) -> list[CaseStep]:
    """Return the steps of this case alone that its levels disprove."""
    return [
        step
        for step in steps
        if step.group is None
        and step.low < step.high
        and (step.low <= 0 <= step.high or abs(step.effect) < history.figure.least_effect)
    ]


def sized(
    history: CaseHistory, steps: Sequence[CaseStep], *, present: bool = True
) -> tuple[CaseStep, ...]:
    """Return the steps with sizes estimated from the runs up to the neighboring steps.

    Args:
        present: after the last step, measure the latest runs instead of those next to it.
    """
    logs, times = without_own_hours(history, steps), history.times()
    places = [bisect_left(times, step.time) for step in steps]
    resized = []
    for step, begin, at, end in zip(
        steps, [0, *places], places, [*places[1:], len(logs)], strict=False
    ):
        # Runs next to an estimated time may belong to the other side.
        unsure = 0 if step.known else min(UNSURE, (end - at) // 4, (at - begin) // 4)
        before, after = logs[max(begin, at - SIDE) : at - unsure], logs[at + unsure : end]
        if len(before) < 2 or not len(after):
            resized.append(step)
            continue
        after = after[-SIDE:] if present and end == len(logs) else after[:SIDE]
        size = difference(before, after, chance=MISSED)
        resized.append(
            replace(
                step,
                effect=size.effect,
                low=size.low,
                high=size.high,
                runs=len(logs) - at,
                left=size.level,
            )
        )
    return tuple(resized)
