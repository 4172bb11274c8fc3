"""The verdict on one metric of a case, from the steps of its history."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pvebench.analysis.arrays import Matrix, Places, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep, Dropped, GoodRuns
from pvebench.analysis.difference import Difference, difference, size_text
from pvebench.analysis.event_effects import CaseShift
from pvebench.analysis.gradual_change import PARTS
from pvebench.analysis.lasting_steps import SIDE, without_own_hours
from pvebench.analysis.noise_patterns import like_hours, spread_out
from pvebench.analysis.slow_variation import usual_variation
from pvebench.analysis.step_course import decisive_steps, gain_reason, step_course
from pvebench.model.judged import Judged
from pvebench.model.units import count_text

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
        why = "vary too slowly" if apart.fixed > size / 2 else "are too few"
        return f"{text}; {apart.before} runs before {why} to rule out {size_text(size)}"
    later = "known" if size > WIDE else f"{size_text(size)} can be ruled out"
    return f"{text}; {later} after {count_text(more, 'more run')}"


# --- the verdict ---

PRESENT: Final = 10
"""Maximum number of latest runs in the current level without a step or event."""
LEAST_PRESENT: Final = 3
"""Minimum number of latest runs in the current level without a step or event."""
SLOW: Final = 2.0
"""Distance of a level from its baseline in standard deviations that slow variation explains."""
WEEK_OF_RUNS: Final = 200
"""Number of runs before whose hours of the day are considered."""


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
        dropped: detected steps that do not count, in no order.
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
    dropped: tuple[Dropped, ...] = ()
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
    recent = tuple(step for step in steps if step.time > accepted_until)
    apart = difference_of(history, accepted, recent, last)
    if apart is None:
        return replace(_without(history, cut_reason), accepted=accepted, steps=recent)
    base = _baseline(history, accepted, recent, creep)
    verdict = Verdict(
        history=history,
        state=VerdictState.UNCHANGED,
        effect=apart.effect,
        low=apart.low,
        high=apart.high,
        runs=apart.after,
        steps=recent,
        accepted=accepted,
        creep=creep,
        baseline=statistics.median(base.values) if base else None,
        baseline_runs=len(base),
        baseline_start=base.times[0] if base else 0.0,
    )
    if recent:
        verdict = _by_steps(verdict, apart)
    else:
        verdict = _without_steps(verdict, None if last is None else last.shift, apart)
    fresh = doubtful is not None and doubtful.time > accepted_until
    verdict = _beyond_steps(verdict, doubtful, fresh=fresh)
    undecided = verdict.state is VerdictState.INCONCLUSIVE
    return replace(
        verdict, more_runs=(apart.more_runs(claim_of(history)) if undecided else None) or 0
    )


def _by_steps(verdict: Verdict, apart: Difference) -> Verdict:
    """Return the state by the present level: of the open steps, the regressions decide."""
    history, last = verdict.history, verdict.steps[-1]
    every = [*verdict.accepted, *verdict.steps]
    decisive = decisive_steps(every, verdict.accepted)
    runs = len(history.points) - history.split(last.time)
    verdict = replace(verdict, runs=runs, p_value=last.p_value)
    if not decisive:
        course = step_course(every, last)
        faded = not apart.low <= last.effect <= apart.high
        if not (course.back or course.certain or faded):
            return _possibly(verdict, last.effect)
        reason = f"back at the baseline, changes above {size_text(apart.excluded)} ruled out"
        return replace(verdict, reason=reason)
    if decisive == [last] and last.low < last.high:
        # One number everywhere: the change of this step.
        verdict = replace(verdict, effect=last.effect, low=last.low, high=last.high)
    reasons = (gain_reason(history, every, step) for step in decisive)
    reason = next(filter(None, reasons), "")
    state = VerdictState.IMPLAUSIBLE if reason else VerdictState.FASTER
    if decisive[0].effect < 0:
        state = VerdictState.SLOWER
    return replace(verdict, state=state, reason=reason)


def _without_steps(verdict: Verdict, shift: CaseShift | None, apart: Difference) -> Verdict:
    verdict = replace(verdict, p_value=shift.p_value if shift else None)
    if shift is not None and shift.maybe and not shift.confirmed:
        return _possibly(verdict, shift.effect)
    if apart.excluded > claim_of(verdict.history):
        reason = missing_text(verdict.history, apart)
        return replace(verdict, state=VerdictState.INCONCLUSIVE, reason=reason)
    return replace(verdict, reason=f"changes above {size_text(apart.excluded)} ruled out")


def _beyond_steps(verdict: Verdict, doubtful: CaseStep | None, *, fresh: bool) -> Verdict:
    """Return the verdict with what the steps do not show; a regression by a step comes first."""
    shown = decisive_steps([*verdict.accepted, *verdict.steps], verdict.accepted)
    creep, worse = verdict.creep, any(step.effect < 0 for step in shown)
    if creep is not None and (not shown or creep.effect < 0) and not worse:
        verdict = replace(verdict, state=_state_of(creep), reason="", p_value=creep.p_value)
        return _of(verdict, creep)
    if doubtful is not None and doubtful.mode and not shown:
        alternates = f"alternates between two levels {size_text(abs(doubtful.effect))} apart"
        return replace(verdict, state=VerdictState.INCONCLUSIVE, reason=alternates)
    if not verdict.steps and doubtful is not None and fresh:
        return _of(_possibly(verdict, doubtful.effect), doubtful)
    return verdict


def _of(verdict: Verdict, step: CaseStep) -> Verdict:
    """Return the verdict with the size of a step."""
    return replace(verdict, effect=step.effect, low=step.low, high=step.high, runs=step.runs)


def _possibly(verdict: Verdict, effect: float) -> Verdict:
    state = VerdictState.POSSIBLY_SLOWER if effect < 0 else VerdictState.POSSIBLY_FASTER
    return replace(verdict, state=state, reason="")


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
    if creep is not None and not steps and creep.slow:
        return history.since(creep.time).points[: creep.runs // PARTS]
    start, end = _base_span(accepted, steps)
    if creep is not None and not steps:
        end = creep.time
    return history.points[history.split(start) : history.split(end)]


def _base_span(accepted: Sequence[CaseStep], steps: Sequence[CaseStep]) -> tuple[float, float]:
    """Return the time of the baseline: up to the first step that decides the state."""
    every = [*accepted, *steps]
    decisive = decisive_steps(every, accepted)
    end = min([step.time for step in decisive or steps], default=math.inf)
    borders = [step.time for step in (every if decisive else accepted) if step.time < end]
    return max([-math.inf, *borders]), end


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
    start, base_end = (min(history.split(time), len(logs)) for time in _base_span(accepted, steps))
    if steps:
        begun = bisect_left(times, steps[-1].time)
    else:
        base_end = begun = _begin_without_step(times, start, last)
    begin, now = max(start, base_end - SIDE), max(begun, len(logs) - SIDE)
    known = times[max(start, base_end - WEEK_OF_RUNS) : base_end]
    after = now + alike(known, times[now:])
    if steps:
        # A reported change has a size, even if few of its hours are known.
        begin = min(begin, max(0, base_end - LEAST_BASELINE))
        after = after if len(after) >= LEAST_PRESENT else np.arange(now, len(logs))
    if base_end - begin < LEAST_BASELINE or not len(after):
        return None
    apart = difference(logs[begin:base_end], logs[after])
    if decisive_steps([*accepted, *steps], accepted):
        return apart
    # A change may have come after the last step, and a mode be taken for the baseline.
    latest = logs[after[-PRESENT:] if steps else after]
    apart = apart.and_of(_from_everything(logs[start:base_end], latest))
    usual = _from_everything(logs[start:begun], latest)
    return usual.and_of(apart) if usual.effect < 0 and steps else apart


def _begin_without_step(times: Sequence[float], start: int, last: LastEvent | None) -> int:
    at = 0 if last is None else bisect_left(times, last.time)
    if max(LEAST_BASELINE, start + 1) <= at < len(times):
        return at
    return len(times) - max(LEAST_PRESENT, min(PRESENT, (len(times) - start) // 3))


def _from_everything(baseline: Matrix, present: Matrix) -> Difference:
    """Return the difference from the whole baseline, which slow variation makes less certain."""
    apart = difference(baseline, present)
    return apart.wider(SLOW * usual_variation(baseline))


def alike(before: Sequence[float], after: Sequence[float]) -> Places:
    """Return the indexes of runs in `after` at hours of the day that also occur before."""
    return like_hours(before, after) if spread_out([*before, *after]) else np.arange(len(after))
