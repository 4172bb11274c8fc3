"""The latest verdicts and changes of all nodes, with the labels needed to show them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from pvebench.analysis.change import Change, Severity
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.step_groups import merge_nodes
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.model.units import DAY, show_day, show_span
from pvebench.store.changes import Decision, DefinitionChange

SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")
"""Most severe first."""
_RANK: Final = {state: rank for rank, state in enumerate(VerdictState)}


# --- Times without results of a node, from the histories of its cases.

LEAST_OUTAGE_SECONDS: Final = DAY
OVERDUE: Final = 2.5
"""Usual pauses of a case after which results are missing; as in the alert."""
NEAR_PAUSES: Final = 10
"""Pauses on each side that show what is usual at a time."""
MOST_OUTAGES: Final = 10
"""Maximum outages per node, newest first."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Time between two results of a node, in Unix seconds."""

    node: str
    begin: float
    end: float


def outages(report: NodeReport) -> list[Outage]:
    """Return when a node had no result though several were due, the newest first.

    Those are the long pauses of the case with most runs in which no other case had a run.
    """
    found: list[Outage] = []
    histories = {
        verdict.history.of: verdict.history for verdict in report.verdicts if verdict.history.points
    }
    times = max((history.times() for history in histories.values()), key=len, default=())
    pauses = [after - before for before, after in pairwise(times)]
    for place, pause in enumerate(pauses):
        if pause < LEAST_OUTAGE_SECONDS:
            continue
        usual = statistics.median(pauses[max(0, place - NEAR_PAUSES) : place + NEAR_PAUSES + 1])
        least = max(LEAST_OUTAGE_SECONDS, OVERDUE * usual)
        if pause < least:
            continue
        middle = times[place] + pause / 2
        splits = [(history.times(), history.split(middle)) for history in histories.values()]
        begin = max(ends[split - 1] for ends, split in splits if split)
        end = min(ends[split] for ends, split in splits if split < len(ends))
        if end - begin >= least:
            found.append(Outage(report.node, begin, end))
    return found[: -MOST_OUTAGES - 1 : -1]


def outage_text(outage: Outage) -> str:
    """Return `pve3 had no results for 7 days, from 2026-10-16 to 2026-10-23`."""
    span = show_span(outage.end - outage.begin)
    days = f"from {show_day(outage.begin)} to {show_day(outage.end)}"
    return f"{outage.node or 'history'} had no results for {span}, {days}"


# --- Verdicts and changes of all nodes.


def changes_of(reports: Sequence[NodeReport]) -> tuple[Change, ...]:
    """Return the changes of all nodes, the newest first."""
    changes = [change for report in reports for change in report.findings]
    return merge_nodes(sorted(changes, key=lambda change: -change.begin))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Verdicts on all cases, and all changes.

    Attributes:
        version: highest number of the runs taken into account.
        labels: case key -> labels of its results.
        environments: digest -> slug, as in the label `environment` of other metrics.
        decisions: oldest first.
        definition_changes: cases with a changed definition, the newest first.
        changes: of all nodes, the newest first; with IDs where a `ChangeTracker` set them.
        failed: whether a later update failed, so that everything here may be stale.
    """

    version: int = 0
    reports: tuple[NodeReport, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    definition_changes: tuple[DefinitionChange, ...] = ()
    changes: tuple[Change, ...] = ()
    failed: bool = False

    @property
    def outages(self) -> tuple[Outage, ...]:
        """The times without results of each node, the newest first."""
        found = (outage for report in self.reports for outage in outages(report))
        return tuple(sorted(found, key=lambda outage: -outage.end))

    @property
    def open_changes(self) -> tuple[Change, ...]:
        """The open changes, most severe first, then newest first."""
        opened = [change for change in self.changes if change.state == "open"]
        return tuple(sorted(opened, key=lambda change: SEVERITIES.index(change.severity)))

    @property
    def closed_changes(self) -> tuple[Change, ...]:
        """The resolved and accepted changes, the newest first.

        Without those that only brought back an earlier level: they are the end of another change.
        """
        return tuple(
            change for change in self.changes if change.state != "open" and not change.back
        )

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The open changes that need attention: worse, or implausible; ordered as above."""
        return tuple(change for change in self.open_changes if change.regression)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all cases and metrics, those that need attention first."""
        verdicts = [verdict for report in self.reports for verdict in report.verdicts]
        return tuple(sorted(verdicts, key=lambda one: (_RANK[one.state], -abs(one.effect))))

    @property
    def inconclusive(self) -> list[Verdict]:
        """The inconclusive verdicts."""
        return [verdict for verdict in self.verdicts if not verdict.state.judged]

    def of_case(self, key: str) -> tuple[Verdict, ...]:
        """Return the verdicts on one case's metrics, those that need attention first."""
        return tuple(verdict for verdict in self.verdicts if verdict.history.of == key)

    def most_important(self) -> dict[str, Verdict]:
        """Return case key -> its most important confirmed verdict, where there is one.

        Of several metrics in the same state the throughput represents the case.
        """
        confirmed = [verdict for verdict in self.verdicts if verdict.state.confirmed]
        confirmed.sort(key=lambda one: (_RANK[one.state], one.history.figure.name != "throughput"))
        # The first of each case wins, so the others go in before it.
        return {verdict.history.of: verdict for verdict in reversed(confirmed)}

    def since(self, time: float) -> Verdicts:
        """Return the same without changes that began before `time` (Unix seconds)."""
        changes = tuple(change for change in self.changes if change.begin >= time)
        return replace(self, changes=changes)

    def counts(self) -> dict[VerdictState, int]:
        """Return state -> number of metrics of cases in it; states without any are absent."""
        counts: dict[VerdictState, int] = {}
        for verdict in self.verdicts:
            counts[verdict.state] = counts.get(verdict.state, 0) + 1
        return counts
