"""The verdict on one metric of a case, from the steps of its history."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pvebench.analysis.arrays import Matrix, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep, Dropped, GoodRuns
from pvebench.analysis.difference import Difference, difference, size_text
from pvebench.analysis.gradual_change import PARTS
from pvebench.analysis.lasting_steps import SIDE, decisive_steps
from pvebench.analysis.noise_patterns import like_hours
from pvebench.analysis.slow_variation import usual_variation
from pvebench.model.figure import VerdictFigure
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
MAYBE: Final = 0.01
"""Maximum p-value of a possible change of a single case."""
WEEK_OF_RUNS: Final = 200
"""Number of runs before whose hours of the day are considered."""


class VerdictState(StrEnum):
    """State of a verdict; those that need attention first."""

    IMPLAUSIBLE_GAIN = "implausible"
    SLOWER = "slower"
    GRADUALLY_SLOWER = "gradually_slower"
    POSSIBLY_SLOWER = "possibly_slower"
    FASTER = "faster"
    GRADUALLY_FASTER = "gradually_faster"
    POSSIBLY_FASTER = "possibly_faster"
    INCONCLUSIVE = "inconclusive"
    UNCHANGED = "unchanged"

    @property
    def words(self) -> str:
        """Its name for users."""
        return self.replace("_", " ")

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
        if self in {VerdictState.INCONCLUSIVE, VerdictState.UNCHANGED}:
            return 0
        size = 1 if self.startswith("possibly") else 2
        return -size if self.endswith("slower") else size


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one metric of a case; effects are logarithms, positive is better.

    Attributes:
        effect, low, high: current level relative to the baseline, with its 95% confidence interval.
        p_value: p-value of the latest step, or of the last event's shift; None: neither.
        runs: number of runs in the current level.
        steps: confirmed steps, oldest first.
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
    def accepted(self) -> tuple[CaseStep, ...]:
        """The accepted steps."""
        return tuple(step for step in self.steps if step.accepted)

    @property
    def excluded(self) -> float:
        """Largest change in either direction that is not ruled out, as a logarithm."""
        return max(abs(self.low), abs(self.high))

    @property
    def threshold(self) -> float:
        """Half width of the confidence interval, as a ratio."""
        return math.expm1((self.high - self.low) / 2)


def as_ratio(effect: float, figure: VerdictFigure) -> float:
    """Return an effect as a ratio of the value, positive is better, as in the verdict text."""
    return math.expm1(effect) if figure.more_is_better else -math.expm1(-effect)


def conclude(
    history: CaseHistory,
    steps: tuple[CaseStep, ...],
    *,
    event: float = -math.inf,
    shift: CaseStep | None = None,
    doubtful: CaseStep | None = None,
    creep: CaseStep | None = None,
    cut_reason: str = "",
) -> Verdict:
    """Return the verdict on one metric of a case.

    Args:
        history: since the last reset or the last incomparable environment, without the effects of
            its hours.
        steps: confirmed steps, oldest first.
        event: time of the last event before its latest run; infinite: there is none.
        shift: effect of an event on the case; None: unknown, for example without runs at equal
            hours.
        doubtful: latest step that may be chance, or that only switches between the two levels of
            a bimodal case.
        creep: confirmed gradual change, or change of a part of the runs, beyond the steps.
        cut_reason: why the history was restarted; empty if it was not.
    """
    apart = difference_of(history, steps, event)
    if apart is None:
        return replace(_without(history, cut_reason), steps=steps)
    base = _baseline(history, steps, creep)
    verdict = Verdict(
        history=history,
        state=VerdictState.UNCHANGED,
        effect=apart.effect,
        low=apart.low,
        high=apart.high,
        runs=apart.after,
        steps=steps,
        creep=creep,
        baseline=statistics.median(base.values) if base else None,
        baseline_runs=len(base),
        baseline_start=base.times[0] if base else 0.0,
    )
    return _by_steps(verdict, apart, shift, doubtful)


def _by_steps(
    verdict: Verdict, apart: Difference, shift: CaseStep | None, doubtful: CaseStep | None
) -> Verdict:
    """Return the verdict with its state, by the present level: regressions decide first."""
    shown, creep, recent = decisive_steps(verdict.steps), verdict.creep, _recent(verdict.steps)
    if creep is not None and (not shown or creep.effect < 0 < shown[0].effect):
        return _of(verdict, creep, _state_of(creep))
    if shown:
        return _decided(verdict, shown, recent[-1])
    if doubtful is not None and doubtful.mode:
        reason = f"alternates between two levels {size_text(abs(doubtful.effect))} apart"
        verdict = replace(verdict, runs=doubtful.runs, p_value=doubtful.p_value)
        return _inconclusive(verdict, reason, apart)
    return _ended(verdict, recent[-1], apart) if recent else _calm(verdict, apart, shift, doubtful)


def _calm(
    verdict: Verdict, apart: Difference, shift: CaseStep | None, doubtful: CaseStep | None
) -> Verdict:
    """Return the verdict without confirmed changes."""
    if doubtful is not None:
        return _of(verdict, doubtful, _possibly(doubtful))
    verdict = replace(verdict, p_value=shift.p_value if shift else None)
    if shift is not None and _is_possible(shift, verdict.history.figure):
        return replace(verdict, state=_possibly(shift))
    if apart.excluded > claim_of(verdict.history):
        return _inconclusive(verdict, missing_text(verdict.history, apart), apart)
    return replace(verdict, reason=f"changes above {size_text(apart.excluded)} ruled out")


def _decided(verdict: Verdict, shown: Sequence[CaseStep], last: CaseStep) -> Verdict:
    """Return the verdict of open steps."""
    reason = next(filter(None, (step.reason for step in shown)), "")
    state = VerdictState.IMPLAUSIBLE_GAIN if reason else VerdictState.FASTER
    if shown[0].effect < 0:
        state = VerdictState.SLOWER
    if shown == [last] and last.low < last.high:
        # One number everywhere: the change of this step.
        return replace(_of(verdict, last, state), reason=reason)
    runs = verdict.history.runs_since(last.time)
    return replace(verdict, state=state, reason=reason, p_value=last.p_value, runs=runs)


def _ended(verdict: Verdict, last: CaseStep, apart: Difference) -> Verdict:
    """Return the verdict of steps that the present level no longer shows."""
    verdict = replace(verdict, p_value=last.p_value, runs=verdict.history.runs_since(last.time))
    if not (last.back or last.certain) and apart.low <= last.effect <= apart.high:
        return replace(verdict, state=_possibly(last))
    reason = f"back at the baseline, changes above {size_text(apart.excluded)} ruled out"
    return replace(verdict, reason=reason)


def _inconclusive(verdict: Verdict, reason: str, apart: Difference) -> Verdict:
    more = apart.more_runs(claim_of(verdict.history)) or 0
    return replace(verdict, state=VerdictState.INCONCLUSIVE, reason=reason, more_runs=more)


def _of(verdict: Verdict, step: CaseStep, state: VerdictState) -> Verdict:
    """Return the verdict with the size of a step."""
    return replace(
        verdict,
        state=state,
        effect=step.effect,
        low=step.low,
        high=step.high,
        runs=step.runs,
        p_value=step.p_value,
    )


def _is_possible(shift: CaseStep, figure: VerdictFigure) -> bool:
    large = abs(shift.effect) >= figure.least_effect
    return large and shift.p_value <= MAYBE and not shift.confirmed


def _possibly(step: CaseStep) -> VerdictState:
    return VerdictState.POSSIBLY_SLOWER if step.effect < 0 else VerdictState.POSSIBLY_FASTER


def _state_of(creep: CaseStep) -> VerdictState:
    if creep.slow and creep.effect > 0:
        return VerdictState.GRADUALLY_FASTER
    return VerdictState.GRADUALLY_SLOWER if creep.slow else VerdictState.SLOWER


def _recent(steps: Sequence[CaseStep]) -> list[CaseStep]:
    return [step for step in steps if not step.accepted]


def _baseline(history: CaseHistory, steps: Sequence[CaseStep], creep: CaseStep | None) -> GoodRuns:
    """Return the runs of the baseline; for a gradual change, the runs at its start."""
    start, end = _base_span(steps)
    if creep is not None and not _recent(steps):
        if creep.slow:
            return history.since(creep.time).points[: creep.runs // PARTS]
        end = creep.time
    return history.points[history.split(start) : history.split(end)]


def _base_span(steps: Sequence[CaseStep]) -> tuple[float, float]:
    """Return the time of the baseline: up to the first step that decides the state."""
    decisive = decisive_steps(steps)
    end = min([step.time for step in decisive or _recent(steps)], default=math.inf)
    borders = [step.time for step in steps if step.time < end and (decisive or step.accepted)]
    return max(borders, default=-math.inf), end


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
    history: CaseHistory, steps: Sequence[CaseStep], event: float
) -> Difference | None:
    """Return the difference of the current level from the baseline; None: too few runs.

    The current level has the runs since the last step, otherwise since the last event, otherwise
    the latest runs.
    """
    times, recent = history.times(), _recent(steps)
    logs = history.logs()
    start, base_end = (min(history.split(time), len(logs)) for time in _base_span(steps))
    if recent:
        begun = history.split(recent[-1].time)
    else:
        base_end = begun = _begin_without_step(times, start, event)
    begin, now = max(start, base_end - SIDE), max(begun, len(logs) - SIDE)
    known = times[max(start, base_end - WEEK_OF_RUNS) : base_end]
    after = now + like_hours(known, times[now:])
    if recent:
        # A reported change has a size, even if few of its hours are known.
        begin = min(begin, max(0, base_end - LEAST_BASELINE))
        after = after if len(after) >= LEAST_PRESENT else np.arange(now, len(logs))
    if base_end - begin < LEAST_BASELINE or not len(after):
        return None
    apart = difference(logs[begin:base_end], logs[after])
    if decisive_steps(steps):
        return apart
    # A change may have come after the last step, and a mode be taken for the baseline.
    latest = logs[after[-PRESENT:] if recent else after]
    apart = apart.and_of(_from_everything(logs[start:base_end], latest))
    usual = _from_everything(logs[start:begun], latest)
    return usual.and_of(apart) if usual.effect < 0 and recent else apart


def _begin_without_step(times: Sequence[float], start: int, event: float) -> int:
    at = bisect_left(times, event)
    if max(LEAST_BASELINE, start + 1) <= at < len(times):
        return at
    return len(times) - max(LEAST_PRESENT, min(PRESENT, (len(times) - start) // 3))


def _from_everything(baseline: Matrix, present: Matrix) -> Difference:
    """Return the difference from the whole baseline, which slow variation makes less certain."""
    apart = difference(baseline, present)
    return apart.wider(SLOW * usual_variation(baseline))
