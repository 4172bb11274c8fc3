"""Which guards look after a node's cases, put together from the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pvebench.config import Settings
from pvebench.drivers import driver_of
from pvebench.drivers.driver import MeasuredStorage
from pvebench.metrics.storages import StorageState
from pvebench.model.guard import Guard
from pvebench.model.ports import Clock, Site
from pvebench.model.workload import Case
from pvebench.scheduler.guards import BudgetGuard, PauseGuard, QuietGuard, TurnGuard, Turns
from pvebench.store import StateDirectory, Store
from pvebench.workloads import ROOMS


@dataclass(frozen=True, slots=True)
class Manners:
    """All guards of an instance; `guards` makes those of one node's worker."""

    settings: Settings
    state: StateDirectory
    store: Store
    clock: Clock
    turns: Turns
    free: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """node -> storage -> bytes that were free when last looked at."""

    def guards(self, site: Site) -> Sequence[Guard]:
        """Return the guards of `site`, the cheapest first; turns last, for they are kept."""
        found: list[Guard] = [PauseGuard(self.state.pause_reason)]
        hours = self.settings.quiet()
        if hours is not None:
            found.append(QuietGuard(hours, self.clock))
        storages = self._storages(site.node)
        limits = {name: one.budget_bytes for name, one in storages.items() if one.budget_bytes}
        if limits:
            written = partial(self._counted, site.node)
            found.append(BudgetGuard(limits, written, expected_bytes))
        self.free[site.node] = site.free
        found += site.guards
        shared = frozenset(name for name, one in storages.items() if one.shared)
        return [*found, TurnGuard(self.turns, shared)] if shared else found

    def _storages(self, node: str) -> Mapping[str, MeasuredStorage]:
        return driver_of(self.settings.driver).storages(self.settings, node)

    def _counted(self, node: str, storage: str) -> int:
        """Return what counts against the budget: of a shared storage, what any node wrote."""
        alone = not self._storages(node)[storage].shared
        return self.store.written_bytes(storage, self.clock.now(), node=node if alone else None)

    def storages(self) -> list[StorageState]:
        """Return what is to be said of each storage on each node."""
        now = self.clock.now()
        return [
            StorageState(
                node=node,
                storage=name,
                type=one.holds.name,
                shared=one.shared,
                budget_bytes=one.budget_bytes,
                counted_bytes=self._counted(node, name) if one.budget_bytes else 0,
                floor_bytes=one.floor_bytes,
                free_bytes=self.free.get(node, {}).get(name),
                written_bytes=self.store.written_bytes(name, now, node=node),
            )
            for node in self.settings.nodes_in_force()
            for name, one in self._storages(node).items()
        ]


def expected_bytes(case: Case) -> int:
    """Return the most that a run of `case` writes, a fill of its volume included."""
    scenario = case.scenario
    fill = scenario.layout.file_bytes or scenario.volume_bytes
    estimate = ROOMS[case.workload.tool].estimate(case.workload, scenario.volume_bytes)
    return fill + estimate.bytes_written
