"""Selection of the due cases of a node, and of the pack that goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pvebench.model.run import Run
from pvebench.model.run_metrics import PASS_TO_FIRST, rates
from pvebench.model.units import back_off
from pvebench.model.week import QuietHours
from pvebench.model.workload import Case, Direction
from pvebench.scheduler.plan import Assignment, Plan, make_plan

if TYPE_CHECKING:
    from pvebench.store.live_results import LiveResults
    from pvebench.store.records import CaseRecord

# --- jitter of the start times over the hours of the day
#
# The load of a host depends on the hour: backups at night, users by day. A daily case would always
# run at the same hour, and after an upgrade by day nothing would be comparable.

LATER_SECONDS: Final = 5 * 3600.0
"""Maximum delay after the interval, and between the runs of a spread burst: less than a quarter of
a day, so that no part of the day is left out."""
SHARE: Final = 0.25
"""Maximum delay as a share of the interval."""
RETURN: Final = 0.9
"""Share of the delay by which later runs are early: every wave has other hours."""
WAVE: Final = 8
"""Cycles per wave: half of them later, half of them earlier."""


def jitter_seconds(every_seconds: float) -> tuple[float, float]:
    """Return how many seconds later, and earlier, than its interval a case may run.

    A case that is due every few hours reaches all hours of the day without jitter.
    """
    if every_seconds <= LATER_SECONDS:
        return 0.0, 0.0
    later = min(LATER_SECONDS, every_seconds * SHARE)
    return later, later * RETURN


def wait_seconds(every_seconds: float, cycles: int) -> float:
    """Return the seconds from a case's last successful run until it is due again.

    Args:
        cycles: number of its cycles; cases with the same number stay together, which saves
            switches of the disk.
    """
    later, earlier = jitter_seconds(every_seconds)
    return every_seconds + (later if cycles % WAVE < WAVE / 2 else -earlier)


# --- due time of a case

FIRST_RETRY_SECONDS: Final = 60.0
AHEAD_SECONDS: Final = 60.0
"""Maximum step back of a synchronized clock between two runs."""
NEVER_RUN_SECONDS: Final = 1e9
"""Lateness of a case that never ran: more than any other."""
BURST_SECONDS: Final = 2e9
"""Lateness after a change of the environment: more than that of a case that never ran."""


def next_due(
    record: CaseRecord | None,
    now: datetime,
    *,
    every_seconds: float,
    repeats: int = 1,
    spread: bool = False,
    hours: QuietHours | None = None,
) -> datetime | None:
    """Return when a case with this history is due; None: it never ran.

    After a successful run it is due `every_seconds` after its end, with jitter of some hours.
    After a failure it is due after FIRST_RETRY_SECONDS, doubled with each further failure, but
    never later than the normal interval: a case that cannot work must not take the time of the
    others. A case whose last run ended in the future is due at once: the clock was ahead then.

    Args:
        repeats: runs per cycle.
        spread: whether to run at the hours that the last run left out.
        hours: quiet hours.
    """
    if record is None:
        return None
    last = record.last.finished
    if (last - now).total_seconds() > AHEAD_SECONDS:
        return now
    if record.failures_in_row:
        failures = record.failures_in_row
        wait = back_off(failures, first=FIRST_RETRY_SECONDS, most=every_seconds)
        return last + timedelta(seconds=wait)
    cycles = sum(count for kind, count in record.outcomes.items() if kind.good) // repeats
    wait = wait_seconds(every_seconds, cycles)
    if spread:
        wait = min(wait, LATER_SECONDS)
    at = last + timedelta(seconds=wait)
    if hours is None:
        return at
    soonest = every_seconds - jitter_seconds(every_seconds)[0]
    return _measurable(at, last + timedelta(seconds=soonest), hours)


@lru_cache(maxsize=50_000)
def _measurable(at: datetime, earliest: datetime, hours: QuietHours) -> datetime:
    """Return the latest moment up to `at` outside of quiet hours, else the end of these."""
    end = hours.end_after(at)
    if end is None:
        return at
    before = at
    while (before := before - timedelta(hours=1)) >= earliest:
        if hours.end_after(before) is None:
            return before
    return end


# --- passes: several runs of a case within a cycle
#
# In the first pass the storage's caches are cold (dm-cache, ARC, an SSD's own), in the last they
# are as warm as the case makes them. So passes are numbered instead of averaged.

Rates = dict[Direction, float]


class Passes:
    """Counter of each case's runs within a cycle. Owned by one worker."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, Rates] = {}

    def begin(self) -> None:
        """Reset the counts for a new cycle."""
        self._counts.clear()
        self._first.clear()

    def count(self, run: Run) -> None:
        """Give a run its pass number, and its rates relative to the first pass.

        A failed run counts too: it may have warmed caches for the next one. It has no rates, so
        nothing is compared with it.
        """
        key = run.case.key
        self._counts[key] += 1
        run.pass_number = self._counts[key]
        reached = rates(run.samples) if run.outcome.good else {}
        if run.pass_number == 1:
            self._first[key] = reached
            return
        run.add(
            PASS_TO_FIRST.sample(rate / first, direction)
            for direction, rate in reached.items()
            if (first := self._first[key].get(direction))
        )


ROUNDS: Final = 3
"""Successful runs of each core case immediately after a change of the node's environment: enough
for a verdict on a single case."""
SPREAD: Final = 4
"""Further runs, spread over the hours of a day like the runs that they are compared with."""
CORE: Final = "core"
"""Tier of the packs with such bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCycle:
    """Next cycle of a pack, or the time until which nothing is due.

    Attributes:
        first: the most overdue case, or the one that is due at `at`.
        plan: None: nothing is due before `at`.
        due: case key -> its due time, of all packs.
    """

    assignment: Assignment
    first: Case
    plan: Plan | None
    at: datetime
    due: Mapping[str, datetime]


class CycleSelector:
    """Selector of a node's next cycle, by the lateness of its cases. Owned by one worker thread.

    Args:
        counted: whether to run whole cycles, not only due cases.
        hours: quiet hours.
    """

    def __init__(
        self,
        results: LiveResults,
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

    def yields_to_core(self, tier: str) -> bool:
        """Return whether a pack of `tier` is interrupted when the environment has changed."""
        tiers = {assignment.pack.tier for assignment in self.assignments}
        return not self._counted and CORE in tiers and tier != CORE

    def choose(self, now: datetime, *, turn: int) -> NextCycle:
        """Return the pack with the most overdue case, and its due cases.

        When cycles are counted the packs take turns, with all cases.

        Args:
            turn: number of earlier cycles. The number of stored runs shuffles all orders but the
                first, which is the one that `pvebench plan` shows.
        """
        ranked = [(entry, self._lateness(entry, now)) for entry in self.assignments]
        if self._counted:
            assignment, late = due = ranked[turn % len(ranked)]
        else:
            assignment, late = max(ranked, key=lambda entry: max(entry[1].values()))
            due = assignment, self._due(assignment, late)
        first = max(assignment.matrix.cases, key=lambda case: late[case.key])
        dues = {
            key: now - timedelta(seconds=min(seconds, NEVER_RUN_SECONDS))
            for _, lateness in ranked
            for key, seconds in lateness.items()
        }
        if not due[1]:
            at = dues[first.key]
            return NextCycle(assignment=assignment, first=first, plan=None, at=at, due=dues)
        runs = self._results.now.totals.runs if turn else 0
        plan = _plan(*due, runs=runs)
        return NextCycle(assignment=assignment, first=first, plan=plan, at=now, due=dues)

    def _due(self, assignment: Assignment, late: dict[str, float]) -> dict[str, float]:
        """Return the cases to run now: due cases, and those that are due soon.

        A cycle takes a while, so its cases become due one after another. If each ran alone, the
        disk would be switched for every one. So cases that are due within the duration of the
        pack (at most half its interval) run together. A failed case never runs early.
        """
        if max(late.values()) < 0:
            return {}
        pack = assignment.pack
        duration = make_plan(assignment.matrix, seed=0, conduct=pack.conduct).seconds
        early = min(duration, pack.every_seconds / 2)
        return {
            case.key: late[case.key]
            for case in assignment.matrix.cases
            if late[case.key] >= (0 if self._has_failed(case) else -early)
        }

    def _lateness(self, assignment: Assignment, now: datetime) -> dict[str, float]:
        late, pack = {}, assignment.pack
        # Read from the database, so a restart of pvebench does not change it; None: no burst.
        period = self._results.period_runs(self._node) if pack.tier == CORE else None
        for case in assignment.matrix.cases:
            rounds = None if period is None else period.get(case.key, 0)
            due = next_due(
                self._results.now.cases.get(case.key),
                now,
                every_seconds=pack.every_seconds,
                repeats=pack.conduct.repeats,
                spread=rounds is not None and rounds < ROUNDS + SPREAD,
                hours=self._hours,
            )
            late[case.key] = NEVER_RUN_SECONDS if due is None else (now - due).total_seconds()
            if rounds is not None and rounds < ROUNDS and not self._has_failed(case):
                late[case.key] = BURST_SECONDS
        return late

    def _has_failed(self, case: Case) -> bool:
        record = self._results.now.cases.get(case.key)
        return record is not None and record.failures_in_row > 0


def _plan(assignment: Assignment, due: dict[str, float], *, runs: int) -> Plan:
    pack = assignment.pack
    cases = tuple(case for case in assignment.matrix.cases if case.key in due)
    return make_plan(
        replace(assignment.matrix, cases=cases),
        seed=f"{pack.seed}/{runs}" if runs else pack.seed,
        conduct=pack.conduct,
        overdue={key: seconds for key, seconds in due.items() if seconds < NEVER_RUN_SECONDS},
    )
