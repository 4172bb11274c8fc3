"""Which guards look after a node's cases, put together from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from pvebench.config import Settings
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
        if self.settings.driver != "proxmox" or self.settings.proxmox is None:
            return found
        given = self.settings.proxmox
        cluster = import_module("pvebench.cli.cluster")
        limits = {
            name: entry.write_budget for name, entry in given.storages.items() if entry.write_budget
        }
        found.append(BudgetGuard(limits, self._written(site.node), expected_bytes))
        of_cluster, free = cluster.cluster_guards(self.settings, site, self.clock)
        self.free[site.node] = free
        shared = frozenset(name for name, entry in given.storages.items() if entry.is_shared)
        return [*found, *of_cluster, TurnGuard(self.turns, shared)]

    def _written(self, node: str) -> Callable[[str], int]:
        def written(storage: str) -> int:
            given = self.settings.proxmox
            alone = given is None or not given.storages[storage].is_shared
            return self.store.written_bytes(
                storage, self.clock.now(), node=node if alone else None
            )  # fmt: skip

        return written

    def storages(self) -> list[StorageState]:
        """Return what is to be said of each storage on each node."""
        given, now = self.settings.proxmox, self.clock.now()
        if self.settings.driver != "proxmox" or given is None:
            node = self.settings.node
            return [
                StorageState(
                    node=node, storage=name, type=entry.kind,
                    written_bytes=self.store.written_bytes(name, now, node=node),
                )
                for name, entry in self.settings.storages_in_force().items()
            ]  # fmt: skip
        return [
            StorageState(
                node=node, storage=name, type=entry.type, shared=entry.is_shared,
                budget_bytes=entry.write_budget, counted_bytes=self._written(node)(name),
                floor_bytes=entry.free_floor, free_bytes=self.free.get(node, {}).get(name),
                written_bytes=self.store.written_bytes(name, now, node=node),
            )
            for node in self.settings.nodes_in_force()
            for name, entry in given.storages.items()
            if not entry.nodes or node in entry.nodes
        ]  # fmt: skip


def expected_bytes(case: Case) -> int:
    """Return the most that a run of `case` writes, a fill of its volume included."""
    scenario = case.scenario
    fill = scenario.layout.file_bytes or scenario.volume_bytes
    estimate = ROOMS[case.workload.tool].estimate(case.workload, scenario.volume_bytes)
    return fill + estimate.bytes_written
