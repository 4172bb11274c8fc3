"""Bytes that measuring writes, and intervals that keep them within the write budgets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pvebench.config import Pack
from pvebench.model.storage_use import NodeStorage, Wear, WriteCost
from pvebench.model.units import DAY, show_interval
from pvebench.model.workload import Case
from pvebench.scheduler.plan import Assignment, Plan, make_plan

_STEPS: Final = ((1800.0, 60.0), (7200.0, 300.0), (math.inf, 3600.0))
"""(interval up to, step) in seconds: a longer interval is a multiple of the step, so that it rarely
changes with the measured bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBudgets:
    """Write budgets of the storages.

    Attributes:
        limits: (node, storage) -> maximum bytes in 24 hours.
        shared: storages whose limit is for all nodes together.
        targets: (node, storage) -> `Operations.targets` of its volumes.
    """

    limits: Mapping[NodeStorage, int]
    shared: frozenset[str] = frozenset()
    targets: Mapping[NodeStorage, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def place(self, node: str, storage: str) -> NodeStorage:
        """Return the place whose writes count together."""
        return ("" if storage in self.shared else node, storage)

    def copies(self, case: Case) -> dict[str, int]:
        """Return storage -> maximum bytes that the operation of a case writes to it."""
        node, storage = case.scenario.node, case.scenario.storage
        into = self.targets.get((node, storage), {}).get(case.workload.during, (storage,))
        size = case.copied_bytes // len(into)
        return dict.fromkeys(into, size) if size else {}


@dataclass(frozen=True, slots=True)
class PacedPacks:
    """Packs with the intervals that keep to the budgets, and what they write."""

    assignments: list[Assignment]
    costs: tuple[WriteCost, ...]


@dataclass(frozen=True, slots=True)
class _PackWrites:
    """Bytes of one cycle of a pack on one storage, and the seconds between two cycles."""

    place: NodeStorage
    cycle_bytes: float
    seconds: float
    measured: bool


def pace(
    assignments: Sequence[Assignment],
    budgets: WriteBudgets,
    per_run: Mapping[NodeStorage, float] | None = None,
    wear: Mapping[NodeStorage, Wear | str] | None = None,
) -> PacedPacks:
    """Return the packs with the shortest intervals that keep to the budgets, and their cost.

    Args:
        per_run: (node, storage) -> mean bytes that a run wrote; without it, the upper limit of
            the plan counts.
        wear: (node, storage) -> wear of its drives, or why it is unknown.
    """
    planned = [_writes(entry, per_run or {}, budgets) for entry in assignments]
    day: dict[NodeStorage, float] = {}
    for one in (write for writes in planned for write in writes):
        group = budgets.place(*one.place)
        day[group] = day.get(group, 0.0) + one.cycle_bytes * DAY / one.seconds
    excess = {
        place: day[budgets.place(*place)] / limit
        for place, limit in budgets.limits.items()
        if budgets.place(*place) in day
    }
    paced = [
        _slowed(entry, writes, excess) for entry, writes in zip(assignments, planned, strict=True)
    ]
    costs = _costs(assignments, paced, planned, budgets)
    wears = wear or {}
    return PacedPacks(
        paced, tuple(replace(cost, wear=wears.get((cost.node, cost.storage), "")) for cost in costs)
    )


def _writes(
    assignment: Assignment, per_run: Mapping[NodeStorage, float], budgets: WriteBudgets
) -> list[_PackWrites]:
    """Return the writes of a pack: copies of operations are written to their targets.

    The bytes of runs are those of the guest, without the copies.
    """
    pack, node = assignment.pack, assignment.node
    seconds = max(pack.every_seconds, _plan(assignment).seconds)
    cycles: dict[str, float] = {}
    for storage in sorted({case.scenario.storage for case in assignment.matrix.cases}):
        plan = _plan(_on_storage(assignment, storage))
        run_bytes = per_run.get((node, storage))
        own = plan.bytes_written - sum(case.copied_bytes for case in plan.cases)
        cycle = own if run_bytes is None else run_bytes * len(plan.cases)
        cycles[storage] = cycles.get(storage, 0.0) + cycle
        for name, size in (copy for case in plan.cases for copy in budgets.copies(case).items()):
            cycles[name] = cycles.get(name, 0.0) + size
    return [
        _PackWrites((node, name), cycle, seconds, (node, name) in per_run)
        for name, cycle in cycles.items()
    ]


def _plan(assignment: Assignment) -> Plan:
    pack = assignment.pack
    return make_plan(assignment.matrix, seed=pack.seed, conduct=pack.conduct)


def _on_storage(assignment: Assignment, storage: str) -> Assignment:
    matrix = assignment.matrix
    cases = tuple(case for case in matrix.cases if case.scenario.storage == storage)
    return replace(assignment, matrix=replace(matrix, cases=cases))


def _slowed(
    assignment: Assignment, writes: Iterable[_PackWrites], excess: Mapping[NodeStorage, float]
) -> Assignment:
    """Return the pack with a longer interval if a storage would exceed its budget."""
    needed = [
        (excess.get(write.place, 0.0), write.seconds) for write in writes if write.cycle_bytes
    ]
    factor, seconds = max(needed, default=(0.0, 0.0))
    if factor <= 1:
        return assignment
    every = factor * seconds
    step = next(step for limit, step in _STEPS if every <= limit)
    every = math.ceil(every / step) * step
    return replace(assignment, pack=replace(assignment.pack, every_seconds=every))


def _costs(
    asked: Sequence[Assignment],
    paced: Sequence[Assignment],
    planned: Sequence[Sequence[_PackWrites]],
    budgets: WriteBudgets,
) -> Iterable[WriteCost]:
    """Yield the cost of each storage on each node."""
    places = dict.fromkeys(write.place for writes in planned for write in writes)
    for place in places:
        own = [
            (before.pack, after.pack, write)
            for before, after, writes in zip(asked, paced, planned, strict=True)
            for write in writes
            if write.place == place
        ]
        yield WriteCost(
            node=place[0],
            storage=place[1],
            cycle_bytes=sum(one.cycle_bytes for *_, one in own),
            day_bytes=sum(
                one.cycle_bytes * DAY / max(after.every_seconds, one.seconds)
                for _, after, one in own
            ),
            measured=all(one.measured for *_, one in own),
            budget_bytes=budgets.limits.get(place),
            longer=tuple(_longer(before, after) for before, after, _ in own if before != after),
        )


def _longer(before: Pack, after: Pack) -> str:
    intervals = show_interval(after.every_seconds), show_interval(before.every_seconds)
    return f"{before.name} every {intervals[0]} instead of {intervals[1]}"
