"""The verdict on one case and figure: how its state follows from the steps of its history."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pvebench.analysis.event import CaseShift
from pvebench.analysis.groups import Group
from pvebench.analysis.levels import MAD_TO_SIGMA
from pvebench.analysis.series import LEAST_BASELINE, History, Point
from pvebench.analysis.states import State
from pvebench.analysis.too_good import PRESENT, too_good
from pvebench.analysis.trend import LEVELS

TOO_NOISY: Final = math.log(1.3)
"""Half width of the interval beyond which "same" would say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStep:
    """A confirmed step of one case; effects are logarithms, plus for better.

    Attributes:
        time: of the event, or of the first run after the step where no event explains it.
        known: True if an environment change explains it.
        group: what it moved with, or None.
        runs: it rests on.
        slow: True if it is no step but a creep that began at `time`, or before.
    """

    time: float
    known: bool
    effect: float
    low: float
    high: float
    p_value: float
    runs: int
    group: Group | None = None
    slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said of one case and figure; effects are logarithms, plus for better.

    Attributes:
        effect, low, high: present level against the baseline, with its 95 % interval.
        p_value: of the newest step, or of the last event's shift; None where there is neither.
        runs: that the present level rests on.
        steps: confirmed and not accepted, oldest first.
        accepted: confirmed steps that somebody has accepted, oldest first.
        creep: slow change of the newest runs, or None.
        baseline: level compared with, in base units; None if there is none.
        baseline_runs, baseline_start: its size and the time of its first run.
        reason: why there is no verdict, or why a gain is suspicious.
    """

    history: History
    state: State
    effect: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p_value: float | None = None
    runs: int = 0
    steps: tuple[CaseStep, ...] = ()
    accepted: tuple[CaseStep, ...] = ()
    creep: CaseStep | None = None
    baseline: float | None = None
    baseline_runs: int = 0
    baseline_start: float = 0.0
    reason: str = ""

    @property
    def ratio(self) -> float:
        """Change against the baseline as ratio, plus for better."""
        return as_ratio(self.effect)

    @property
    def threshold(self) -> float:
        """Half width of the interval, as ratio."""
        return math.expm1((self.high - self.low) / 2)


def as_ratio(effect: float) -> float:
    """Return an effect as ratio, plus for better: less cost by a tenth is 0.1, as in throughput."""
    return math.expm1(effect) if effect <= 0 else -math.expm1(-effect)


def conclude(
    history: History, steps: Sequence[CaseStep], last: CaseShift | None, *,
    doubtful: CaseStep | None = None, creep: CaseStep | None = None,
    accepted_until: float = -math.inf, cut_reason: str = "",
) -> Verdict:  # fmt: skip
    """Return the verdict on one case and figure.

    Args:
        history: raw, since the last reset or the last environment that compares.
        steps: confirmed, oldest first.
        last: its shift at the last event, or None.
        doubtful: newest step that may be chance.
        creep: slow change of what the steps leave, beyond doubt.
        accepted_until: steps up to this time have been accepted.
        cut_reason: why the history begins anew, if it does.
    """
    accepted = tuple(step for step in steps if step.time <= accepted_until)
    open_steps = tuple(step for step in steps if step.time > accepted_until)
    if len(history.points) < LEAST_BASELINE:
        return _without(history, len(history.points), cut_reason)
    numbers = _numbers(history, accepted, open_steps, last)
    state, reason = _state(history, open_steps, last, numbers)
    p_value = open_steps[-1].p_value if open_steps else last.p_value if last else None
    if creep is not None and not open_steps:
        state = State.SLOWLY_SLOWER if creep.effect < 0 else State.SLOWLY_FASTER
        reason, numbers, p_value = "", _numbers_of(creep), creep.p_value
    elif state is State.SAME and doubtful is not None and doubtful.time > accepted_until:
        state = State.MAYBE_SLOWER if doubtful.effect < 0 else State.MAYBE_FASTER
        reason, numbers = "", _numbers_of(doubtful)
    base = _baseline(history, accepted, open_steps, creep)
    return Verdict(
        history=history, state=state, reason=reason, effect=numbers[0], low=numbers[1],
        high=numbers[2], runs=numbers[3], p_value=p_value, steps=open_steps, accepted=accepted,
        creep=creep,
        baseline=statistics.median(point.value for point in base) if base else None,
        baseline_runs=len(base), baseline_start=base[0].time if base else 0.0,
    )  # fmt: skip


def _baseline(
    history: History, accepted: Sequence[CaseStep], steps: Sequence[CaseStep],
    creep: CaseStep | None,
) -> list[Point]:  # fmt: skip
    """Return the runs that the present level is compared with: of a creep, those it began with."""
    start = accepted[-1].time if accepted else -math.inf
    end = steps[0].time if steps else math.inf
    if creep is not None and not steps:
        return list(history.since(creep.time).points[: creep.runs // LEVELS])
    return [point for point in history.points if start <= point.time < end]


def _without(history: History, runs: int, cut_reason: str) -> Verdict:
    wanted = f"{runs} of the {LEAST_BASELINE} runs that a baseline needs"
    state = State.NOT_COMPARABLE if cut_reason else State.NO_BASELINE
    reason = f"{cut_reason}; {wanted} since then" if cut_reason else wanted
    return Verdict(history=history, state=state, reason=reason, baseline_runs=runs)


Numbers = tuple[float, float, float, int]
"""effect, low, high, runs."""


def _numbers_of(step: CaseStep) -> Numbers:
    return step.effect, step.low, step.high, step.runs


def _numbers(
    history: History, accepted: Sequence[CaseStep], steps: Sequence[CaseStep],
    last: CaseShift | None,
) -> Numbers:  # fmt: skip
    """Return the present level against the baseline."""
    if steps:
        effect = sum(step.effect for step in steps)
        reach = math.hypot(*((step.high - step.low) / 2 for step in steps))
        return effect, effect - reach, effect + reach, steps[-1].runs
    taken = bool(accepted) and last is not None and last.confirmed
    if last is not None and not taken:
        return last.effect, last.low, last.high, last.runs
    return _quiet(history, accepted)


def _quiet(history: History, accepted: Sequence[CaseStep]) -> Numbers:
    """Return the newest runs against those before them, where nothing has happened."""
    start = accepted[-1].time if accepted else -math.inf
    logs = [
        value
        for value, point in zip(history.logs(), history.points, strict=True)
        if point.time >= start
    ]
    if len(logs) <= 2 * PRESENT:
        return 0.0, -TOO_NOISY / 2, TOO_NOISY / 2, len(logs)
    before, now = logs[:-PRESENT], logs[-PRESENT:]
    level = statistics.median(before)
    sigma = MAD_TO_SIGMA * statistics.median(abs(value - level) for value in before)
    effect = statistics.median(now) - level
    # 1.2533: a median is that much wider than a mean; 2: two-sided, few degrees of freedom.
    reach = 2 * 1.2533 * sigma * math.sqrt(1 / PRESENT + 1 / len(before))
    return effect, effect - reach, effect + reach, PRESENT


def _state(
    history: History, steps: Sequence[CaseStep], last: CaseShift | None, numbers: Numbers
) -> tuple[State, str]:
    effect, low, high, _ = numbers
    if steps:
        if abs(effect) < max(history.figure.least_effect, (high - low) / 2):
            return State.SAME, "back at the baseline"
        if effect < 0:
            return State.SLOWER, ""
        reason = too_good(history, effect)
        return (State.SUSPICIOUS, reason) if reason else (State.FASTER, "")
    if (high - low) / 2 > TOO_NOISY:
        reason = f"only a change of more than {math.expm1((high - low) / 2):.0%} could be told"
        return State.TOO_NOISY, reason
    if last is not None and last.maybe and not last.confirmed:
        return (State.MAYBE_SLOWER if effect < 0 else State.MAYBE_FASTER), ""
    return State.SAME, ""
