"""The steps of all cases in one figure: those of known events, then those at unknown times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pvebench.analysis.creeping import creeping, without_explained
from pvebench.analysis.event import CaseShift, EventShift
from pvebench.analysis.events import Event
from pvebench.analysis.memory import Memory
from pvebench.analysis.series import History
from pvebench.analysis.verdict import CaseStep, Verdict, conclude

NEAR: Final = 3
"""Runs between an event and a step found by the scan for the event to explain it."""
RARE: Final = 0.01
"""Steps of their size that all cases together may make by chance."""
RESIDUE: Final = 0.15
"""Share of a levelled step that may be left of it."""
RECENT: Final = 40
"""Runs before an event whose level it is compared with."""
SAMPLED: Final = 3
"""Members of a group that are looked at first."""
LOOK: Final = 10
"""Runs that make a look at a history one that tells anything new."""
COMPANY: Final = 3
"""Cases that have to move the same way at the same time to vouch for one another."""


class FigureSteps:
    """One figure of one node, event after event: what is known of one is levelled for the next."""

    def __init__(
        self, memory: Memory, node: str, histories: Sequence[History],
        events: Sequence[Event], *, strictness: float,
    ) -> None:  # fmt: skip
        self._memory, self._node, self._strictness = memory, node, strictness
        self._histories = histories
        self._steps: dict[str, list[CaseStep]] = {one.case: [] for one in histories}
        self._last: dict[str, CaseShift] = {}
        self.shifts: list[tuple[Event, EventShift]] = []
        self._judge_events(memory, events, strictness, {})
        early = self._early(memory)
        if early:
            self._judge_events(memory, events, strictness, early)
        self._doubtful = self._add_unknown(memory, events)

    def _judge_events(
        self, memory: Memory, events: Sequence[Event], strictness: float,
        early: Mapping[str, Sequence[CaseStep]],
    ) -> None:  # fmt: skip
        """Judge event after event; `early`: steps at unknown times, levelled before."""
        self._steps = {one.case: [] for one in self._histories}
        self._last, self.shifts = {}, []
        ends = [*(event.time for event in events[1:]), math.inf]
        for event, end in zip(events, ends, strict=False):
            ready = [self._ready(one, event, early.get(one.case, ())) for one in self._histories]
            shift = memory.event(self._node, ready, event.time, until=end, strictness=strictness)
            self.shifts.append((event, shift))
            self._take(event, shift)

    def _early(self, memory: Memory) -> dict[str, Sequence[CaseStep]]:
        """Return the steps that began before the event that they were taken for.

        Scanning costs more than all else here: only what an event is said to have moved is
        looked at, and of a group some members first.
        """
        histories = {one.case: one for one in self._histories}
        found: dict[str, Sequence[CaseStep]] = {}
        for event, shift in self.shifts:
            alone = [
                case for case, one in shift.cases.items() if one.confirmed and one.group is None
            ]
            found |= _begun_before(memory, event, histories, alone)
            for group in shift.groups:
                if _begun_before(memory, event, histories, group.cases[:SAMPLED]):
                    found |= _begun_before(memory, event, histories, group.cases)
        return found

    def _ready(self, history: History, event: Event, early: Sequence[CaseStep]) -> History:
        """Return a history with what is known to have moved before an event levelled out."""
        own = [(step.time, step.effect) for step in self._steps[history.case]]
        place = history.split(event.time)
        own += [
            (step.time, step.effect)
            for step in early
            if history.split(step.time) < place - NEAR and not _near(step, own, history)
        ]
        return replace(history, levelled=tuple(sorted(own)))

    def _take(self, event: Event, shift: EventShift) -> None:
        for case, found in shift.cases.items():
            self._last[case] = found
            if found.confirmed:
                step = CaseStep(
                    time=event.time, known=True, effect=found.effect, low=found.low,
                    high=found.high, p_value=found.p_value, runs=found.runs, group=found.group,
                )  # fmt: skip
                self._steps[case].append(step)

    def _add_unknown(self, memory: Memory, events: Sequence[Event]) -> dict[str, CaseStep]:
        """Add the steps that no event has confirmed; return those that are not sure enough.

        One alarm in a thousand runs is silence for one case, and noise for a thousand: a step
        counts if it is rare among all cases, or if others have moved with it.
        """
        found = [
            (one, step) for one in self._histories for step in self._scanned(memory, one, events)
        ]
        doubtful = {}
        for history, step in found:
            looks = len(self._histories) * len(history.points) / LOOK
            rare = step.p_value * looks <= RARE
            company = sum(
                step.effect * other.effect > 0
                and abs(history.split(other.time) - history.split(step.time)) <= 1
                for _, other in found
            )
            if rare or company >= COMPANY:
                self._steps[history.case].append(step)
                self._steps[history.case].sort(key=lambda one: one.time)
            else:
                doubtful[history.case] = step
        return doubtful

    def _scanned(
        self, memory: Memory, history: History, events: Sequence[Event]
    ) -> Iterator[CaseStep]:
        """Return the steps at other times than those known; those near an event are its own."""
        levelled = tuple((step.time, step.effect) for step in self._steps[history.case])
        for step in memory.scan(replace(history, levelled=levelled)):
            # What is left of a large step that was levelled by its estimate is no step.
            left = RESIDUE * max((abs(effect) for _, effect in levelled), default=0.0)
            least = max(history.figure.least_effect, left)
            if _near(step, levelled, history) or abs(step.effect) < least:
                continue
            place = history.split(step.time)
            near = [e for e in events if abs(history.split(e.time) - place) <= NEAR]
            at = near[0].time if near else step.time
            yield replace(step, time=at, known=bool(near))

    def verdicts(self, accepted_until: Mapping[str, float], reason: str) -> list[Verdict]:
        """Return the verdict on every case; `reason`: why the histories begin anew, if so."""
        creeps = creeping(
            self._memory, self._histories, self._steps, accepted_until,
            strictness=self._strictness,
        )  # fmt: skip
        return [
            conclude(
                history,
                without_explained(self._steps[history.case], creeps.get(history.case)),
                self._last.get(history.case), doubtful=self._doubtful.get(history.case),
                creep=creeps.get(history.case),
                accepted_until=accepted_until.get(history.of, -math.inf), cut_reason=reason,
            )
            for history in self._histories
        ]  # fmt: skip


def _begun_before(
    memory: Memory, event: Event, histories: Mapping[str, History], cases: Sequence[str]
) -> dict[str, Sequence[CaseStep]]:
    """Return case -> its steps, of those that have one not long before an event."""
    found: dict[str, Sequence[CaseStep]] = {}
    for case in cases:
        history = histories[case]
        steps, place = memory.scan(history), history.split(event.time)
        if any(NEAR < place - history.split(step.time) <= RECENT for step in steps):
            found[case] = steps
    return found


def _near(step: CaseStep, levelled: Sequence[tuple[float, float]], history: History) -> bool:
    place = history.split(step.time)
    return any(abs(history.split(time) - place) <= NEAR for time, _ in levelled)
