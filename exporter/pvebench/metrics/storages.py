"""Write budgets and free space of storages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pvebench.metrics import catalog
from pvebench.metrics.families import Families


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
