"""What became of messages to people, as metrics."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pvebench import __version__
from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.model.ports import OPERATIONS, Traffic
from pvebench.model.status import State, WorkerStatus
from pvebench.store import TargetCounts

# --- The live block: scheduler, progress, this process. Made anew for every scrape.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigState:
    """Which settings are in force.

    Attributes:
        digest: of the settings' and packs' files when they were read.
        loaded: when that was, UTC.
        successful: False after a change that was refused.
    """

    digest: str
    packs: tuple[str, ...]
    loaded: datetime
    successful: bool


def collect_config(state: ConfigState, families: Families) -> None:
    """Which settings are in force, and whether those on disk are."""
    labels = {"digest": state.digest, "packs": ",".join(state.packs)}
    families.add(catalog.CONFIG_INFO, labels, 1)
    families.add(catalog.CONFIG_RELOAD_SUCCESS, {}, state.successful)
    families.add(catalog.CONFIG_RELOAD_TIMESTAMP, {}, state.loaded.timestamp())


def collect_build(families: Families) -> None:
    """Which pvebench this is."""
    labels = {"version": __version__, "python_version": platform.python_version()}
    families.add(catalog.BUILD_INFO, labels, 1)


def collect_address(url: str, families: Families) -> None:
    """Where people reach the page."""
    families.add(catalog.WEB_INFO, {"url": url}, 1)


def collect_scheduler(statuses: Sequence[WorkerStatus], families: Families) -> None:
    """What each worker does, and how far its cycle is."""
    for status in statuses:
        labels = {"node": status.node}
        for state in State:
            families.add(
                catalog.SCHEDULER_STATE, {**labels, "state": str(state)}, state is status.state
            )
        families.add(catalog.SCHEDULER_PROGRESS, labels, status.progressed.timestamp())
        if status.case is not None:
            families.add(catalog.CURRENT_RUN, {**labels, "title": status.case.slug}, 1)
        if status.next_due is not None:
            families.add(catalog.NEXT_RUN, labels, status.next_due.timestamp())
        if status.hold is not None:
            families.add(catalog.HOLD, {**labels, "reason": str(status.hold.kind)}, 1)
        for fact, version in status.pending:
            families.add(catalog.PENDING_INFO, {**labels, "fact": fact, "version": version}, 1)
        _collect_cycle(status, labels, families)


def _collect_cycle(status: WorkerStatus, labels: dict[str, str], families: Families) -> None:
    cycle = status.cycle
    if cycle is None:
        return
    families.add(catalog.QUEUE_LENGTH, labels, cycle.planned - cycle.done)
    families.add(catalog.CYCLE_PROGRESS, labels, cycle.done / max(1, cycle.planned))
    families.add(catalog.CYCLE_START, labels, cycle.started.timestamp())
    families.add(catalog.CYCLE_EXPECTED_END, labels, cycle.expected_end.timestamp())


def collect_api(traffic: Mapping[str, Traffic], families: Families) -> None:
    """How much each node's API was asked, and how often in vain."""
    for node, counts in traffic.items():
        families.add(catalog.API_TASKS, {"node": node}, counts.tasks)
        for operation in OPERATIONS:
            labels = {"node": node, "operation": operation}
            families.add(catalog.API_REQUESTS, labels, counts.requests[operation])
            families.add(catalog.API_FAILURES, labels, counts.failures[operation])


def collect_database(path: Path, families: Families) -> None:
    """Size of the results database."""
    families.add(catalog.DATABASE_SIZE, {}, path.stat().st_size)


# --- Write budgets and free space of storages.


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageState:
    """One storage, seen from one node.

    Attributes:
        type: `dir`, `lvmthin` …; shared: whether several nodes write to the same disks.
        written_bytes: from this node in this calendar month (UTC).
        budget_bytes: that may be written a month; None: no limit.
        counted_bytes: written this month that counts against the budget.
        free_bytes: when last looked at; None: not looked at yet.
        floor_bytes: that must stay free; None: no limit.
    """

    node: str
    storage: str
    type: str
    shared: bool = False
    written_bytes: int
    budget_bytes: int | None = None
    counted_bytes: int = 0
    free_bytes: int | None = None
    floor_bytes: int | None = None


def collect_storages(states: Iterable[StorageState], families: Families) -> None:
    """What is written and free, beside the limits."""
    for state in states:
        labels = {"node": state.node, "storage": state.storage}
        values = (
            (catalog.MONTH_WRITTEN, state.written_bytes),
            (catalog.WRITE_BUDGET, state.budget_bytes),
            (catalog.STORAGE_FREE, state.free_bytes),
            (catalog.STORAGE_FLOOR, state.floor_bytes),
        )
        info = {**labels, "type": state.type, "shared": str(state.shared).lower()}
        families.add(catalog.STORAGE_INFO, info, 1)
        if state.budget_bytes:
            families.add(catalog.BUDGET_USED, labels, state.counted_bytes / state.budget_bytes)
        for metric, value in values:
            if value is not None:
                families.add(metric, labels, value)


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
        labels, counts = {"receiver": state.target}, state.counts or TargetCounts()
        families.add(catalog.NOTIFICATIONS_QUEUED, labels, counts.queued)
        families.add(catalog.NOTIFICATIONS_SENT, labels, counts.sent)
        families.add(catalog.NOTIFICATIONS_DROPPED, labels, counts.dropped)
        families.add(catalog.NOTIFICATION_FAILURES, labels, state.failures)
        if counts.last is not None:
            families.add(catalog.NOTIFICATION_SUCCESS, labels, counts.last)
