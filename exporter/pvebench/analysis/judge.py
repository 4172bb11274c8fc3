"""All of a node: its events, the verdicts on every case, and what to tell of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pvebench.analysis.changes import find_changes
from pvebench.analysis.event import EventShift
from pvebench.analysis.events import (
    Event,
    Facts,
    comparable_since,
    environment_changes,
    merged,
)
from pvebench.analysis.figure_steps import FigureSteps
from pvebench.analysis.findings import Finding
from pvebench.analysis.index import EnvironmentLevel, performance_index
from pvebench.analysis.memory import Memory
from pvebench.analysis.series import History
from pvebench.analysis.verdict import Verdict
from pvebench.model.known_issue import KnownIssue


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What is known of a node.

    Attributes:
        histories: of all cases and figures, since their last reset.
        timeline: (end, environment's digest) of every good run, oldest first.
        facts: digest -> facts.
        accepted_until: case -> time up to which its changes have been accepted.
    """

    node: str
    histories: Sequence[History]
    timeline: Sequence[tuple[float, str]]
    facts: Mapping[str, Facts]
    accepted_until: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What is said of a node.

    Attributes:
        verdicts: of every case and figure.
        findings: what to tell, the newest and clearest first.
        levels: of every storage in every environment, oldest first.
        judged_until: end of the newest run.
    """

    node: str
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    events: tuple[Event, ...]
    levels: tuple[EnvironmentLevel, ...]
    judged_until: float


class Judge:
    """Judges nodes again and again; what has not changed since last time is not judged anew.

    Args:
        issues: known ones.
    """

    def __init__(self, issues: Sequence[KnownIssue] = ()) -> None:
        self._issues = tuple(issues)
        self._memory = Memory()

    def judge(self, material: Material) -> NodeReport:
        """Return what is said of a node."""
        changes = environment_changes(material.timeline, material.facts)
        since, reason = comparable_since(changes)
        histories = [history.since(since) for history in material.histories]
        rounds = max((history.times() for history in histories), key=len, default=())
        events = merged([event for event in changes if event.time > since], rounds)
        figures: dict[str, list[History]] = {}
        for history in histories:
            figures.setdefault(history.figure.name, []).append(history)
        verdicts: list[Verdict] = []
        shifts: list[tuple[Event, str, EventShift]] = []
        for name, group in figures.items():
            found = FigureSteps(self._memory, material.node, group, events, strictness=len(figures))
            shifts += [(event, name, shift) for event, shift in found.shifts]
            verdicts += found.verdicts(material.accepted_until, reason)
        speeds = [history for history in histories if history.figure.name == "throughput"]
        return NodeReport(
            node=material.node, verdicts=tuple(verdicts), events=tuple(events),
            findings=find_changes(
                verdicts, shifts, self._issues, node=material.node,
                accepted_until=material.accepted_until,
            ),
            levels=performance_index(speeds),
            judged_until=material.timeline[-1][0] if material.timeline else 0.0,
        )  # fmt: skip
