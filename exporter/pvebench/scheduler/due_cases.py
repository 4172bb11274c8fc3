"""What is due on a node, and which of its packs goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from pvebench.model.run import Run, Sample, Unit, rates
from pvebench.model.week import QuietHours
from pvebench.model.workload import Case, Direction
from pvebench.scheduler.case_matrix import Assignment
from pvebench.scheduler.order import Plan, make_plan
from pvebench.store import CaseRecord
from pvebench.store.current import Results

# --- How long after a run the next one is due: the cases wander over the hours of the day.
#
# A host has hours of its own: backups at night, users by day. What is due every day would meet the
# same hour for ever, and after an upgrade by day there would be nothing to compare it with.

LATER_SECONDS: Final = 5 * 3600.0
"""How much later than its interval a case runs, or between the rounds of a burst that is spread:
less than a quarter of a day, so that none is left out."""
SHARE: Final = 0.25
"""The same as share of the interval, at most."""
RETURN: Final = 0.9
"""Share of it by which runs come earlier afterwards: the hours are others with every turn."""
WAVE: Final = 8
"""Cycles after which it begins anew: half of them later, half of them earlier."""


def jitter_seconds(every_seconds: float) -> tuple[float, float]:
    """Return how much later, and how much earlier, a case may run than its interval says.

    What is due every few hours comes to all hours of the day by itself.
    """
    if every_seconds <= LATER_SECONDS:
        return 0.0, 0.0
    later = min(LATER_SECONDS, every_seconds * SHARE)
    return later, later * RETURN


def wait_seconds(every_seconds: float, cycles: int) -> float:
    """Return how long after its last good run a case is due again.

    Args:
        cycles: that it has had; cases with as many stay together, so that nothing is switched
            for one alone.
    """
    later, earlier = jitter_seconds(every_seconds)
    return every_seconds + (later if cycles % WAVE < WAVE / 2 else -earlier)


# --- When a case is due. Pure.

FIRST_RETRY_SECONDS: Final = 60.0
AHEAD_SECONDS: Final = 60.0
"""By so much a clock that is kept in step may be set back between two runs."""
NEVER_RUN_SECONDS: Final = 1e9
"""How overdue a case counts that was never tried: more than any other."""
BURST_SECONDS: Final = 2e9
"""How overdue a case counts after a change of the environment: more than one never tried."""


@dataclass(frozen=True, slots=True)
class Due:
    """When a case may run next, and by how much it is late at a given moment."""

    at: datetime | None

    def late_seconds(self, now: datetime) -> float:
        """Return how late it is; negative when it is not due yet."""
        return NEVER_RUN_SECONDS if self.at is None else (now - self.at).total_seconds()


def next_due(
    record: CaseRecord | None,
    now: datetime,
    *,
    every_seconds: float,
    repeats: int = 1,
    spread: bool = False,
    hours: QuietHours | None = None,
) -> Due:
    """Return when a case with this history is due.

    A good run makes it due `every_seconds` after its end, some hours more or less: it wanders
    over the day. A failed one comes back after FIRST_RETRY_SECONDS, doubled with each further
    failure, but never later than the normal interval: a case that cannot work must not take the
    time of those that can. One whose last run ended in the future is due at once: the clock was
    ahead when it ran, and nobody must wait until that day.

    Args:
        repeats: runs that a cycle makes of it.
        spread: whether it shall come back at the hours that the last run left out.
        hours: in which nothing is measured.
    """
    if record is None:
        return Due(None)
    last = record.last.finished
    if (last - now).total_seconds() > AHEAD_SECONDS:
        return Due(now)
    if record.failures_in_row:
        doublings = min(record.failures_in_row - 1, 20)
        wait = min(every_seconds, FIRST_RETRY_SECONDS * 2**doublings)
        return Due(last + timedelta(seconds=wait))
    cycles = sum(count for kind, count in record.outcomes.items() if kind.good) // repeats
    wait = wait_seconds(every_seconds, cycles)
    if spread:
        wait = min(wait, LATER_SECONDS)
    at = last + timedelta(seconds=wait)
    if hours is None:
        return Due(at)
    soonest = every_seconds - jitter_seconds(every_seconds)[0]
    return Due(_measurable(at, last + timedelta(seconds=soonest), hours))


@lru_cache(maxsize=50_000)
def _measurable(at: datetime, earliest: datetime, hours: QuietHours) -> datetime:
    """Return the moment nearest before `at` outside of quiet hours, else when they end."""
    end = hours.end_after(at)
    if end is None:
        return at
    before = at
    while (before := before - timedelta(hours=1)) >= earliest:
        if hours.end_after(before) is None:
            return before
    return end


# --- Passes: a case that runs several times in a cycle, and how the later compare with the first.
#
# The first pass finds caches of the storage cold (dm-cache, ARC, an SSD's own), the last finds
# them as warm as the case itself makes them. So they are kept apart instead of averaged.

Rates = dict[Direction, float]


class Passes:
    """Counts the runs of each case within a cycle. Owned by one worker."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._first: dict[str, Rates] = {}

    def begin(self) -> None:
        """Start counting anew: another cycle begins."""
        self._made.clear()
        self._first.clear()

    def counted(self, run: Run) -> Run:
        """Return a run that was made with its pass number, and its rates over the first pass's.

        A failed run counts too: it may have warmed what the next one finds. Its numbers are
        none, so nothing is compared with them.
        """
        key = run.case.key
        self._made[key] += 1
        number = self._made[key]
        reached = rates(run.samples) if run.outcome.good else {}
        if number == 1:
            self._first[key] = reached
            return replace(run, pass_number=number)
        ratios = tuple(
            Sample("pass_to_first", direction, rate / first, Unit.RATIO)
            for direction, rate in reached.items()
            if (first := self._first[key].get(direction))
        )
        return replace(run, pass_number=number, samples=run.samples + ratios)


ROUNDS: Final = 3
"""Good runs of each core case at once after a change of the node's environment: enough for a case
to be judged alone."""
SPREAD: Final = 4
"""Further ones, one after another over the hours of a day: what they are compared with was
measured at all of them."""
CORE: Final = "core"
"""Tier of the packs that are run so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCycle:
    """What to do next: a pack's plan, or to wait.

    Attributes:
        plan: None: nothing is due before `at`.
    """

    assignment: Assignment
    plan: Plan | None
    at: datetime


class CycleSelector:
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

    def choose(self, now: datetime, *, turn: int, uid: str) -> NextCycle:
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
            return NextCycle(
                assignment=assignment, plan=None, at=now - timedelta(seconds=max(late.values()))
            )
        return NextCycle(assignment=assignment, plan=_plan(*due, uid=uid if turn else ""), at=now)

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
