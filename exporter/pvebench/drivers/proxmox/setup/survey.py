"""What a cluster has, as `pvebench setup` shows it, and the settings that come of it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.pve_version import version_number
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES
from pvebench.errors import ServerGone

_CONNECT_SECONDS: Final = 10.0
_USUAL: Final = "local"
"""What a pack measures that names no storage."""


@dataclass(slots=True)
class StorageInfo:
    """One storage of the cluster.

    Attributes:
        nodes: those on which it is active.
        free_bytes, total_bytes: on the first of them.
    """

    id: str
    type: str
    content: frozenset[str]
    shared: bool
    free_bytes: int
    total_bytes: int
    nodes: list[str] = field(default_factory=list)

    @property
    def holds_disks(self) -> bool:
        """Whether test volumes can be made on it."""
        return "images" in self.content and self.type in STORAGE_TYPES and bool(self.nodes)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster: its version, its nodes with whether they are online, its storages."""

    version: tuple[int, ...]
    nodes: Mapping[str, bool]
    storages: Sequence[StorageInfo]


def certificate_fingerprint(host: str, port: int) -> str:
    """Return the SHA-256 of the certificate that a server shows, as Proxmox writes it.

    Raises:
        ServerGone: nobody shows one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is only looked at: nothing is sent
    try:
        with (
            socket.create_connection((host, port), _CONNECT_SECONDS) as raw,
            context.wrap_socket(raw, server_hostname=host) as channel,
        ):
            digest = hashlib.sha256(channel.getpeercert(binary_form=True) or b"").hexdigest()
    except socket.gaierror as error:
        raise ServerGone(
            f"{host}: {error.strerror}",
            cause="no name server that this machine asks knows that name",
            next_step="check it, or give the address",
        ) from error
    except OSError as error:
        raise ServerGone(
            f"{host}:{port}: no certificate is shown: {error}",
            cause="nothing listens there, or it does not speak TLS",
            next_step="check address and port; Proxmox VE listens on port 8006",
        ) from error
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)).upper()


def survey(api: Api) -> ClusterInfo:
    """Return what the cluster has; reads only. Raises as `Connection`."""
    nodes = {str(row["node"]): row.get("status") == "online" for row in api.get("/nodes")}
    storages: dict[str, StorageInfo] = {}
    for node in sorted(name for name, online in nodes.items() if online):
        for row in api.get(f"/nodes/{node}/storage", format=1):
            one = storages.setdefault(
                str(row["storage"]),
                StorageInfo(
                    id=str(row["storage"]),
                    type=str(row["type"]),
                    content=frozenset(str(row.get("content") or "").split(",")),
                    shared=bool(int(row.get("shared") or 0)),
                    free_bytes=int(row.get("avail") or 0),
                    total_bytes=int(row.get("total") or 0),
                ),
            )
            if int(row.get("active") or 0):
                one.nodes.append(node)
    return ClusterInfo(version_number(api), nodes, list(storages.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What is to be measured, and how the cluster is reached.

    Attributes:
        node_exporter: its address, `{node}` stands for the node's name; empty: there is none.
        packs: their names.
    """

    host: str
    port: int
    fingerprint: str
    ca_file: Path | None
    nodes: Sequence[str]
    storages: Sequence[StorageInfo]
    iso_storage: str
    pool: str
    major: int
    node_exporter: str
    token_file: str
    packs: Sequence[str]


def names_of(storages: Sequence[StorageInfo]) -> dict[str, StorageInfo]:
    """Return name in packs and labels -> storage.

    Each has that of the cluster, as far as labels allow it. Where none is called `local`, the first
    is: packs that name no storage measure that one.
    """
    found = {re.sub(r"[^a-z0-9_-]+", "-", one.id.lower()).strip("-_"): one for one in storages}
    if found and _USUAL not in found:
        first = next(iter(found))
        found = {_USUAL if name == first else name: one for name, one in found.items()}
    return found


def settings_text(choice: ClusterOptions) -> str:
    """Return the settings file. JSON's scalars are YAML's as well, so every text is quoted."""
    lines = [
        "# Made by pvebench setup. Every key: pvebench schema settings, or docs/proxmox.md.",
        "driver: proxmox",
        "# What is measured: `pvebench packs` lists them, `packs --copy NAME` changes one.",
        f"packs: {json.dumps(list(choice.packs))}",
        "proxmox:",
        f"  host: {json.dumps(choice.host)}",
        f"  port: {choice.port}",
        f"  nodes: {json.dumps(list(choice.nodes))}",
        f"  version: {choice.major}",
        f"  token_file: {json.dumps(choice.token_file)}  # beside this file, mode 0600",
        f"  tls: {json.dumps(_tls(choice))}",
        f"  pool: {json.dumps(choice.pool)}  # VMs are made in this one and nowhere else",
        "  storages:  # name in packs and labels: storage of the cluster",
    ]
    lines += [
        f"    {json.dumps(name)}: {json.dumps(_storage(name, one, choice.nodes))}"
        for name, one in names_of(choice.storages).items()
    ]
    lines += [
        f"  iso_storage: {json.dumps(choice.iso_storage)}  # the guest's image is uploaded there",
        "  # For host CPU and device bytes; empty: there is none.",
        f"  node_exporter: {json.dumps(choice.node_exporter)}",
    ]
    return "\n".join(lines) + "\n"


def _tls(choice: ClusterOptions) -> dict[str, str]:
    if choice.ca_file is not None:
        return {"ca_file": str(choice.ca_file)}
    return {"fingerprint": choice.fingerprint}


def _storage(name: str, one: StorageInfo, nodes: Sequence[str]) -> dict[str, object]:
    told: dict[str, object] = {"type": one.type}
    if name != one.id:
        told["id"] = one.id
    here = [node for node in nodes if node in one.nodes]
    if len(here) < len(nodes):
        told["nodes"] = here
    if one.shared and not STORAGE_TYPES[one.type].of_server:
        told["shared"] = True
    return told
