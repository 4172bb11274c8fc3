"""When a case is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pvebench.store import CaseRecord

FIRST_RETRY_SECONDS: Final = 60.0
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


def next_due(record: CaseRecord | None, *, every_seconds: float) -> Due:
    """Return when a case with this history is due.

    A good run makes it due `every_seconds` after its end. A failed one comes back after
    FIRST_RETRY_SECONDS, doubled with each further failure, but never later than the normal
    interval: a case that cannot work must not take the time of those that can.
    """
    if record is None:
        return Due(None)
    wait = every_seconds
    if record.failures_in_row:
        doublings = min(record.failures_in_row - 1, 20)
        wait = min(every_seconds, FIRST_RETRY_SECONDS * 2**doublings)
    return Due(record.last.finished + timedelta(seconds=wait))
