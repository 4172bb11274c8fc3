"""What became of messages to people, as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.store import TargetCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What became of the messages for one target.

    Attributes:
        failures: attempts in vain since the start.
        counts: None: there was no message for it yet.
    """

    target: str
    failures: int = 0
    counts: TargetCounts | None = None


def collect_notified(states: Sequence[TargetState], families: Families) -> None:
    """Messages queued, sent and given up, and when one last arrived."""
    for state in states:
        labels, counts = {"target": state.target}, state.counts or TargetCounts()
        families.add(catalog.NOTIFICATIONS_QUEUED, labels, counts.queued)
        families.add(catalog.NOTIFICATIONS_SENT, labels, counts.sent)
        families.add(catalog.NOTIFICATIONS_DROPPED, labels, counts.dropped)
        families.add(catalog.NOTIFICATION_FAILURES, labels, state.failures)
        if counts.last is not None:
            families.add(catalog.NOTIFICATION_SUCCESS, labels, counts.last)
