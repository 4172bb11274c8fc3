"""Collectors that run for every scrape: scheduler, API, storages, notifications, this process."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pvebench import __version__
from pvebench.metrics import state_metrics
from pvebench.metrics.sample_lines import Families
from pvebench.model.definition import Definition, workload_text
from pvebench.model.figure import Metric
from pvebench.model.ports import OPERATIONS, Traffic
from pvebench.model.status import ConfigState, State, StorageState, WorkerStatus
from pvebench.model.workload import Case
from pvebench.model.write_cost import Wear, WriteCost
from pvebench.store.outbox import ReceiverCounts

# --- settings, scheduler, API, database ---


def collect_config(state: ConfigState, families: Families) -> None:
    """Add the active settings and the success of the last reload."""
    labels = {"digest": state.digest, "packs": ",".join(state.packs)}
    families.add(state_metrics.CONFIG_INFO, labels, 1)
    families.add(state_metrics.CONFIG_RELOAD_SUCCESS, {}, state.successful)
    families.add(state_metrics.CONFIG_RELOAD_TIMESTAMP, {}, state.loaded.timestamp())


def collect_build(families: Families) -> None:
    """Add the versions of pvebench and Python."""
    labels = {"version": __version__, "python_version": platform.python_version()}
    families.add(state_metrics.BUILD_INFO, labels, 1)


def collect_address(url: str, families: Families) -> None:
    """Add the address of the web UI."""
    families.add(state_metrics.WEB_INFO, {"url": url}, 1)


def collect_scheduler(statuses: Sequence[WorkerStatus], families: Families) -> None:
    """Add the state of each worker, its current and next case, and the progress of its cycle."""
    now = datetime.now(UTC)
    for status in statuses:
        labels = {"node": status.node}
        for state in State:
            families.add(
                state_metrics.SCHEDULER_STATE,
                {**labels, "state": str(state)},
                state is status.state,
            )
        families.add(state_metrics.SCHEDULER_PROGRESS, labels, status.progressed.timestamp())
        if status.case is not None:
            families.add(state_metrics.CURRENT_RUN, labels | _named(status.case), 1)
        for case, start in list(zip(status.upcoming, status.expected_starts(now), strict=True))[:1]:
            families.add(state_metrics.NEXT_RUN, labels | _named(case), start.timestamp())
        if status.hold is not None:
            families.add(state_metrics.HOLD, {**labels, "reason": str(status.hold.kind)}, 1)
        for fact, version in status.pending:
            families.add(
                state_metrics.PENDING_INFO, {**labels, "fact": fact, "version": version}, 1
            )
        _collect_cycle(status, labels, families)


def _named(case: Case) -> dict[str, str]:
    """Return a case as people read it; its scenario and workload are on other metrics."""
    return {"storage": case.scenario.storage, "title": workload_text(Definition.of(case))}


def _collect_cycle(status: WorkerStatus, labels: dict[str, str], families: Families) -> None:
    cycle = status.cycle
    if cycle is None:
        return
    families.add(state_metrics.QUEUE_LENGTH, labels, cycle.planned - cycle.done)
    families.add(state_metrics.CYCLE_PROGRESS, labels, cycle.done / max(1, cycle.planned))
    families.add(state_metrics.CYCLE_START, labels, cycle.started.timestamp())
    families.add(state_metrics.CYCLE_EXPECTED_END, labels, cycle.expected_end.timestamp())


def collect_api(traffic: Mapping[str, Traffic], families: Families) -> None:
    """Add the requests, failures and tasks of each node's API."""
    for node, counts in traffic.items():
        families.add(state_metrics.API_TASKS, {"node": node}, counts.tasks)
        for operation in OPERATIONS:
            labels = {"node": node, "operation": operation}
            families.add(state_metrics.API_REQUESTS, labels, counts.requests[operation])
            families.add(state_metrics.API_FAILURES, labels, counts.failures[operation])


def collect_database(path: Path, families: Families) -> None:
    """Add the size of the results database."""
    families.add(state_metrics.DATABASE_SIZE, {}, path.stat().st_size)


# --- storages: write budgets and free space ---


def collect_storages(states: Iterable[StorageState], families: Families) -> None:
    """Add the written and free bytes and their limits."""
    for state in states:
        labels = {"node": state.node, "storage": state.storage}
        values = (
            (state_metrics.DAY_WRITTEN, state.written_bytes),
            *_planned(state.cost),
            (state_metrics.WRITE_BUDGET, state.budget_bytes),
            (state_metrics.STORAGE_FREE, state.free_bytes),
            (state_metrics.STORAGE_FLOOR, state.floor_bytes),
        )
        info = {**labels, "type": state.type, "shared": str(state.shared).lower()}
        families.add(state_metrics.STORAGE_INFO, info, 1)
        if state.budget_bytes:
            families.add(
                state_metrics.BUDGET_USED, labels, state.counted_bytes / state.budget_bytes
            )
        for metric, value in values:
            if value is not None:
                families.add(metric, labels, value)


def _planned(cost: WriteCost | None) -> Iterator[tuple[Metric, float | None]]:
    if cost is not None:
        yield state_metrics.DAY_PLANNED, cost.day_bytes
        yield state_metrics.DRIVE_WEAR, cost.wear.used if isinstance(cost.wear, Wear) else None
        yield state_metrics.YEAR_WEAR, cost.year_wear


def collect_notified(receivers: Mapping[str, ReceiverCounts], families: Families) -> None:
    """Add the queued, sent and dropped notifications and the time of the last delivery."""
    for name, counts in receivers.items():
        labels = {"receiver": name}
        families.add(state_metrics.NOTIFICATIONS_QUEUED, labels, counts.queued)
        families.add(state_metrics.NOTIFICATIONS_SENT, labels, counts.sent)
        families.add(state_metrics.NOTIFICATIONS_DROPPED, labels, counts.dropped)
        families.add(state_metrics.NOTIFICATION_FAILURES, labels, counts.failures)
        if counts.last is not None:
            families.add(state_metrics.NOTIFICATION_SUCCESS, labels, counts.last)
