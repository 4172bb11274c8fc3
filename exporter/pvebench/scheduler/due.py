"""When a case is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from pvebench.model.quiet import QuietHours
from pvebench.plan import LATER_SECONDS, wait_seconds, wander_seconds
from pvebench.store import CaseRecord

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
    soonest = every_seconds - wander_seconds(every_seconds)[0]
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
