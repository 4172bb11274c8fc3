"""The live block: scheduler, progress, this process. Made anew for every scrape."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pvebench import __version__
from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.model.status import State, WorkerStatus
from pvebench.model.traffic import OPERATIONS, Traffic


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
    families.add(catalog.PAGE_INFO, {"url": url}, 1)


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
