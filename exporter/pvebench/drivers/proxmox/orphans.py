"""What is left on a cluster by whatever pvebench: VMs of the pool, containers of the nodes."""

from __future__ import annotations

import structlog

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import Leftover
from pvebench.drivers.proxmox.api.connection import Connection
from pvebench.drivers.proxmox.cluster_access import asked, connect
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
    """`drivers.driver.Sweeper` of the pool in which VMs are made, and of the nodes' containers."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._pool = section(settings).pool
        self._found: list[OrphanVm] = []
        self._containers: dict[int, OrphanContainer] = {}

    def find(self, journal: Journal) -> list[Leftover]:
        """Return what some pvebench made, none of it in use by this one.

        Containers are told by the nodes of the settings, where they can be asked by ssh.
        """
        self._found = find_orphans(self._connect(), pool=self._pool, known=journalled(journal))
        self._containers = {}
        for node in nodes_of(self._settings):
            with asked(section(self._settings), node) as on_node:
                found = _containers(on_node, node, journal) if on_node else []
            self._containers |= {one.vmid: one for one in found}
        return [*self._found, *self._containers.values()]

    def remove(self, journal: Journal, number: int) -> str:
        container = self._containers.get(number)
        if container is not None:
            with asked(section(self._settings), container.node) as on_node:
                if on_node is not None:
                    return remove_container(on_node, container, journal)
        stray = choose(self._found, number)
        return remove_orphan(
            self._connect(), stray, pool=self._pool, clock=SystemClock(), journal=journal
        )

    def _connect(self) -> Connection:
        return connect(section(self._settings), nodes_of(self._settings)[0], SystemClock())


def _containers(on_node: NodeSsh, node: str, journal: Journal) -> list[OrphanContainer]:
    """Return those of a node; none where it cannot be asked, or its program is an older one."""
    try:
        return find_containers(on_node, node, journal)
    except PvebenchError as error:
        log.warning("containers are not known", node=node, reason=error.reason)
        return []
