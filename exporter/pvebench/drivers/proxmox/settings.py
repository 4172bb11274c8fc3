"""The section `proxmox` of the settings: which cluster, and what may be used there."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, model_validator

from pvebench.drivers.driver import DriverSettings, MeasuredStorage
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, storage_kind
from pvebench.drivers.ssh import SshSettings
from pvebench.errors import ConfigError, Problem
from pvebench.fields import FilePath, Ratio, Size, Slug, Strict
from pvebench.model.disk import HostCache
from pvebench.model.rules import StorageKind

if TYPE_CHECKING:
    TypeName = str
else:
    TypeName = Literal[tuple(STORAGE_TYPES)]  # one list of them, in their table

_FINGERPRINT = re.compile(r"(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}\Z")


_POOL = re.compile(r"[A-Za-z][A-Za-z0-9._-]*\Z")


def _fingerprint(text: str) -> str:
    if text and not _FINGERPRINT.match(text):
        raise ValueError(
            f"{text!r} is not a SHA-256 fingerprint: 32 pairs of hexadecimal digits; "
            f"the node shows it with: pvenode cert info"
        )
    return text


def _pool(name: str) -> str:
    if not _POOL.match(name):
        raise ValueError(f"{name!r} is no name of a pool: a letter, then letters, digits, . _ or -")
    return name


def bare_host(name: str) -> str:
    """Return the name or address of a server if it is nothing more.

    Raises:
        ValueError: it is a URL, or has a port with it.
    """
    if re.search(r"[\s/@]", name) or name.count(":") == 1:
        raise ValueError(
            f"{name!r} is no name or address alone: without https:// and without a port"
        )
    return name


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


_NO_SSH = "containers on a node are made by ssh: give proxmox.ssh in the settings"


class ClusterStorageSettings(Strict):
    """One storage of the cluster.

    Attributes:
        type: its type in Proxmox's words; decides which formats a plan may ask for.
        id: its name in the cluster, if that is not also a good name for labels.
        nodes: those that have it; empty: all.
        shared: several nodes write to the same disks: measured from one node at a time. By
            default so for the types that are a server's.
        write_budget: bytes that may be written to it in a calendar month.
        min_free: bytes that must stay free on it.
        link_bits_per_second: what the network between node and server carries; 0: not declared.
        cold: in modes that use the node's page cache, empty it before each run; where volumes are
            files that means to write them anew. False: results are marked as warm.
    """

    type: TypeName
    id: StrictStr = ""
    nodes: tuple[Slug, ...] = ()
    shared: StrictBool | None = None
    write_budget: Size | None = None
    min_free: Size | None = None
    link_bits_per_second: StrictInt = Field(default=0, ge=1)
    cold: StrictBool = True

    @property
    def is_shared(self) -> bool:
        """Whether several nodes write to the same disks."""
        return STORAGE_TYPES[self.type].of_server if self.shared is None else self.shared

    def kind(self, major: int, *, ssh: bool = False) -> StorageKind:
        """Return what it can hold on that version, and what is done about caches.

        Args:
            ssh: whether the node can be asked by it: to drop its page cache, to make containers.
        """
        found = storage_kind(self.type, major=major)
        if not ssh:
            found = replace(found, no_container=_NO_SSH)
        if not self.cold:
            return replace(found, host_cache=HostCache.WARM)
        # What QEMU itself speaks to is not in the page cache, and ZFS has a cache of its own.
        droppable = found.host_cache is not HostCache.WARM and not found.network
        return replace(found, host_cache=HostCache.DROPPED) if ssh and droppable else found

    def is_on(self, node: str) -> bool:
        """Return whether `node` has it."""
        return not self.nodes or node in self.nodes


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
        container_storage: where the root file systems of containers are made, 1 GiB each; empty:
            on the storage that is measured.
        cpu, machine: CPU and machine type of the VM; an empty machine: the node's newest.
        kvm: false only where the node has no hardware virtualisation.
        keep_volumes: filled volumes stay, with the VM that owns them, from one start to the next.
        limits: when to wait for the node's own work; wants node_exporter or ssh.
        node_exporter: its address, `{node}` stands for the node's name; empty: there is none.
        ssh: how the nodes are asked what the API does not tell; `{node}` in its host, too. None:
            they are not, and node_exporter is.
    """

    host: Annotated[StrictStr, AfterValidator(bare_host)]
    nodes: Annotated[tuple[Slug, ...], AfterValidator(_no_node_twice)] = ()
    port: StrictInt = Field(default=8006, ge=1, le=65535)
    token_file: FilePath | None = None
    tls: TlsSettings = TlsSettings()
    pool: Annotated[StrictStr, AfterValidator(_pool)] = "pvebench"
    vmids: Annotated[tuple[StrictInt, StrictInt], AfterValidator(_range)] = (9500, 9599)
    version: Literal[8, 9] = 9
    storages: dict[Slug, ClusterStorageSettings] = Field(min_length=1)
    iso_storage: StrictStr = "local"
    container_storage: StrictStr = ""
    cpu: StrictStr = "host"
    machine: StrictStr = ""
    kvm: StrictBool = True
    keep_volumes: StrictBool = False
    limits: LimitSettings = LimitSettings()
    node_exporter: StrictStr = "http://{node}:9100/metrics"
    ssh: SshSettings | None = None

    @model_validator(mode="after")
    def _cpu_that_can_be(self) -> Self:
        # `[cputype=]TYPE[,flags=…]`, as in cpu_fmt of PVE/QemuServer/CPUConfig.pm.
        kinds = {one.removeprefix("cputype=") for one in self.cpu.split(",")}
        if not self.kvm and "host" in kinds:
            raise ValueError(
                "kvm: false with cpu: host, which is the default, does not start: QEMU says "
                "\"CPU model 'host' requires KVM or HVF\"; write cpu: max beside it"
            )
        return self


class ClusterSettings(DriverSettings):
    """What the driver of a cluster is told.

    Attributes:
        proxmox: the cluster; `node` is then one of its nodes, unless the section names several.
    """

    proxmox: ProxmoxSettings | None = None

    def changes_for(self, node: str) -> dict[str, Any]:
        changes = super().changes_for(node)
        if self.proxmox is not None:
            changes["proxmox"] = self.proxmox.model_copy(update={"nodes": ()})
        return changes


def section(settings: DriverSettings) -> ProxmoxSettings:
    """Return the section `proxmox`.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(settings, ClusterSettings) and settings.proxmox is not None:
        return settings.proxmox
    message = "driver proxmox wants a section `proxmox` in the settings; see docs/proxmox.md"
    raise ConfigError([Problem("settings", 0, 0, message)])


def nodes_of(settings: ClusterSettings) -> tuple[str, ...]:
    """Return the nodes that are measured."""
    several = settings.proxmox.nodes if settings.proxmox else ()
    return several or (settings.node,)


def cluster_storages(settings: ClusterSettings, node: str | None) -> dict[str, MeasuredStorage]:
    """Return name in packs -> storage, for those that `node` has; None: that any has.

    Raises:
        ConfigError: there is no section `proxmox`.
    """
    given = section(settings)
    return {
        name: MeasuredStorage(
            holds=entry.kind(given.version, ssh=given.ssh is not None),
            shared=entry.is_shared,
            budget_bytes=entry.write_budget,
            floor_bytes=entry.min_free,
        )
        for name, entry in given.storages.items()
        if node is None or entry.is_on(node)
    }
