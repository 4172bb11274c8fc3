"""The verdict on one metric of a case, from the steps of its history."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pvebench.analysis.arrays import Places, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep, GoodRuns
from pvebench.analysis.difference import Difference, difference, size_text
from pvebench.analysis.event_effects import CaseShift
from pvebench.analysis.gradual_change import PARTS
from pvebench.analysis.lasting_steps import SIDE, without_own_hours
from pvebench.analysis.noise_patterns import NEWEST as NOISE_RUNS
from pvebench.analysis.noise_patterns import (
    like_hours,
    more_noise,
    slow_hours,
    slow_stretches,
    spread_out,
    two_levels,
)
from pvebench.model.judged import Judged

# --- implausible improvements: more often an operation is no longer done ---

DURABLE_GAIN: Final = math.log(1.25)
"""Improvement of synchronous writes that software cannot cause, since they wait for the device."""
ANY_GAIN: Final = math.log(2.0)
"""Improvement of any metric that is implausible."""


def too_good(history: CaseHistory, effect: float) -> str:
    """Return why an improvement is implausible; empty if it is plausible."""
    durable = history.figure.more_is_better and history.labels.get("durable") == "yes"
    if history.figure.kind == "speed" and durable and effect > DURABLE_GAIN:
        return (
            "software cannot make durable writes so much faster; they may no longer wait for "
            "the device"
        )
    if history.figure.kind in {"speed", "stall"} and effect > ANY_GAIN:
        return "improvements above 100% are rarely real; an operation may no longer be done"
    return ""


# --- inconclusive verdicts: runs until a verdict ---

CLAIM: Final = math.log(1.1)
"""Size of change, a logarithm, to rule out before a case is unchanged."""
TIMES: Final = 1.5
"""Minimum size to rule out as a multiple of the metric's least effect, for noisy metrics."""


WIDE: Final = math.log(1.5)
"""Size of possible changes, a logarithm, beyond which nothing is known."""


def claim_of(history: CaseHistory) -> float:
    """Return the size of change, a logarithm, to rule out before a case is unchanged."""
    return max(CLAIM, TIMES * history.figure.least_effect)


def missing_text(history: CaseHistory, apart: Difference) -> str:
    """Return the size of possible changes now, and how many runs rule them out."""
    size, more = claim_of(history), apart.more_runs(claim_of(history))
    wide = apart.excluded > WIDE
    now = "not yet known" if wide else f"changes up to {size_text(apart.excluded)} possible"
    text = f"{count_text(apart.after, 'run')} after {apart.before}: {now}"
    if more is None:
        return f"{text}; {apart.before} runs before are too few to rule out {size_text(size)}"
    later = "known" if size > WIDE else f"{size_text(size)} can be ruled out"
    return f"{text}; {later} after {count_text(more, 'more run')}"


def count_text(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`, `2 switches`."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{'' if count == 1 else ending}"


# --- the verdict ---

PRESENT: Final = 10
"""Maximum number of latest runs in the current level without a step or event."""
LEAST_PRESENT: Final = 3
"""Minimum number of latest runs in the current level without a step or event."""
WEEK_OF_RUNS: Final = 200
"""Number of runs before whose hours of the day are considered."""
LEFT: Final = 0.35
"""Share of the recovered distance within which a level counts as back at the baseline …"""
FARTHEST: Final = math.log(2)
"""… limited to a share of this distance: a third of a thousandfold stall is no recovery."""


class VerdictState(StrEnum):
    """State of a verdict."""

    INCONCLUSIVE = "inconclusive"
    UNCHANGED = "unchanged"
    POSSIBLY_SLOWER = "possibly_slower"
    SLOWER = "slower"
    POSSIBLY_FASTER = "possibly_faster"
    FASTER = "faster"
    IMPLAUSIBLE = "implausible"
    GRADUALLY_SLOWER = "gradually_slower"
    GRADUALLY_FASTER = "gradually_faster"

    @property
    def judged(self) -> bool:
        """Whether the verdict is conclusive."""
        return self is not VerdictState.INCONCLUSIVE

    @property
    def confirmed(self) -> bool:
        """Whether a change is confirmed."""
        return abs(self.code) == 2

    @property
    def code(self) -> int:
        """-2 slower, -1 possibly slower, 0 unchanged, 1 possibly faster, 2 faster."""
        return _CODES.get(self, 0)


_CODES: Final = {
    VerdictState.SLOWER: -2,
    VerdictState.GRADUALLY_SLOWER: -2,
    VerdictState.POSSIBLY_SLOWER: -1,
    VerdictState.POSSIBLY_FASTER: 1,
    VerdictState.GRADUALLY_FASTER: 2,
    VerdictState.FASTER: 2,
    VerdictState.IMPLAUSIBLE: 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one metric of a case; effects are logarithms, positive is better.

    Attributes:
        effect, low, high: current level relative to the baseline, with its 95% confidence interval.
        p_value: p-value of the latest step, or of the last event's shift; None: neither.
        runs: number of runs in the current level.
        steps: confirmed steps that are not accepted, oldest first.
        accepted: accepted confirmed steps, oldest first.
        creep: gradual change, or change of a part, of the latest runs, or None.
        baseline: reference level in base units; None if there is none.
        baseline_runs, baseline_start: its number of runs and the time of its first run.
        reason: size of changes that are ruled out; why the verdict is inconclusive and when it
            will not be; why an improvement is implausible.
        more_runs: further runs until a conclusive verdict; 0: none, or no number suffices.
    """

    history: CaseHistory
    state: VerdictState
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
    more_runs: int = 0

    @property
    def ratio(self) -> float:
        """Change from the baseline as a ratio, positive is better."""
        return as_ratio(self.effect, self.history.figure)

    @property
    def excluded(self) -> float:
        """Largest change in either direction that is not ruled out, as a logarithm."""
        return max(abs(self.low), abs(self.high))

    @property
    def threshold(self) -> float:
        """Half width of the confidence interval, as a ratio."""
        return math.expm1((self.high - self.low) / 2)


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The last event before the latest run of a case.

    Attributes:
        shift: its effect on the case; None: unknown, for example without runs at equal hours.
    """

    time: float
    shift: CaseShift | None


def as_ratio(effect: float, figure: Judged) -> float:
    """Return an effect as a ratio of the value, positive is better, as in the verdict text."""
    return math.expm1(effect) if figure.more_is_better else -math.expm1(-effect)


def conclude(
    history: CaseHistory,
    steps: Sequence[CaseStep],
    last: LastEvent | None,
    *,
    doubtful: CaseStep | None = None,
    creep: CaseStep | None = None,
    accepted_until: float = -math.inf,
    cut_reason: str = "",
) -> Verdict:
    """Return the verdict on one metric of a case.

    Args:
        history: raw history since the last reset or the last incomparable environment.
        steps: confirmed steps, oldest first.
        last: the last event before its latest run, or None.
        doubtful: latest step that may be chance, or that only switches between the two levels of
            a bimodal case.
        creep: confirmed gradual change, or change of a part of the runs, beyond the steps.
        accepted_until: steps up to this time are accepted.
        cut_reason: why the history was restarted; empty if it was not.
    """
    accepted = tuple(step for step in steps if step.time <= accepted_until)
    open_steps = tuple(step for step in steps if step.time > accepted_until)
    apart = difference_of(history, accepted, open_steps, last)
    if apart is None:
        return replace(_without(history, cut_reason), accepted=accepted, steps=open_steps)
    runs = len(history.points) - history.split(open_steps[-1].time) if open_steps else apart.after
    numbers = (apart.effect, apart.low, apart.high, runs)
    if len(open_steps) == 1 and open_steps[0].low < open_steps[0].high:
        # One number everywhere: the change of this step.
        numbers = _numbers_of(open_steps[0])
        apart = replace(apart, effect=numbers[0], low=numbers[1], high=numbers[2])
    shift = None if last is None else last.shift
    state, reason = _state(history, open_steps, shift, apart)
    p_value = open_steps[-1].p_value if open_steps else shift.p_value if shift else None
    if creep is not None and not open_steps:
        state = _state_of(creep)
        reason, numbers, p_value = "", _numbers_of(creep), creep.p_value
    elif doubtful is not None and doubtful.mode and _only_mode(history, open_steps):
        state, reason = VerdictState.INCONCLUSIVE, two_levels(history, doubtful)
    elif not open_steps and doubtful is not None and doubtful.time > accepted_until:
        state = (
            VerdictState.POSSIBLY_SLOWER if doubtful.effect < 0 else VerdictState.POSSIBLY_FASTER
        )
        reason, numbers = "", _numbers_of(doubtful)
    elif not open_steps and state.code == 0:
        reason = "; ".join([reason, *_habits(history, accepted)])
    base = _baseline(history, accepted, open_steps, creep)
    more = apart.more_runs(claim_of(history)) if state is VerdictState.INCONCLUSIVE else 0
    return Verdict(
        history=history,
        state=state,
        reason=reason,
        effect=numbers[0],
        low=numbers[1],
        high=numbers[2],
        runs=numbers[3],
        more_runs=more or 0,
        p_value=p_value,
        steps=open_steps,
        accepted=accepted,
        creep=creep,
        baseline=statistics.median(base.values) if base else None,
        baseline_runs=len(base),
        baseline_start=base.times[0] if base else 0.0,
    )


def _state_of(creep: CaseStep) -> VerdictState:
    if creep.slow:
        worse = creep.effect < 0
        return VerdictState.GRADUALLY_SLOWER if worse else VerdictState.GRADUALLY_FASTER
    return VerdictState.SLOWER


def _baseline(
    history: CaseHistory,
    accepted: Sequence[CaseStep],
    steps: Sequence[CaseStep],
    creep: CaseStep | None,
) -> GoodRuns:
    """Return the runs of the baseline; for a gradual change, the runs at its start."""
    start = accepted[-1].time if accepted else -math.inf
    end = steps[0].time if steps else math.inf
    if creep is not None and not steps and not creep.slow:
        end = creep.time
    elif creep is not None and not steps:
        return history.since(creep.time).points[: creep.runs // PARTS]
    return history.points[history.split(start) : history.split(end)]


def _without(history: CaseHistory, cut_reason: str) -> Verdict:
    """Return the verdict on a history that has too few runs to compare."""
    runs = len(history.points)
    missing = LEAST_BASELINE + LEAST_PRESENT - runs
    if missing <= 0 and not cut_reason:
        reason = "no earlier runs at the hours of the latest runs"
        return Verdict(
            history=history, state=VerdictState.INCONCLUSIVE, reason=reason, baseline_runs=runs
        )
    missing = max(1, missing)
    known = f"{count_text(runs, 'ok run')}{' since then' if cut_reason else ''}"
    reason = f"{known}; first verdict after {count_text(missing, 'more run')}"
    return Verdict(
        history=history,
        state=VerdictState.INCONCLUSIVE,
        reason=f"{cut_reason}; {reason}" if cut_reason else reason,
        baseline_runs=runs,
        more_runs=missing,
    )


Numbers = tuple[float, float, float, int]
"""Effect, lower and upper bound, number of runs."""


def _numbers_of(step: CaseStep) -> Numbers:
    return step.effect, step.low, step.high, step.runs


def difference_of(
    history: CaseHistory,
    accepted: Sequence[CaseStep],
    steps: Sequence[CaseStep],
    last: LastEvent | None,
) -> Difference | None:
    """Return the difference of the current level from the baseline; None: too few runs.

    The current level has the runs since the last step, otherwise since the last event, otherwise
    the latest runs.
    """
    times = history.times()
    logs = without_own_hours(history, [*accepted, *steps])
    start = bisect_left(times, accepted[-1].time) if accepted else 0
    base_end = bisect_left(times, steps[0].time) if steps else len(logs)
    begun = bisect_left(times, steps[-1].time) if steps else len(logs)
    at = 0 if last is None else bisect_left(times, last.time)
    if not steps and max(LEAST_BASELINE, start + 1) <= at < len(times):
        base_end = begun = at
    elif not steps:
        runs = len(logs) - start
        base_end = begun = len(logs) - max(LEAST_PRESENT, min(PRESENT, runs // 3))
    begin, now = max(start, base_end - SIDE), max(begun, len(logs) - SIDE)
    known = times[max(start, base_end - WEEK_OF_RUNS) : base_end]
    after = now + alike(known, times[now:])
    if steps:
        # A reported change has a size, even if few of its hours are known.
        begin = min(begin, max(0, base_end - LEAST_BASELINE))
        after = after if len(after) >= LEAST_PRESENT else np.arange(now, len(logs))
    if base_end - begin < LEAST_BASELINE or not len(after):
        return None
    return difference(logs[begin:base_end], logs[after])


def alike(before: Sequence[float], after: Sequence[float]) -> Places:
    """Return the indexes of runs in `after` at hours of the day that also occur before."""
    return like_hours(before, after) if spread_out([*before, *after]) else np.arange(len(after))


def _state(
    history: CaseHistory, steps: Sequence[CaseStep], last: CaseShift | None, apart: Difference
) -> tuple[VerdictState, str]:
    if steps:
        return _after_steps(history, steps, apart)
    if last is not None and last.maybe and not last.confirmed:
        worse = last.effect < 0
        return (VerdictState.POSSIBLY_SLOWER if worse else VerdictState.POSSIBLY_FASTER), ""
    if apart.excluded > claim_of(history):
        return VerdictState.INCONCLUSIVE, missing_text(history, apart)
    return VerdictState.UNCHANGED, f"changes above {size_text(apart.excluded)} ruled out"


def _after_steps(
    history: CaseHistory, steps: Sequence[CaseStep], apart: Difference
) -> tuple[VerdictState, str]:
    left = left_after(steps[-1].effect, apart.effect)
    if len(steps) > 1 and abs(apart.effect) < max(history.figure.least_effect, left):
        reason = f"back at the baseline, changes above {size_text(apart.excluded)} ruled out"
        return VerdictState.UNCHANGED, reason
    if apart.effect < 0:
        return VerdictState.SLOWER, ""
    reason = too_good(history, apart.effect)
    return (VerdictState.IMPLAUSIBLE, reason) if reason else (VerdictState.FASTER, "")


def _only_mode(history: CaseHistory, steps: Sequence[CaseStep]) -> bool:
    """Return whether a case was at the baseline before its latest step, which leads to a mode."""
    before = abs(sum(step.effect for step in steps[:-1]))
    last = abs(steps[-1].effect) if steps else math.inf
    return before < max(history.figure.least_effect, LEFT * last)


def left_after(last: float, effect: float) -> float:
    """Return the largest distance from the baseline that counts as back at the baseline.

    It depends only on the distance that the last step recovered, not on larger earlier ones.

    Args:
        last: size of the last step, a logarithm.
        effect: level after it relative to the baseline, a logarithm.
    """
    return LEFT * min(abs(effect - last), FARTHEST)


def _habits(history: CaseHistory, steps: Sequence[CaseStep]) -> list[str]:
    """Return descriptions of the known noise patterns of a case."""
    if history.figure.kind != "speed" or not history.figure.more_is_better:
        return []
    times = history.times()[-NOISE_RUNS:]
    texts = [slow_hours(history.without(steps).logs()[-NOISE_RUNS:], times)]
    even = without_own_hours(history, steps)[-NOISE_RUNS:]
    texts += [slow_stretches(even), more_noise(even)]
    return [text for text in texts if text]
