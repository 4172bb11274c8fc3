"""From the settings of a cluster to its API and its nodes: addresses, trust, names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pvebench.drivers.proxmox.api.connection import Connection, Server, read_token
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.settings import ProxmoxSettings
from pvebench.drivers.proxmox.vm.bench_vm import VmPlace
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.model.ports import Clock, Traffic


def server_of(given: ProxmoxSettings, node: str) -> Server:
    """Return where the API is and how it is trusted, for the worker of `node`."""
    return Server(
        host=given.host.replace("{node}", node),
        port=given.port,
        ca_file=given.tls.ca_file,
        fingerprint=given.tls.fingerprint,
    )


def connect(
    given: ProxmoxSettings, node: str, clock: Clock, traffic: Traffic | None = None
) -> Connection:
    """Return a connection with the configured token; nothing is sent yet."""
    return Connection(server_of(given, node), read_token(given.token_file), clock, traffic)


def storages_of(given: ProxmoxSettings, node: str) -> dict[str, ClusterStorage]:
    """Return name in packs -> storage of the cluster, for those that `node` has."""
    return {
        name: ClusterStorage(id=entry.id or name, type=entry.type)
        for name, entry in given.storages.items()
        if entry.is_on(node)
    }


def place_of(given: ProxmoxSettings, node: str) -> VmPlace:
    """Return where VMs and containers of a node are made."""
    return VmPlace(node=node, pool=given.pool, vmids=given.vmids)


def exporter_url(given: ProxmoxSettings, node: str) -> str:
    """Return the address of a node's node_exporter; empty: there is none."""
    return given.node_exporter.replace("{node}", node)


def by_ssh(given: ProxmoxSettings, node: str) -> NodeSsh | None:
    """Return the way to a node by ssh, if the settings tell of one; nothing is sent yet."""
    return NodeSsh(SshConnection(given.ssh.of_node(node))) if given.ssh is not None else None


@contextlib.contextmanager
def asked(given: ProxmoxSettings, node: str) -> Iterator[NodeSsh | None]:
    """Yield the way to a node by ssh, if the settings tell of one, and end it."""
    on_node = by_ssh(given, node)
    try:
        yield on_node
    finally:
        if on_node is not None:
            on_node.close()
