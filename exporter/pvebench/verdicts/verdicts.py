"""What was said last: the reports of all nodes, and what is needed to show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pvebench.analysis.change import AND, Change, merge_nodes
from pvebench.analysis.changes import LEFT
from pvebench.analysis.judge import NodeReport
from pvebench.analysis.verdict import Verdict, VerdictState
from pvebench.sanitize import one_line
from pvebench.store import Decision
from pvebench.store.definitions import DefinitionChange
from pvebench.verdicts.text import LISTED, sentence

# --- A change that is open: what alerts, notifications and the wall speak of.

Severity = Literal["critical", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")
"""What wants a look first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChange:
    """A change that lasts, and that nobody has accepted.

    Attributes:
        id: stays while the change is open.
        storages: that its cases are on, in the order of the alphabet.
        severity: `critical`: much of a storage got slower; `info`: it is for the better.
    """

    id: str
    finding: Change
    storages: tuple[str, ...]
    severity: Severity

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where it is seen."""
        return tuple(self.finding.node.split(AND)) if self.finding.node else ()

    @property
    def summary(self) -> str:
        """The sentence of the verdict, without what is another with every run."""
        return one_line(sentence(self.finding, evidence=False))


def listed(names: tuple[str, ...]) -> str:
    """Return names as in a sentence: `a and b`, `a, b, c and 5 more`."""
    if len(names) > LISTED + 1:
        return f"{', '.join(names[:LISTED])} and {len(names) - LISTED} more"
    return " and ".join(
        [part for part in (", ".join(names[:-1]), names[-1]) if part] if names else ()
    )


ORDER: Final = (
    VerdictState.IMPLAUSIBLE,
    VerdictState.SLOWER,
    VerdictState.GRADUALLY_SLOWER,
    VerdictState.POSSIBLY_SLOWER,
    VerdictState.FASTER,
    VerdictState.GRADUALLY_FASTER,
    VerdictState.POSSIBLY_FASTER,
    VerdictState.INCONCLUSIVE,
    VerdictState.UNCHANGED,
)
"""In which verdicts are listed: what wants a look first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What was said.

    Attributes:
        version: the newest run's number that was taken into account.
        labels: case key -> labels of its results.
        environments: digest -> slug, as in the other metrics' label `environment`.
        decisions: oldest first.
        definition_changes: cases that mean something else than before, the newest first.
        changes: those that are open, the weightiest first; empty where nobody names them.
        failed: whether a later judging failed, so that all of this may be old.
    """

    version: int = 0
    reports: tuple[NodeReport, ...] = ()
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environments: Mapping[str, str] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    definition_changes: tuple[DefinitionChange, ...] = ()
    changes: tuple[OpenChange, ...] = ()
    failed: bool = False

    @property
    def findings(self) -> tuple[Change, ...]:
        """The changes of all nodes, the newest first."""
        found = [finding for report in self.reports for finding in report.findings]
        return merge_nodes(sorted(found, key=lambda one: -one.time))

    @property
    def regressions(self) -> tuple[Change, ...]:
        """The changes that somebody should look at: open, and worse or implausible."""
        return tuple(one for one in self.open_findings if one.regression)

    @property
    def open_findings(self) -> tuple[Change, ...]:
        """The changes that last, and that nobody has accepted.

        A change that is over is none any more, nor one whose cases are confirmed no more.
        """
        now = {
            (verdict.history.of, verdict.history.figure.name): verdict.effect
            for verdict in self.verdicts
            if verdict.state.confirmed
        }

        def stands(one: Change) -> bool:
            first = one.moves[0]
            effects = [now.get((case, first.figure.name), 0.0) for case in one.cases]
            return any(effect / first.effect > LEFT for effect in effects)

        return tuple(one for one in self.findings if not (one.accepted or one.over) and stands(one))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all cases and figures, what wants a look first."""
        found = [verdict for report in self.reports for verdict in report.verdicts]
        return tuple(sorted(found, key=lambda one: (ORDER.index(one.state), -abs(one.effect))))

    def of_case(self, key: str) -> tuple[Verdict, ...]:
        """Return the verdicts on one case's figures, what wants a look first."""
        return tuple(one for one in self.verdicts if one.history.of == key)

    def standing(self) -> dict[str, Verdict]:
        """Return case key -> what is confirmed of it and wants a look first, where anything is.

        Of several figures in the same state the throughput stands for the case.
        """
        confirmed = [one for one in self.verdicts if one.state.confirmed]
        confirmed.sort(
            key=lambda one: (ORDER.index(one.state), one.history.figure.name != "throughput")
        )
        # The first of each case wins, so the others go in before it.
        return {one.history.of: one for one in reversed(confirmed)}

    def since(self, time: float) -> Verdicts:
        """Return the same without the changes before a moment; every level stays compared."""
        reports = tuple(
            replace(report, findings=tuple(one for one in report.findings if one.time >= time))
            for report in self.reports
        )
        return replace(self, reports=reports)

    def counts(self) -> dict[VerdictState, int]:
        """Return state -> how many cases and figures have it; those that none has are absent."""
        counts: dict[VerdictState, int] = {}
        for verdict in self.verdicts:
            counts[verdict.state] = counts.get(verdict.state, 0) + 1
        return counts
