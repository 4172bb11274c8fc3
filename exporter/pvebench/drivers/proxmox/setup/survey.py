"""Inventory of a cluster for `pvebench setup`, and the resulting settings."""

from __future__ import annotations

import errno
import hashlib
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api, Server, version_number
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES
from pvebench.errors import ServerGone
from pvebench.model.storage_use import MIN_BUDGET_BYTES, default_budget
from pvebench.model.units import GIB

_CONNECT_SECONDS: Final = 10.0
_LOCAL: Final = "local"
"""Storage name that packs measure by default."""


@dataclass(slots=True)
class StorageInfo:
    """Storage of the cluster.

    Attributes:
        nodes: nodes on which it is active.
        free_bytes, total_bytes: on the first of them; 0: on none.
    """

    id: str
    type: str
    content: frozenset[str]
    shared: bool
    free_bytes: int = 0
    total_bytes: int = 0
    nodes: list[str] = field(default_factory=list)

    @property
    def holds_disks(self) -> bool:
        """Whether it supports test volumes."""
        return "images" in self.content and self.type in STORAGE_TYPES and bool(self.nodes)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Version, nodes (name -> status, or why it cannot be read) and storages of a cluster."""

    version: tuple[int, ...]
    nodes: Mapping[str, str]
    storages: Sequence[StorageInfo]


def certificate_fingerprint(host: str, port: int) -> str:
    """Return the SHA-256 of a server's certificate, in the format of Proxmox.

    Raises ServerGone: there is no certificate.
    """
    try:  # only the certificate is read, without verification; nothing is sent
        certificate = ssl.get_server_certificate((host, port), timeout=_CONNECT_SECONDS)
    except socket.gaierror as error:
        raise ServerGone(
            f"{host}: {error.strerror}",
            cause="this machine cannot resolve the name",
            next_step="check the name, or use the address",
        ) from error
    except OSError as error:
        happened, cause = _unreachable(error)
        raise ServerGone(
            f"{host}:{port} {happened}",
            cause=cause,
            next_step="check address and port; Proxmox VE listens on port 8006",
        ) from error
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)).upper()


def _unreachable(error: OSError) -> tuple[str, str]:
    """Return what a failed connection means, and its likely cause."""
    if isinstance(error, TimeoutError):
        return "does not respond", "the host is down, or a firewall drops connections"
    if isinstance(error, ConnectionRefusedError):
        return "rejects connections", "nothing listens on this port, or a firewall rejects it"
    if error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}:
        return "is unreachable", "the host is down, or no route leads to its network"
    return f"offers no TLS certificate ({error.strerror or error})", "it does not use TLS"


def survey(api: Api) -> ClusterInfo:
    """Return the inventory of the cluster; reads only. Raises as `Api`."""
    nodes = {str(row["node"]): str(row.get("status")) for row in api.get("/nodes")}
    storages: dict[str, StorageInfo] = {}
    for node in sorted(name for name, status in nodes.items() if status == "online"):
        try:
            rows = api.get(f"/nodes/{node}/storage", format=1)
        except (Rejected, ServerGone) as error:
            nodes[node] = error.happened
            continue
        for row in rows:
            storage = storages.setdefault(str(row["storage"]), _storage_info(row))
            if int(row.get("active") or 0):
                storage.nodes.append(node)
                storage.free_bytes = storage.free_bytes or int(row.get("avail") or 0)
                storage.total_bytes = storage.total_bytes or int(row.get("total") or 0)
    return ClusterInfo(version_number(api), nodes, [storages[name] for name in sorted(storages)])


def _storage_info(row: Mapping[str, Any]) -> StorageInfo:
    return StorageInfo(
        id=str(row["storage"]),
        type=str(row["type"]),
        content=frozenset(str(row.get("content") or "").split(",")),
        shared=bool(int(row.get("shared") or 0)),
    )


def names_of(storages: Sequence[StorageInfo]) -> dict[str, StorageInfo]:
    """Return name in packs and labels -> storage.

    Names are those of the cluster, as far as labels permit: dots become dashes, with a suffix if
    the name is taken. Without a `local`, the first gets this name, which packs measure by default.
    """
    taken = {storage.id for storage in storages}
    names: dict[str, StorageInfo] = {}
    for storage in storages:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", storage.id)
        while name != storage.id and name in taken | names.keys():
            name += "-2"
        names[name] = storage
    if names and _LOCAL not in names:
        first = next(iter(names))
        names = {_LOCAL if name == first else name: storage for name, storage in names.items()}
    return names


def settings_values(
    server: Server,
    nodes: Sequence[str],
    storages: Sequence[StorageInfo],
    packs: Sequence[str],
    **more: str | int,
) -> dict[str, Any]:
    """Return the content of the settings file.

    Args:
        packs: their names.
        more: other keys of the section `proxmox`.
    """
    verified = {"fingerprint": server.fingerprint}
    proxmox = {
        "host": server.host,
        "port": server.port,
        "nodes": list(nodes),
        **more,
        "tls": {"ca_file": str(server.ca_file)} if server.ca_file else verified,
        "storages": {
            name: _storage(name, storage, nodes) for name, storage in names_of(storages).items()
        },
    }
    return {"driver": "proxmox", "packs": list(packs), "proxmox": proxmox}


def _storage(name: str, storage: StorageInfo, nodes: Sequence[str]) -> dict[str, object]:
    entry: dict[str, object] = {"type": storage.type}
    if name != storage.id:
        entry["id"] = storage.id
    active = [node for node in nodes if node in storage.nodes]
    if len(active) < len(nodes):
        entry["nodes"] = active
    if storage.shared and not STORAGE_TYPES[storage.type].of_server:
        entry["shared"] = True
    if storage.total_bytes and (budget := default_budget(storage.total_bytes)) > MIN_BUDGET_BYTES:
        entry["write_budget"] = f"{budget // GIB}G"
    return entry
