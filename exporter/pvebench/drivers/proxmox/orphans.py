"""Orphans of any pvebench on a cluster: VMs of the pool, containers of the nodes."""

from __future__ import annotations

import structlog

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import Leftover
from pvebench.drivers.proxmox.api.connection import Connection
from pvebench.drivers.proxmox.cluster_access import connect, ssh_access
from pvebench.drivers.proxmox.containers.container import (
    OrphanContainer,
    find_containers,
    remove_container,
)
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.settings import ClusterSettings, nodes_of, section
from pvebench.drivers.proxmox.vm.leftovers import (
    OrphanVm,
    choose,
    find_orphans,
    journalled,
    remove_orphan,
)
from pvebench.errors import PvebenchError
from pvebench.model.ports import Journal

log = structlog.get_logger()


class ClusterSweeper:
    """`drivers.driver.Sweeper` of the pool's VMs and the nodes' containers."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._pool = section(settings).pool
        self._vms: list[OrphanVm] = []
        self._containers: dict[int, OrphanContainer] = {}

    def find(self, journal: Journal) -> list[Leftover]:
        """Return the orphans of any pvebench; this instance must not be running.

        Containers are listed only on nodes of the settings with SSH access.
        """
        self._vms = find_orphans(self._connect(), pool=self._pool, known=journalled(journal))
        self._containers = {}
        for node in nodes_of(self._settings):
            with ssh_access(section(self._settings), node) as on_node:
                containers = _containers(on_node, node, journal) if on_node else []
            self._containers |= {container.vmid: container for container in containers}
        return [*self._vms, *self._containers.values()]

    def remove(self, journal: Journal, number: int) -> str:
        container = self._containers.get(number)
        if container is not None:
            with ssh_access(section(self._settings), container.node) as on_node:
                if on_node is not None:
                    return remove_container(on_node, container, journal)
        orphan = choose(self._vms, number)
        return remove_orphan(
            self._connect(), orphan, pool=self._pool, clock=SystemClock(), journal=journal
        )

    def _connect(self) -> Connection:
        return connect(section(self._settings), nodes_of(self._settings)[0], SystemClock())


def _containers(on_node: NodeSsh, node: str, journal: Journal) -> list[OrphanContainer]:
    """Return the containers of a node; none if it is unreachable or its script is outdated."""
    try:
        return find_containers(on_node, node, journal)
    except PvebenchError as error:
        log.warning("listing containers failed", node=node, reason=error.reason)
        return []
