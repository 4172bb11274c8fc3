"""The verdict on one case and figure: how its state follows from the steps of its history."""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pvebench.analysis.arrays import Matrix, Places, np
from pvebench.analysis.case_history import LEAST_BASELINE, CaseHistory, CaseStep, Figure, GoodRuns
from pvebench.analysis.difference import Difference, difference, size_text
from pvebench.analysis.event_effects import CaseShift
from pvebench.analysis.gradual_change import PARTS
from pvebench.analysis.noise_patterns import NEWEST as NOISE_RUNS
from pvebench.analysis.noise_patterns import (
    like_hours,
    slow_hours,
    slow_stretches,
    spread_out,
    two_levels,
    without_hours,
)

# --- Gains that are too good to be true: more often something is no longer done.

NEWEST: Final = 5
"""Newest runs that must be beyond what the device can do."""
DURABLE_GAIN: Final = math.log(1.25)
"""Gain of synchronous writes that no software gives: they wait for the device, or do not wait."""
ANY_GAIN: Final = math.log(2.0)
"""Gain of anything that wants a second look."""


def too_good(history: CaseHistory, effect: float) -> str:
    """Return why a gain is too good to be true, or nothing."""
    if history.figure.kind == "speed" and history.figure.more_is_better:
        newest = statistics.median(point.value for point in history.points[-NEWEST:])
        if history.ceiling is not None and newest > history.ceiling:
            return "it is more than the device can do"
        if history.labels.get("durable") == "yes" and effect > DURABLE_GAIN:
            return (
                "writes that must reach the device do not become so much faster by software: "
                "they may no longer wait for it"
            )
    if history.figure.kind in {"speed", "stall"} and effect > ANY_GAIN:
        return "a gain by more than half is rarely real: something may no longer be done"
    return ""


# --- What is missing until something can be told of a case, and when it will be known.

CLAIM: Final = math.log(1.1)
"""Change that must be excluded before anything is called the same."""
TIMES: Final = 1.5
"""Times a figure's least effect that must be excluded at least: of those that vary by nature."""
PACE: Final = 10
"""Newest runs whose pace is the present schedule's."""


def claim_of(history: CaseHistory) -> float:
    """Return the size of change that must be excluded to call a case the same."""
    return max(CLAIM, TIMES * history.figure.least_effect)


def missing_text(history: CaseHistory, apart: Difference) -> str:
    """Return what could be told now, and when it will be known."""
    now = (
        f"{count_text(apart.after, 'run')} after {apart.before}: up to {size_text(apart.excluded)}"
    )
    size = claim_of(history)
    more = apart.more_runs(size)
    if more is None:
        return f"{now} could hide; {apart.before} runs before are too few ever to exclude 10 %"
    return f"{now} could hide; {size_text(size)} {when_text(history, more)}"


def when_text(history: CaseHistory, runs: int) -> str:
    """Return when so many more runs will be there, at the pace of the newest ones."""
    times = history.times()[-PACE:]
    text = f"after {count_text(runs, 'more run')}"
    if len(times) < 2:
        return text
    pace = statistics.median(after - before for before, after in itertools.pairwise(times))
    then = datetime.fromtimestamp(times[-1] + runs * pace, UTC)
    days = runs * pace / 86400
    when = f"{then:%A}" if days < 6 else f"{then:%Y-%m-%d}"
    return f"{text}, about {when if days >= 1 else f'{then:%A %H} h UTC'}"


def count_text(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


PRESENT: Final = 10
"""Newest runs that make the present level where nothing has happened, of many."""
SIDE: Final = 60
"""Runs on each side that a level is taken from: what was a year ago says little of now."""
LEAST_PRESENT: Final = 3
"""Newest runs that are held against those before, where nothing has happened, at least."""
WEEK_OF_RUNS: Final = 200
"""Runs whose hours are known."""
LEFT: Final = 0.35
"""Share of what the last step came back from within which a level is back where it was …"""
FARTHEST: Final = math.log(2)
"""… but no more of it than this: a third of a stall of a thousand times is no way back."""


class VerdictState(StrEnum):
    """What is said of a case."""

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
        """Whether there is a verdict at all."""
        return self is not VerdictState.INCONCLUSIVE

    @property
    def confirmed(self) -> bool:
        """Whether it says beyond doubt that something has changed."""
        return abs(self.code) == 2

    @property
    def code(self) -> int:
        """-2 worse, -1 maybe worse, 0 same, 1 maybe better, 2 better."""
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
        reason: what "the same" excludes; what is missing where it cannot be told, and when it
            will be known; why a gain is implausible.
        more_runs: that it takes until it can be told; 0: none, or no number of them would do.
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
        """Change against the baseline as ratio, plus for better."""
        return as_ratio(self.effect, self.history.figure)

    @property
    def excluded(self) -> float:
        """The largest change, either way, that is not excluded, as logarithm."""
        return max(abs(self.low), abs(self.high))

    @property
    def threshold(self) -> float:
        """Half width of the interval, as ratio."""
        return math.expm1((self.high - self.low) / 2)


@dataclass(frozen=True, slots=True)
class LastEvent:
    """An event before the newest run of a case.

    Attributes:
        shift: what it did to the case; None: it cannot be told, as where no hour is the same.
    """

    time: float
    shift: CaseShift | None


def as_ratio(effect: float, figure: Figure) -> float:
    """Return by how much the value itself differs, plus for better: the number of the sentence."""
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
    """Return the verdict on one case and figure.

    Args:
        history: raw, since the last reset or the last environment that compares.
        steps: confirmed, oldest first.
        last: the last event before its newest run, or None.
        doubtful: newest step that may be chance, or that only leads to the other of the case's
            two levels.
        creep: slow change of what the steps leave, beyond doubt.
        accepted_until: steps up to this time have been accepted.
        cut_reason: why the history begins anew, if it does.
    """
    accepted = tuple(step for step in steps if step.time <= accepted_until)
    open_steps = tuple(step for step in steps if step.time > accepted_until)
    apart = difference_of(history, accepted, open_steps, last)
    if apart is None:
        return replace(_without(history, cut_reason), accepted=accepted, steps=open_steps)
    runs = len(history.points) - history.split(open_steps[-1].time) if open_steps else apart.after
    numbers = (apart.effect, apart.low, apart.high, runs)
    shift = None if last is None else last.shift
    state, reason = _state(history, open_steps, shift, apart)
    p_value = open_steps[-1].p_value if open_steps else shift.p_value if shift else None
    if creep is not None and not open_steps:
        state = VerdictState.GRADUALLY_SLOWER if creep.effect < 0 else VerdictState.GRADUALLY_FASTER
        reason, numbers, p_value = "", _numbers_of(creep), creep.p_value
    elif doubtful is not None and doubtful.mode:
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


def _baseline(
    history: CaseHistory,
    accepted: Sequence[CaseStep],
    steps: Sequence[CaseStep],
    creep: CaseStep | None,
) -> GoodRuns:
    """Return the runs that the present level is compared with: of a creep, those it began with."""
    start = accepted[-1].time if accepted else -math.inf
    end = steps[0].time if steps else math.inf
    if creep is not None and not steps:
        return history.since(creep.time).points[: creep.runs // PARTS]
    return history.points[history.split(start) : history.split(end)]


def _without(history: CaseHistory, cut_reason: str) -> Verdict:
    """Return the verdict on a history that has no two sides yet."""
    runs = len(history.points)
    missing = LEAST_BASELINE + LEAST_PRESENT - runs
    if missing <= 0 and not cut_reason:
        reason = "none of the newest runs was made at an hour at which there are runs before"
        return Verdict(
            history=history, state=VerdictState.INCONCLUSIVE, reason=reason, baseline_runs=runs
        )
    missing = max(1, missing)
    wanted = f"{count_text(runs, 'run')}{' since then' if cut_reason else ''}"
    reason = f"{wanted}; {when_text(history, missing)} something can be said"
    return Verdict(
        history=history,
        state=VerdictState.INCONCLUSIVE,
        reason=f"{cut_reason}; {reason}" if cut_reason else reason,
        baseline_runs=runs,
        more_runs=missing,
    )


Numbers = tuple[float, float, float, int]
"""effect, low, high, runs."""


def _numbers_of(step: CaseStep) -> Numbers:
    return step.effect, step.low, step.high, step.runs


def difference_of(
    history: CaseHistory,
    accepted: Sequence[CaseStep],
    steps: Sequence[CaseStep],
    last: LastEvent | None,
) -> Difference | None:
    """Return how far the present level is from the baseline; None if there are no two sides.

    The present are the runs since the last step, else since the last event, else the newest.
    """
    times = history.times()
    logs = _without_hours(history, [*accepted, *steps])
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
    if base_end - begin < LEAST_BASELINE or not len(after):
        return None
    return difference(logs[begin:base_end], logs[after])


def alike(before: Sequence[float], after: Sequence[float]) -> Places:
    """Return which runs `after` compare with those before, by the hours they were made at."""
    return like_hours(before, after) if spread_out([*before, *after]) else np.arange(len(after))


def _without_hours(history: CaseHistory, steps: Sequence[CaseStep]) -> Matrix:

    known = [(history.split(step.time), step.effect) for step in steps]
    return without_hours(history.logs(), history.times(), known)


def sized(history: CaseHistory, steps: Sequence[CaseStep]) -> tuple[CaseStep, ...]:
    """Return the steps with the size that all runs up to the steps beside them tell."""
    logs, times = _without_hours(history, steps), history.times()
    places = [bisect_left(times, step.time) for step in steps]
    found = []
    for step, begin, at, end in zip(
        steps, [0, *places], places, [*places[1:], len(logs)], strict=False
    ):
        before, after = logs[max(begin, at - SIDE) : at], logs[at:end][-SIDE:]
        if len(before) < 2 or not len(after):
            found.append(step)
            continue
        size = difference(before, after)
        found.append(
            replace(step, effect=size.effect, low=size.low, high=size.high, runs=len(logs) - at)
        )
    return tuple(found)


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
    return VerdictState.UNCHANGED, f"no change above {size_text(apart.excluded)}"


def _after_steps(
    history: CaseHistory, steps: Sequence[CaseStep], apart: Difference
) -> tuple[VerdictState, str]:
    left = left_after(steps[-1].effect, apart.effect)
    if len(steps) > 1 and abs(apart.effect) < max(history.figure.least_effect, left):
        if apart.excluded <= max(claim_of(history), left):
            reason = f"back at the baseline, no change above {size_text(apart.excluded)}"
            return VerdictState.UNCHANGED, reason
        return VerdictState.INCONCLUSIVE, f"back near the baseline; {missing_text(history, apart)}"
    if apart.effect < 0:
        return VerdictState.SLOWER, ""
    reason = too_good(history, apart.effect)
    return (VerdictState.IMPLAUSIBLE, reason) if reason else (VerdictState.FASTER, "")


def left_after(last: float, effect: float) -> float:
    """Return how far from the baseline a level may be to be back there.

    What was larger, long before, says nothing of that: only what the last step came back from.

    Args:
        last: size of the last step, a logarithm.
        effect: of the level after it against the baseline.
    """
    return LEFT * min(abs(effect - last), FARTHEST)


def _habits(history: CaseHistory, steps: Sequence[CaseStep]) -> list[str]:
    """Return the noise of a case that has a name."""
    if history.figure.kind != "speed" or not history.figure.more_is_better:
        return []
    times = history.times()[-NOISE_RUNS:]
    levelled = replace(history, levelled=tuple((step.time, step.effect) for step in steps)).logs()
    texts = [slow_hours(levelled[-NOISE_RUNS:], times)]
    texts.append(slow_stretches(_without_hours(history, steps)[-NOISE_RUNS:]))
    return [text for text in texts if text]
