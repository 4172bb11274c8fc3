"""The section `proxmox` of the settings: which cluster, and what may be used there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr

from pvebench.config.fields import FilePath, Ratio, Size, Slug, Strict

_FINGERPRINT = re.compile(r"(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}\Z")


def _fingerprint(text: str) -> str:
    if text and not _FINGERPRINT.match(text):
        raise ValueError(
            f"{text!r} is not a SHA-256 fingerprint: 32 pairs of hexadecimal digits; "
            f"the node shows it with: pvenode cert info"
        )
    return text


def _range(pair: tuple[int, int]) -> tuple[int, int]:
    first, last = pair
    if not 100 <= first <= last <= 999_999_999:
        raise ValueError(f"{first} to {last} is no range of VM numbers: write [9500, 9599]")
    return pair


def _no_node_twice(nodes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(nodes)) < len(nodes):
        raise ValueError("a node is listed twice: it has one worker")
    return nodes


class TlsSettings(Strict):
    """How the server's certificate is proved. Nothing given: by the system's authorities.

    Attributes:
        ca_file: authority to trust instead, such as the cluster's /etc/pve/pve-root-ca.pem.
        fingerprint: SHA-256 of the certificate itself.
    """

    ca_file: FilePath | None = None
    fingerprint: Annotated[StrictStr, AfterValidator(_fingerprint)] = ""


class ClusterStorageSettings(Strict):
    """One storage of the cluster.

    Attributes:
        type: its type in Proxmox's words; decides which formats a plan may ask for.
        id: its name in the cluster, if that is not also a good name for labels.
        nodes: those that have it; empty: all.
        shared: several nodes write to the same disks: measured from one node at a time. By
            default so for the types that are a server's.
        write_budget: bytes that may be written to it in a calendar month.
        free_floor: bytes that must stay free on it.
        link_bits_per_second: what the network between node and server carries; 0: not declared.
    """

    type: Literal[
        "dir", "nfs", "cifs", "btrfs", "glusterfs", "lvm", "lvmthin", "zfspool", "zfs", "rbd"
    ]
    id: StrictStr = ""
    nodes: tuple[Slug, ...] = ()
    shared: StrictBool | None = None
    write_budget: Size | None = None
    free_floor: Size | None = None
    link_bits_per_second: StrictInt = Field(default=0, ge=1)

    @property
    def is_shared(self) -> bool:
        """Whether several nodes write to the same disks."""
        return self.type in _OF_A_SERVER if self.shared is None else self.shared


_OF_A_SERVER: Final = frozenset({"nfs", "cifs", "glusterfs", "zfs", "rbd"})


class LimitSettings(Strict):
    """Above what the node counts as busy with something else; looked at before and after a run.

    Attributes:
        cpu: share of all its CPUs.
        io_pressure: share of time in which some task waits for I/O.
    """

    cpu: Ratio | None = None
    io_pressure: Ratio | None = None


class ProxmoxSettings(Strict):
    """A Proxmox VE cluster.

    Attributes:
        host: any node of it, by name or address; `{node}` stands for the node that is measured,
            so that each is asked directly and a lost one is no trouble to the others.
        nodes: the nodes to measure, each by a worker of its own; empty: the settings' `node`.
        token_file: file with `USER@REALM!NAME=SECRET`; the environment variable
            PVEBENCH_PROXMOX_TOKEN goes over it.
        pool: the pool that the benchmark VM is made in; nothing outside is touched.
        vmids: first and last VM number that may be used.
        version: major version; a storage of type lvm holds qcow2 from 9 on.
        storages: name in packs and labels -> storage of the cluster.
        iso_storage: where the guest's image is uploaded to.
        cpu, machine: CPU and machine type of the VM; an empty machine: the node's newest.
        kvm: false only where the node has no hardware virtualisation.
        keep_volumes: filled volumes stay, with the VM that owns them, from one start to the next.
        limits: when to wait for the node's own work; wants node_exporter.
        node_exporter: its address, `{node}` stands for the node's name; empty: there is none.
    """

    host: StrictStr
    nodes: Annotated[tuple[Slug, ...], AfterValidator(_no_node_twice)] = ()
    port: StrictInt = Field(default=8006, ge=1, le=65535)
    token_file: FilePath | None = None
    tls: TlsSettings = TlsSettings()
    pool: StrictStr = "pvebench"
    vmids: Annotated[tuple[StrictInt, StrictInt], AfterValidator(_range)] = (9500, 9599)
    version: Literal[8, 9] = 9
    storages: dict[Slug, ClusterStorageSettings] = Field(min_length=1)
    iso_storage: StrictStr = "local"
    cpu: StrictStr = "host"
    machine: StrictStr = ""
    kvm: StrictBool = True
    keep_volumes: StrictBool = False
    limits: LimitSettings = LimitSettings()
    node_exporter: StrictStr = "http://{node}:9100/metrics"

    def below(self, base: Path) -> ProxmoxSettings:
        """Return these settings with relative paths taken from `base`."""
        tls = self.tls
        if tls.ca_file:
            tls = tls.model_copy(update={"ca_file": base / tls.ca_file})
        token = base / self.token_file if self.token_file else None
        return self.model_copy(update={"tls": tls, "token_file": token})
