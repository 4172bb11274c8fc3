"""Settings section `proxmox`: the cluster and the resources that pvebench may use."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, StrictInt, StrictStr, model_validator

from pvebench.drivers.driver import DriverSettings, MeasuredStorage, budget_of
from pvebench.drivers.proxmox.api.privileges import DEFAULT_POOL, MAX_POOL
from pvebench.drivers.proxmox.vm.drive import (
    STORAGE_TYPES,
    VOLUME_CHAINS,
    ClusterStorage,
    OperationTargets,
    storage_kind,
    vmstate_bytes,
)
from pvebench.drivers.ssh import SshSettings
from pvebench.errors import ConfigError, Problem
from pvebench.fields import FilePath, Ratio, Size, Slug, Strict, WriteBudget
from pvebench.model.disk import ChainKind, Format, HostCache
from pvebench.model.rules import Operations, StorageKind
from pvebench.model.units import GIB
from pvebench.model.workload import MAX_VMS, NEIGHBOR, SNAPSHOT_OPERATIONS

_FINGERPRINT = re.compile(r"(?:[0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}\Z")


_POOL = re.compile(rf"[A-Za-z][A-Za-z0-9._-]{{0,{MAX_POOL - 1}}}\Z")


def _fingerprint(text: str) -> str:
    if text and not _FINGERPRINT.match(text):
        raise ValueError(
            f"{text!r} is not a SHA-256 fingerprint of 32 pairs of hexadecimal digits; "
            f"pvenode cert info on the node prints it"
        )
    return text


def _pool(name: str) -> str:
    if not _POOL.match(name):
        raise ValueError(
            f"{name!r} is not a pool name; use a letter, then A-Z a-z 0-9 . _ -, "
            f"at most {MAX_POOL} characters"
        )
    return name


def bare_host(name: str) -> str:
    """Return `name` if it is a plain host name or address.

    Raises ValueError: it is a URL or contains a port.
    """
    bare = name.removeprefix("[").removesuffix("]") if name[-1:] == "]" else name  # IPv6 of a URL
    plain = bare.replace("{node}", "node")
    if not plain or re.search(r"[\s/@\[\]?#\\{}]", plain) or plain.count(":") == 1:
        raise ValueError(f"{name!r} is not a host name or address; remove https:// and the port")
    return bare


def _range(pair: tuple[int, int]) -> tuple[int, int]:
    first, last = pair
    if not 100 <= first <= last <= 999_999_999:
        raise ValueError(f"{first} to {last} is not a range of VM IDs; write it as [9500, 9599]")
    return pair


def _no_node_twice(nodes: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(nodes)) < len(nodes):
        raise ValueError("a node is listed twice; list each node once")
    return nodes


class TlsSettings(Strict):
    """Certificate verification; by default with the system's CAs.

    Attributes:
        ca_file: CA to trust instead, such as the cluster's /etc/pve/pve-root-ca.pem.
        fingerprint: SHA-256 of the server certificate.
    """

    ca_file: FilePath | None = None
    fingerprint: Annotated[StrictStr, AfterValidator(_fingerprint)] = ""


NO_KILL = (
    "durability on a node needs proxmox.ssh and proxmox.kill_own_vm: true; it kills QEMU of "
    "pvebench's own VM; see docs/durability.md"
)
_NO_SSH = "containers on a node require SSH; set proxmox.ssh in the settings"


class ClusterStorageSettings(ClusterStorage):
    """Storage of the cluster.

    Attributes:
        type: Proxmox storage type; determines the formats that plans can use.
        id: its ID in the cluster, if different from the name in labels.
        nodes: nodes that have it; empty: all.
        shared: several nodes write to the same disks, so only one node measures at a
            time. Default for the types that are network servers.
        write_budget: maximum bytes written to it in 24 hours; `off`: no limit. Default: 10 GiB;
            `pvebench setup` writes 5% of the size, if that is more.
        min_free: bytes to keep free on it.
        link_bits_per_second: bandwidth of the network between node and server; 0: not
            declared.
        cold: in modes that use the node's page cache, empty it before each run; if volumes are
            files, by rewriting them. False: results are marked as warm.
        snapshot_as_volume_chain: as in the storage's own configuration; its snapshots are overlays.
    """

    nodes: tuple[Slug, ...] = ()
    write_budget: WriteBudget | None = None
    link_bits_per_second: StrictInt = Field(default=0, ge=1)
    cold: StrictBool = True
    snapshot_as_volume_chain: StrictBool = False

    @property
    def chains(self) -> frozenset[ChainKind]:
        """Kinds of snapshots of its volumes."""
        if self.snapshot_as_volume_chain:
            return frozenset({ChainKind.VOLUME})
        kind = STORAGE_TYPES[self.type]
        if Format.QCOW2 in kind.formats:
            return frozenset({ChainKind.INTERNAL})
        return frozenset({ChainKind.STORAGE} if kind.snapshots else ())

    @model_validator(mode="after")
    def _chain_of_files(self) -> Self:
        if self.snapshot_as_volume_chain and not STORAGE_TYPES[self.type].chained:
            chained = sorted(name for name, kind in STORAGE_TYPES.items() if kind.chained)
            raise ValueError(
                f"snapshot_as_volume_chain: storages of type {self.type} do not have it; "
                f"it exists for {', '.join(chained)}"
            )
        return self

    def kind(self, major: int, *, ssh: bool = False) -> StorageKind:
        """Return its capabilities on that version, including cache handling.

        Args:
            ssh: whether SSH access is available to drop the page cache and create containers.
        """
        kind = storage_kind(self.type, major=major)
        if not ssh:
            kind = replace(kind, no_container=_NO_SSH)
        if not self.cold:
            return kind if kind.host_cache.warm else replace(kind, host_cache=HostCache.WARM)
        # Storages that QEMU accesses directly bypass the page cache, and ZFS has its own cache.
        droppable = not kind.host_cache.warm and not kind.network
        return replace(kind, host_cache=HostCache.DROPPED) if ssh and droppable else kind


def _with_ids(storages: dict[str, ClusterStorageSettings]) -> dict[str, ClusterStorageSettings]:
    """Return the storages, each with its ID in the cluster."""
    return {
        name: entry.model_copy(update={"id": entry.id or name}) for name, entry in storages.items()
    }


class LimitSettings(Strict):
    """Load above which the node counts as busy; checked before and after a run.

    Attributes:
        cpu: share of all CPUs.
        io_pressure: share of time in which tasks wait for I/O.
    """

    cpu: Ratio | None = None
    io_pressure: Ratio | None = None


class OperationSettings(OperationTargets):
    """Snapshots, and operations during runs. Requires `pvebench proxmox init --with-operations`.

    Attributes:
        backup_storage: cluster storage for backups of the benchmark VM, which are removed after
            each run; empty: no backups.
        fleecing_storage: cluster storage for fleecing images; empty: no backups with fleecing.
        move_storage: cluster storage that disks are moved to; empty: no moves.
        move_rate: maximum bytes per second of a move; 0: the limit of the cluster.
        max_size: size of the largest volume that is backed up, restored or moved.
        per_day: maximum number of backups, and of moves, on a node in 24 hours. A restore needs a
            backup.
    """

    max_size: Size = 32 * GIB
    per_day: StrictInt = Field(default=1, ge=1, le=100)

    @property
    def storages(self) -> set[str]:
        """The cluster storages that it names."""
        return {self.backup_storage, self.fleecing_storage, self.move_storage} - {""}

    def kind(self, entry: ClusterStorageSettings) -> Operations:
        """Return the possible operations on volumes of a storage."""
        missing = {name: f"requires proxmox.operations.{key}" for name, key in _TARGETS.items()}
        has = {name for name, key in _TARGETS.items() if getattr(self, key)}
        if not self.backup_storage:
            has.discard("backup-fleecing")
        if self.move_storage == entry.id:  # refused by `move_vm_disk` in PVE/API2/Qemu.pm
            has.discard("move")
            missing["move"] = "proxmox.operations.move_storage is the storage of the volume itself"
        snapshots = "Proxmox has no snapshots of volumes on this storage"
        missing |= dict.fromkeys(SNAPSHOT_OPERATIONS, snapshots)
        has.add(NEIGHBOR)
        if entry.chains:
            has |= {*SNAPSHOT_OPERATIONS}
        return Operations(
            names=frozenset(has),
            throttled=frozenset({"move"}),
            max_bytes=self.max_size,
            missing=missing,
            targets=self.on(entry.id),
            saved_memory=vmstate_bytes,
        )


_TARGETS = {
    "backup": "backup_storage",
    "backup-fleecing": "fleecing_storage",
    "restore": "backup_storage",
    "move": "move_storage",
}
_NO_OPERATIONS = "requires the section proxmox.operations in the settings"
_MACHINE = re.compile(r"-(?P<major>[0-9]{1,3})\.[0-9]")
_ROOT_BYTES = GIB
"""Size of a container's root file system in `node.sh`, bytes."""


class ProxmoxSettings(Strict):
    """A Proxmox VE cluster.

    Attributes:
        host: name or address of any node; `{node}` is replaced by the measured node's name, so
            that each node is accessed directly and a failed one does not affect the others.
        nodes: nodes to measure, one worker per node; empty: `node` of the settings.
        token_file: file with `USER@REALM!NAME=SECRET`; the environment variable
            PVEBENCH_PROXMOX_TOKEN has priority.
        pool: pool of the benchmark VMs; pvebench changes nothing outside it.
        vmids: first and last VM ID to use.
        version: major version; storages of type lvm support qcow2 from 9 on.
        storages: name in packs and labels -> cluster storage.
        iso_storage: storage for the guest image.
        container_storage: storage for the root file systems of containers, 1 GiB each; empty: the
            measured storage.
        cpu, machine: CPU and machine type of the VM; empty machine: the node's newest.
        kvm: false only if the node has no hardware virtualization.
        keep_volumes: keep filled volumes and their VM between starts.
        limits: load limits of the node; requires node_exporter or ssh.
        node_exporter: its URL; `{node}` is replaced by the node's name; empty: none.
        operations: snapshots, and operations during runs; None: none.
        ssh: SSH access to nodes for data that the API lacks; `{node}` in its host is replaced,
            too. None: node_exporter is used.
        kill_own_vm: allow `pvebench durability` to kill QEMU of its benchmark VM; requires ssh.
    """

    host: Annotated[StrictStr, AfterValidator(bare_host)]
    nodes: Annotated[tuple[Slug, ...], AfterValidator(_no_node_twice)] = ()
    port: StrictInt = Field(default=8006, ge=1, le=65535)
    token_file: FilePath | None = None
    tls: TlsSettings = TlsSettings()
    pool: Annotated[StrictStr, AfterValidator(_pool)] = DEFAULT_POOL
    vmids: Annotated[tuple[StrictInt, StrictInt], AfterValidator(_range)] = (9500, 9599)
    version: Literal[8, 9] = 9
    storages: Annotated[dict[Slug, ClusterStorageSettings], AfterValidator(_with_ids)] = Field(
        min_length=1
    )
    iso_storage: StrictStr = "local"
    container_storage: StrictStr = ""
    cpu: StrictStr = "host"
    machine: StrictStr = ""
    kvm: StrictBool = True
    keep_volumes: StrictBool = False
    limits: LimitSettings = LimitSettings()
    node_exporter: StrictStr = "http://{node}:9100/metrics"
    operations: OperationSettings | None = None
    ssh: SshSettings | None = None
    kill_own_vm: StrictBool = False

    def durability_formats(self, storage: str) -> tuple[Format, ...]:
        """Return the formats in which `pvebench durability` can create volumes of a storage."""
        entry = self.storages[storage]
        formats = entry.kind(self.version).formats & {Format.RAW, Format.QCOW2}
        if entry.type == "lvm" and not entry.snapshot_as_volume_chain:
            formats -= {Format.QCOW2}
        return tuple(sorted(formats, reverse=True))

    def kind_of(self, entry: ClusterStorageSettings) -> StorageKind:
        """Return the capabilities of one of its storages."""
        kind = entry.kind(self.version, ssh=self.ssh is not None)
        kind = replace(kind, container_root=0 if self.container_storage else _ROOT_BYTES)
        first, last = self.vmids
        if (ids := (last - first + 1) // max(1, len(self.nodes))) < MAX_VMS:
            few = f"each VM needs an ID; proxmox.vmids has {ids} for each node"
            kind = replace(kind, vms=ids, few_vms=few)
        else:
            kind = replace(kind, vms=MAX_VMS)
        if self.operations is None:
            missing = dict.fromkeys([*_TARGETS, *SNAPSHOT_OPERATIONS], _NO_OPERATIONS)
            alone = Operations(names=frozenset({NEIGHBOR}), missing=missing)
            return replace(kind, no_chain=_NO_OPERATIONS, operations=alone)
        chains, no_chain = entry.chains, kind.no_chain
        if self._lacks_chains(entry):
            chains = frozenset()
            no_chain = "snapshot_as_volume_chain needs Proxmox VE 9 and a machine type from 10.0 on"
        operations = self.operations.kind(entry)
        known = {settings.id: name for name, settings in self.storages.items()}
        targets = {
            during: tuple(known.get(one, one) for one in into)
            for during, into in operations.targets.items()
        }
        operations = replace(operations, targets=targets)
        return replace(kind, chains=chains, no_chain=no_chain, operations=operations)

    def storages_on(self, node: str | None) -> dict[str, ClusterStorageSettings]:
        """Return name in packs -> storage, for the storages of `node`; None: of any node."""
        return {
            name: entry
            for name, entry in self.storages.items()
            if node is None or not entry.nodes or node in entry.nodes
        }

    def kinds(self) -> dict[str, StorageKind]:
        """Return name in packs -> capabilities."""
        return {name: self.kind_of(entry) for name, entry in self.storages.items()}

    def _lacks_chains(self, entry: ClusterStorageSettings) -> bool:
        version = _MACHINE.search(self.machine)
        old = self.version < 9 or (version is not None and int(version["major"]) < VOLUME_CHAINS)
        return entry.snapshot_as_volume_chain and old

    @model_validator(mode="after")
    def _require_usable_cpu(self) -> Self:
        # `[cputype=]TYPE[,flags=…]`, as in cpu_fmt of PVE/QemuServer/CPUConfig.pm.
        kinds = {option.removeprefix("cputype=") for option in self.cpu.split(",")}
        if not self.kvm and "host" in kinds:
            raise ValueError(
                "kvm: false does not support cpu: host, the default (QEMU reports "
                "\"CPU model 'host' requires KVM or HVF\"); set cpu: max"
            )
        return self


class ClusterSettings(DriverSettings):
    """Settings of the driver for clusters.

    Attributes:
        proxmox: the cluster; `node` is one of its nodes, unless the section lists several.
    """

    proxmox: ProxmoxSettings | None = None

    def changes_for(self, node: str) -> dict[str, Any]:
        changes = super().changes_for(node)
        if self.proxmox is not None:
            changes["proxmox"] = self.proxmox.model_copy(update={"nodes": ()})
        return changes


def section(settings: DriverSettings) -> ProxmoxSettings:
    """Return the section `proxmox`. Raises ConfigError: there is none."""
    if isinstance(settings, ClusterSettings) and settings.proxmox is not None:
        return settings.proxmox
    message = "driver proxmox requires the section `proxmox` in the settings; see docs/proxmox.md"
    raise ConfigError([Problem("settings", 0, 0, message)])


def nodes_of(settings: ClusterSettings) -> tuple[str, ...]:
    """Return the measured nodes."""
    several = settings.proxmox.nodes if settings.proxmox else ()
    return several or (settings.node,)


def cluster_storages(settings: ClusterSettings, node: str | None) -> dict[str, MeasuredStorage]:
    """Return name in packs -> storage, for the storages of `node`; None: of any node.

    Raises ConfigError: there is no section `proxmox`.
    """
    cluster = section(settings)
    return {
        name: MeasuredStorage(
            holds=cluster.kind_of(entry),
            shared=entry.is_shared,
            budget_bytes=budget_of(entry.write_budget, None),
            floor_bytes=entry.min_free,
        )
        for name, entry in cluster.storages_on(node).items()
    }
