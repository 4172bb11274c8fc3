"""Analysis of a node: its events, the verdicts on every case, and the resulting changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from pvebench.analysis.case_history import CaseHistory, CaseStep, Dropped, dropped, step_at
from pvebench.analysis.change import Change
from pvebench.analysis.changepoints import Scanned, scan
from pvebench.analysis.event_effects import around, judge_event
from pvebench.analysis.events import (
    Event,
    Facts,
    began,
    comparable_since,
    early_step,
    environment_changes,
    merged,
)
from pvebench.analysis.gradual_change import creeping, slow_trend, without_explained
from pvebench.analysis.lasting_steps import gain_reason, lasting, sized, with_courses
from pvebench.analysis.levels import crossing
from pvebench.analysis.noise_patterns import LEAST_DAYS, STUCK, stuck_since, usual_level
from pvebench.analysis.partial_change import partial_change
from pvebench.analysis.performance_index import (
    EnvironmentLevel,
    levels_by_environment,
    performance_index,
)
from pvebench.analysis.slow_variation import without_variation
from pvebench.analysis.step_groups import find_changes
from pvebench.analysis.verdict import Verdict, conclude
from pvebench.model.environment import KnownIssue
from pvebench.model.units import DAY

T = TypeVar("T")

NEAR: Final = 3
"""Maximum runs between an event and a detected step that it explains."""
STUCK_RUNS: Final = 600
"""Latest runs that show how long a mode lasts."""
MIXED: Final = 0.4
"""Share of the latest runs away from a mode from which it does not last."""
SAMPLED: Final = 24
"""Members of a group that show when its shift began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Input of the analysis of a node.

    Attributes:
        histories: histories of all cases and metrics, since their last reset.
        timeline: (end, environment's digest) of successful runs, oldest first: at least the first
            and the last of every environment period.
        facts: digest -> facts.
        accepted_until: case -> time up to which its changes are accepted.
    """

    node: str
    histories: Sequence[CaseHistory]
    timeline: Sequence[tuple[float, str]]
    facts: Mapping[str, Facts]
    accepted_until: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """Result of the analysis of a node.

    Attributes:
        verdicts: verdicts on every case and metric.
        findings: changes to report, the latest and most significant first.
        levels: level of every storage in every environment, oldest first.
        judged_until: end of the latest run.
    """

    node: str
    verdicts: tuple[Verdict, ...]
    findings: tuple[Change, ...]
    events: tuple[Event, ...]
    levels: tuple[EnvironmentLevel, ...]
    judged_until: float


class Memory:
    """Results about histories, kept while their inputs are the same."""

    def __init__(self) -> None:
        self._results: dict[object, tuple[object, Any]] = {}

    def kept(
        self, key: object, histories: Sequence[CaseHistory], known: object, work: Callable[[], T]
    ) -> T:
        """Return what `work` returns about histories.

        Args:
            key: of the result.
            known: all inputs of the result but the histories.
        """
        state = known, [history.extent() for history in histories]
        kept: tuple[object, T] | None = self._results.get(key)
        if kept is None or kept[0] != state:
            kept = self._results[key] = (state, work())
        return kept[1]

    def of(self, work: Callable[..., T], history: CaseHistory, *known: object) -> T:
        """Return `work(history, *known)`."""
        key = work, history.figure.name, history.case, len(history.levelled)
        return self.kept(key, [history], known, partial(work, history, *known))


class Judge:
    """Analysis of nodes, with a cache for repeated calls.

    Args:
        issues: known issues.
    """

    def __init__(self, issues: Sequence[KnownIssue] = ()) -> None:
        self._issues = issues
        self._memory = Memory()

    def judge(self, material: Material) -> NodeReport:
        """Return the report of a node."""
        changes = environment_changes(material.timeline, material.facts)
        since, reason = comparable_since(changes)
        histories = [history.since(since) for history in material.histories]
        rounds = max((history.times() for history in histories), key=len, default=())
        events = merged([event for event in changes if event.time > since], rounds)
        figures: dict[str, list[CaseHistory]] = {}
        for history in histories:
            figures.setdefault(history.figure.name, []).append(history)
        verdicts: list[Verdict] = []
        for group in figures.values():
            steps = FigureSteps(self._memory, material.node, group, events, strictness=len(figures))
            verdicts += steps.verdicts(material.accepted_until, reason)
        speeds = [
            case_history
            for case_history in figures.get("throughput", ())
            if case_history.undisturbed
        ]
        return NodeReport(
            node=material.node,
            verdicts=tuple(verdicts),
            events=tuple(events),
            findings=find_changes(
                verdicts, events, self._issues, node=material.node, environment_changes=changes
            ),
            levels=performance_index(speeds, partial(self._memory.of, levels_by_environment)),
            judged_until=material.timeline[-1][0] if material.timeline else 0.0,
        )


class FigureSteps:
    """Steps of one metric of a node, event by event, with earlier effects leveled out."""

    def __init__(
        self,
        memory: Memory,
        node: str,
        histories: Sequence[CaseHistory],
        events: Sequence[Event],
        *,
        strictness: float,
    ) -> None:
        self._memory, self._node, self._strictness = memory, node, strictness
        self._histories, self._events = histories, events
        self._steps: dict[str, list[CaseStep]] = {history.case: [] for history in histories}
        self._last: dict[str, CaseStep] = {}
        self._doubtful: dict[str, CaseStep] = {}
        self._dropped: dict[str, list[Dropped]] = {history.case: [] for history in histories}
        self._early: dict[str, CaseStep] = {}
        self._even: dict[str, CaseHistory] = {}
        ends = [*(event.time for event in events[1:]), math.inf]
        for event, end in zip(events, ends, strict=False):
            steps = self._judged(event, end)
            if self._find_early(event, steps):
                steps = self._judged(event, end)
            self._take(steps)
        self._add_unknown()

    def _judged(self, event: Event, end: float) -> dict[str, CaseStep]:
        ready = [self._ready(history, event) for history in self._histories]
        cut = around(ready, event.time, end)
        work = partial(judge_event, cut, event.time, strictness=self._strictness)
        key = "event", self._node, event.time, self._histories[0].figure.name
        return self._memory.kept(key, cut, self._strictness, work)

    def _find_early(self, event: Event, steps: Mapping[str, CaseStep]) -> bool:
        """Keep the steps that are attributed to an event but began at another time, if any."""
        ready = {history.case: self._ready(history, event) for history in self._histories}
        moved: dict[object, list[str]] = {}
        for case, step in steps.items():
            if step.confirmed or step.group is not None:
                moved.setdefault(step.group or case, []).append(case)
        found = False
        for cases in moved.values():
            rest = [case for case in ready if case not in set(cases)]
            time = began(
                [ready[case] for case in cases[:SAMPLED]],
                event,
                [ready[case] for case in rest[:: 1 + len(rest) // SAMPLED]],
            )
            if time != event.time:
                self._early |= {case: early_step(ready[case], time) for case in cases}
                found = True
        return found

    def _ready(self, history: CaseHistory, event: Event) -> CaseHistory:
        """Return a history with the steps before an event leveled out."""
        steps = [step for step in self._steps[history.case] if step.time < event.time]
        early, place = self._early.get(history.case), history.split(event.time)
        if early is not None and history.split(early.time) != place:
            steps.append(early)
        return history.without(steps)

    def _take(self, steps: Mapping[str, CaseStep]) -> None:
        self._last |= steps
        for case, step in steps.items():
            if step.confirmed:
                self._steps[case].append(step)

    def _add_unknown(self) -> None:
        """Add the steps without an event; keep possible steps and modes."""
        for history in self._histories:
            case, known = history.case, self._known(history)
            levelled = history.without(known)
            scanned = self._memory.of(scan, levelled)
            self._even[case] = even = scanned.even(levelled)
            others = list(self._others(even, scanned.steps))
            # Effects of hours that were estimated across the steps: they are part of the variation.
            steps = without_variation(Scanned().even(levelled), others) if others else []
            self._dropped[case] += dropped(others, steps, "within slow variation")
            own = _with_modes(history, steps)
            own += _stuck(even.without([*known, *own]), own)
            self._steps[case] = sorted([*known, *own], key=lambda step: step.time)
            doubt = [scanned.doubt] if scanned.doubt else []
            last = own[-1:] if own and own[-1].mode else list(self._others(even, doubt))
            if last:
                self._doubtful[case] = found = sized(even, last[0])
                self._dropped[case] += dropped([found], own, "not confirmed yet")

    def _known(self, history: CaseHistory) -> list[CaseStep]:
        return [step for step in self._steps[history.case] if step.known]

    def _others(self, history: CaseHistory, steps: Sequence[CaseStep]) -> Iterator[CaseStep]:
        """Yield the steps at other times than the known ones; steps near an event belong to it."""
        known = self._known(history)
        for step in steps:
            if any(history.runs_between(one.time, step.time) <= NEAR for one in known):
                continue
            if abs(step.effect) < history.figure.least_effect:
                self._dropped[history.case].append((step, "too small to matter"))
                continue
            at = self._event_of(history, step, steps)
            yield replace(step, time=step.time if at is None else at, known=at is not None)

    def _event_of(
        self, history: CaseHistory, step: CaseStep, steps: Sequence[CaseStep]
    ) -> float | None:
        """Return the time of the event that may explain a step at an estimated time."""
        other_steps = [one for one in steps if one is not step]
        levelled = history.without([*self._known(history), *other_steps])
        for event in self._events:
            near = history.runs_between(event.time, step.time) <= NEAR
            if near and began([levelled], event) == event.time:
                return event.time
        return None

    def verdicts(self, accepted_until: Mapping[str, float], reason: str) -> list[Verdict]:
        """Return the verdict on every case; `reason`: why the histories were restarted, if so."""
        creeps = creeping(
            partial(self._memory.of, slow_trend),
            self._histories,
            self._steps,
            accepted_until,
            strictness=self._strictness,
        )
        return [
            self._verdict(
                history,
                creeps.get(history.case) or self._part(history, accepted_until),
                accepted_until.get(history.of, -math.inf),
                reason,
            )
            for history in self._histories
        ]

    def _part(self, history: CaseHistory, accepted_until: Mapping[str, float]) -> CaseStep | None:
        levelled = self._even[history.case].without(self._steps[history.case])
        return self._memory.of(partial_change, levelled, accepted_until.get(history.of, -math.inf))

    def _verdict(
        self, history: CaseHistory, creep: CaseStep | None, accepted: float, reason: str
    ) -> Verdict:
        case = history.case
        steps = tuple(without_explained(self._steps[case], creep))
        event, shift, doubtful = (
            self._event(history),
            self._last.get(case),
            self._doubtful.get(case),
        )
        if doubtful is not None and doubtful.time <= accepted and not doubtful.mode:
            doubtful = None
        if creep is not None:
            creep = replace(creep, reason=gain_reason(history, creep, creep.left))
        ignored = (
            *self._dropped[case],
            *dropped(self._steps[case], steps, "part of a gradual change"),
        )

        def work() -> Verdict:
            even = self._even[case].without(())
            sure, disproved = lasting(even, steps)
            verdict = conclude(
                even,
                with_courses(history, sure, accepted),
                event=event,
                shift=shift,
                doubtful=doubtful,
                creep=creep,
                cut_reason=reason,
            )
            return replace(verdict, history=history, dropped=(*ignored, *disproved))

        known = (steps, event, shift, doubtful, creep, accepted, reason, ignored)
        key = "verdict", history.figure.name, case
        return self._memory.kept(key, [history], known, work)

    def _event(self, history: CaseHistory) -> float:
        """Return the time of the last event before the latest run; infinite: there is none."""
        end = history.times()[-1] if history.points else -math.inf
        return max((event.time for event in self._events if event.time <= end), default=-math.inf)


def _with_modes(history: CaseHistory, steps: list[CaseStep]) -> list[CaseStep]:
    """Return the steps, the latest one as a mode if, and only if, its level is usual."""
    if not steps:
        return steps
    places = [history.split(step.time) for step in steps]
    usual = usual_level(history.logs(), places, steps[-1].effect)
    return [*steps[:-1], replace(steps[-1], mode=usual)]


def _stuck(history: CaseHistory, steps: Sequence[CaseStep]) -> tuple[CaseStep, ...]:
    """Return the step to a mode that lasts longer than it ever did; empty: there is none.

    Args:
        history: with these and the known steps leveled out.
    """
    logs, times, first = history.logs(), history.times(), max(0, len(history.points) - STUCK_RUNS)
    place = stuck_since(logs[first:])
    if place is None or place < STUCK or (steps and steps[-1].mode):
        return ()
    begin = times[first + place]
    if times[-1] - begin < LEAST_DAYS * DAY:
        return ()  # a part of the day
    found = sized(history, step_at(history, begin, 0.0))
    small = abs(found.effect) < 2 * history.figure.least_effect
    vague = crossing(logs, 0, first + place, len(logs))[1] > MIXED
    return () if small or vague or found.low <= 0 <= found.high else (found,)
