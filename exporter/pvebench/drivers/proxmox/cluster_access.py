"""Access to a cluster's API and nodes from its settings: addresses, certificates, names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pvebench.drivers.proxmox.api.connection import Api, Server, read_token
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.vm.bench_vm import NodeAccess
from pvebench.drivers.ssh.connection import SshConnection
from pvebench.model.ports import Clock, Journal, Traffic


def server_of(cluster: ProxmoxSettings, node: str) -> Server:
    """Return API address and certificate verification for the worker of `node`."""
    return Server(
        host=cluster.host.replace("{node}", node),
        port=cluster.port,
        ca_file=cluster.tls.ca_file,
        fingerprint=cluster.tls.fingerprint,
    )


def connect(
    cluster: ProxmoxSettings, node: str, clock: Clock, traffic: Traffic | None = None
) -> Api:
    """Return a connection with the configured token; nothing is sent yet."""
    return Api(server_of(cluster, node), read_token(cluster.token_file), clock, traffic)


def access_to(cluster: ProxmoxSettings, node: str, clock: Clock, journal: Journal) -> NodeAccess:
    """Return the access to a node; nothing is sent yet."""
    return NodeAccess(
        api=connect(cluster, node, clock),
        clock=clock,
        journal=journal,
        node=node,
        pool=cluster.pool,
        vmids=cluster.vmids,
    )


def by_ssh(cluster: ProxmoxSettings, node: str) -> NodeSsh | None:
    """Return SSH access to a node, if configured; nothing is sent yet."""
    return NodeSsh(SshConnection(cluster.ssh.of_node(node))) if cluster.ssh is not None else None


@contextlib.contextmanager
def ssh_access(cluster: ProxmoxSettings, node: str) -> Iterator[NodeSsh | None]:
    """Yield SSH access to a node, if configured, and close it."""
    on_node = by_ssh(cluster, node)
    try:
        yield on_node
    finally:
        if on_node is not None:
            on_node.close()
