"""What is due on a node, and which of its packs goes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pvebench.model.quiet import QuietHours
from pvebench.model.workload import Case
from pvebench.plan import Assignment, Plan, make_plan
from pvebench.results import Results
from pvebench.scheduler.due import BURST_SECONDS, NEVER_RUN_SECONDS, next_due

ROUNDS: Final = 3
"""Good runs of each core case at once after a change of the node's environment: enough for a case
to be judged alone."""
SPREAD: Final = 4
"""Further ones, one after another over the hours of a day: what they are compared with was
measured at all of them."""
CORE: Final = "core"
"""Tier of the packs that are run so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to do next: a pack's plan, or to wait.

    Attributes:
        plan: None: nothing is due before `at`.
    """

    assignment: Assignment
    plan: Plan | None
    at: datetime


class Agenda:
    """The packs of a node and how late each of their cases is. Owned by one worker thread.

    Args:
        counted: whether whole cycles were asked for, rather than what is due.
        hours: in which nothing is measured.
    """

    def __init__(
        self,
        results: Results,
        node: str,
        assignments: Sequence[Assignment],
        *,
        counted: bool,
        hours: QuietHours | None = None,
    ) -> None:
        self._results, self._hours = results, hours
        self._counted = counted
        self._node = node
        self.assignments = tuple(assignments)

    def gives_way(self, tier: str) -> bool:
        """Whether a pack of `tier` makes room when the environment has changed."""
        tiers = {assignment.pack.tier for assignment in self.assignments}
        return not self._counted and CORE in tiers and tier != CORE

    def choose(self, now: datetime, *, turn: int, uid: str) -> Choice:
        """Return the pack whose most overdue case is the latest, and what of it is due.

        When cycles are counted the packs take turns, each in full.

        Args:
            turn: cycles that were made before.
            uid: of the cycle that would begin; shuffles all orders but the first, which is the
                one that `pvebench plan` shows.
        """
        ranked = [(entry, self._lateness(entry, now)) for entry in self.assignments]
        if self._counted:
            assignment, late = due = ranked[turn % len(ranked)]
        else:
            assignment, late = max(ranked, key=lambda entry: max(entry[1].values()))
            due = assignment, self._due(assignment, late)
        if not due[1]:
            return Choice(
                assignment=assignment, plan=None, at=now - timedelta(seconds=max(late.values()))
            )
        return Choice(assignment=assignment, plan=_plan(*due, uid=uid if turn else ""), at=now)

    def _due(self, assignment: Assignment, late: dict[str, float]) -> dict[str, float]:
        """Return the cases to run now: those that are due, and with them those that soon will be.

        A cycle takes a while, so its cases fall due one after another. Were each run alone, the
        disk would be switched for every single one; within the time that the pack itself takes
        (and half its interval at most) they go together. A failed case is never pulled forward.
        """
        if max(late.values()) < 0:
            return {}
        pack = assignment.pack
        whole = make_plan(assignment.matrix, seed=0, conduct=pack.conduct).seconds
        early = min(whole, pack.every_seconds / 2)
        return {
            case.key: late[case.key]
            for case in assignment.matrix.cases
            if late[case.key] >= (0 if self._has_failed(case) else -early)
        }

    def _lateness(self, assignment: Assignment, now: datetime) -> dict[str, float]:
        late, pack = {}, assignment.pack
        for case in assignment.matrix.cases:
            rounds = self._burst_rounds(pack.tier, case)
            due = next_due(
                self._results.case(case.key),
                now,
                every_seconds=pack.every_seconds,
                repeats=pack.conduct.repeats,
                spread=rounds is not None and rounds < ROUNDS + SPREAD,
                hours=self._hours,
            )
            late[case.key] = due.late_seconds(now)
            if rounds is not None and rounds < ROUNDS and not self._has_failed(case):
                late[case.key] = BURST_SECONDS
        return late

    def _burst_rounds(self, tier: str, case: Case) -> int | None:
        """Return the good runs of a case in the newest episode; None: it makes nothing due.

        A restart forgets nothing of it.
        """
        rounds = self._results.rounds(self._node) if tier == CORE else None
        return None if rounds is None else rounds.get(case.key, 0)

    def _has_failed(self, case: Case) -> bool:
        record = self._results.case(case.key)
        return record is not None and record.failures_in_row > 0


def _plan(assignment: Assignment, due: dict[str, float], *, uid: str) -> Plan:
    pack = assignment.pack
    cases = tuple(case for case in assignment.matrix.cases if case.key in due)
    return make_plan(
        replace(assignment.matrix, cases=cases),
        seed=f"{pack.seed}/{uid}" if uid else pack.seed,
        conduct=pack.conduct,
        overdue={key: seconds for key, seconds in due.items() if seconds < NEVER_RUN_SECONDS},
    )
