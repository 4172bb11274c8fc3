"""Rules for combinations of options, for the planner.

Each rule has a condition and a reason, which `pvebench plan` prints. Facts: QEMU rejects
aio=native without O_DIRECT at start and at hot-plug; Proxmox attaches an I/O thread only to
virtio disks and to scsi with one controller per disk, supports `queues` only there, and has no
`ssd` flag for virtio.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pvebench.model.disk import (
    BUSES,
    DEVICE_OPTIONS,
    HOST_OPTIONS,
    POOL_OPTIONS,
    Aio,
    Bus,
    Cache,
    ChainKind,
    Disk,
    Format,
    HostCache,
    Preallocation,
    ScsiHw,
)
from pvebench.model.scenario import Filesystem, Scenario
from pvebench.model.units import MIB, format_size
from pvebench.model.workload import (
    FLEECING,
    SNAPSHOT_RAM,
    Direction,
    Workload,
    WorksOn,
    operation_copies,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations on a storage's volumes during a run.

    Attributes:
        names: possible operations.
        throttled: operations whose target can be limited by `target_rate`.
        fleecing_iothread: whether a disk with an I/O thread can get a fleecing image.
        max_bytes: size of the largest volume; None: no limit.
        missing: operation -> reason why it is not possible.
        targets: operation -> storages that its copies are written to, by their names in packs where
            they have one; absent: the storage of the volume.
        saved_memory: bytes of a VM's memory -> bytes that a snapshot with memory needs for it.
    """

    names: frozenset[str] = frozenset()
    throttled: frozenset[str] = frozenset()
    fleecing_iothread: bool = True
    max_bytes: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    saved_memory: Callable[[int], int] = int

    def space(
        self, during: str, storage: str, *, volume_bytes: int, memory_bytes: int
    ) -> Mapping[str, int]:
        """Return storage -> maximum bytes of what an operation creates, until its run ends.

        Args:
            storage: that of the volume.
            memory_bytes: memory of the VM.
        """
        copies = (storage,) * operation_copies(during)
        need = Counter[str]()
        for target in self.targets.get(during, copies):
            need[target] += volume_bytes
        if during == SNAPSHOT_RAM:
            need[storage] += self.saved_memory(memory_bytes)
        return need


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageKind:
    """Capabilities of one kind of storage.

    Attributes:
        name: the storage plugin's name (`dir`, `lvmthin`, `zfspool` …), or a kind of pvebench.
        formats: the supported volume formats.
        files: whether volumes are files: only those can be preallocated, or overlay another.
        network: whether QEMU itself implements the storage's protocol; then there is no aio.
        qcow2_options: whether pvebench can set the options of qcow2, such as its cluster size.
        chains: kinds of snapshots that pvebench can create on it.
        no_chain: why it cannot create the others.
        thick: whether each snapshot has the size of the volume from the beginning.
        operations: backups, moves and snapshots of its volumes during a run.
        vms: maximum number of VMs that run a workload on it at the same time.
        few_vms: why not more; empty: a limit of pvebench.
        own_device: whether a volume is alone on a block device of this machine, so that changing
            the device's settings affects nothing else.
        pool_options: options of the pool or dataset that pvebench creates for each volume.
        host_cache: treatment of the host's page cache of its volumes before each run.
        no_container: why a container cannot use its volumes; empty: it can.
        container_filesystem: file system that the hypervisor creates for a container, and mounts
            without options; None: pvebench creates the file system of the pack.
        container_root: bytes of the root file system of a container there.
        boots: key of the pack with the origin of guests of other systems: `image`, `template`.
    """

    name: str
    formats: frozenset[Format]
    files: bool = False
    network: bool = False
    qcow2_options: bool = True
    chains: frozenset[ChainKind] = frozenset()
    no_chain: str = "pvebench cannot create snapshots of this chain_kind on this storage"
    thick: bool = False
    operations: Operations = Operations()
    vms: int = 1
    few_vms: str = ""
    own_device: bool = False
    pool_options: frozenset[str] = frozenset()
    host_cache: HostCache = HostCache.DROPPED
    no_container: str = ""
    container_filesystem: Filesystem | None = None
    container_root: int = 0
    boots: str = "image"


class Rows(StrEnum):
    """Cases of a pack that an instance can run: with a VM, without one, or both.

    Host and container cases are without a VM.
    """

    VM = "vm"
    HOST = "host"
    BOTH = "both"


def _single_scsi(disk: Disk) -> bool:
    return disk.bus is Bus.SCSI and disk.scsihw is ScsiHw.SINGLE


RULES: tuple[tuple[str, Callable[[Disk, StorageKind], bool]], ...] = (
    (
        "aio=native needs O_DIRECT, which this cache mode does not use",
        lambda disk, _: disk.aio is Aio.NATIVE and not disk.cache.direct,
    ),
    (
        "scsihw applies to bus scsi only",
        lambda disk, _: disk.bus is not Bus.SCSI and disk.scsihw is not ScsiHw.SINGLE,
    ),
    (
        "an I/O thread works only on virtio, and on scsi with virtio-scsi-single",
        lambda disk, _: disk.iothread and not BUSES[disk.bus].iothread and not _single_scsi(disk),
    ),
    (
        "queues work only on scsi with virtio-scsi-single",
        lambda disk, _: bool(disk.queues) and not _single_scsi(disk),
    ),
    ("a virtio disk has no ssd flag", lambda disk, _: disk.ssd and not BUSES[disk.bus].rotation),
    (
        "this storage cannot hold this format",
        lambda disk, storage: disk.format not in storage.formats,
    ),
    (
        "cluster_size, extended_l2 and backing are options of qcow2",
        lambda disk, _: (
            bool(disk.cluster_size or disk.extended_l2 or disk.backing)
            and disk.format is not Format.QCOW2
        ),
    ),
    (
        "extended_l2 needs clusters of 16k or more",
        lambda disk, _: disk.extended_l2 and 0 < disk.cluster_size < 16384,
    ),
    ("vmdk cannot discard", lambda disk, _: disk.discard and disk.format is Format.VMDK),
    (
        "vmdk has no preallocation",
        lambda disk, _: (
            disk.format is Format.VMDK and disk.preallocation is not Preallocation.METADATA
        ),
    ),
    (
        "raw has no metadata: its default is the same as off",
        lambda disk, _: disk.format is Format.RAW and disk.preallocation is Preallocation.OFF,
    ),
    (
        "volumes on this storage are not files: no preallocation and no backing file",
        lambda disk, storage: (
            not storage.files and (disk.backing or disk.preallocation is not Preallocation.METADATA)
        ),
    ),
    (
        "Proxmox's API creates qcow2 volumes with its own options only",
        lambda disk, storage: (
            bool(disk.cluster_size or disk.extended_l2 or disk.overlay_cluster)
            and not storage.qcow2_options
        ),
    ),
    (
        "a linked clone is never preallocated",
        lambda disk, _: disk.backing and disk.preallocation is not Preallocation.METADATA,
    ),
    (
        "chain_kind and overlay_cluster apply to volumes with snapshots: chain 1 or more",
        lambda disk, _: (
            not disk.chain and bool(disk.overlay_cluster or disk.chain_kind is not ChainKind.VOLUME)
        ),
    ),
    (
        "overlay_cluster applies to chain_kind volume",
        lambda disk, _: bool(disk.overlay_cluster) and disk.chain_kind is not ChainKind.VOLUME,
    ),
    (
        "snapshots in the volume or as overlays need qcow2",
        lambda disk, _: (
            bool(disk.chain)
            and disk.chain_kind is not ChainKind.STORAGE
            and disk.format is not Format.QCOW2
        ),
    ),
    (
        "pvebench creates no snapshots of a linked clone",
        lambda disk, _: bool(disk.chain) and disk.backing,
    ),
    (
        "aio applies to local files and devices; QEMU accesses this storage over the network",
        lambda disk, storage: storage.network and disk.aio is not Aio.IO_URING,
    ),
    (
        "drive_cache, read_ahead and scheduler need a device that only pvebench uses: a storage "
        "of kind loop or block",
        lambda disk, storage: bool(disk.differences(DEVICE_OPTIONS)) and not storage.own_device,
    ),
    (
        "thin_chunk needs a storage of kind lvmthin; volblocksize, recordsize, sync, primarycache "
        "and compression need one of kind zfs",
        lambda disk, storage: not {*dict(disk.differences(POOL_OPTIONS))} <= storage.pool_options,
    ),
    (
        "volblocksize applies to a zvol, recordsize to a file",
        lambda disk, _: disk.volblocksize is not None and disk.recordsize is not None,
    ),
    (
        "a loop device has no drive with a cache",
        lambda disk, storage: disk.drive_cache is not None and storage.name == "loop",
    ),
)
"""Reason to exclude a combination, and its condition."""


MIN_BYTES: dict[Filesystem, int] = {
    Filesystem.NONE: 0,
    Filesystem.EXT4: 16 * MIB,
    # mkfs rejects smaller ones: 300 MB since xfsprogs 5.19, 109 MiB in btrfs-progs.
    Filesystem.XFS: 320 * MIB,
    Filesystem.BTRFS: 128 * MIB,
    # Beside a reserved partition of 16 MiB. Not tried: there was no Windows to try it with.
    Filesystem.NTFS: 64 * MIB,
    Filesystem.REFS: 2048 * MIB,
}


def _is_plain(disk: Disk) -> bool:
    """Return whether a disk has no option of a VM."""
    of_vm = [name for name, _ in disk.differences() if name not in HOST_OPTIONS]
    return disk.format is Format.RAW and disk.cache is Cache.NONE and not of_vm


def _on_host(scenario: Scenario, storage: StorageKind) -> str | None:
    disk = scenario.disk
    if storage.network:
        return "QEMU accesses this storage over the network, so there is no host case"
    if not _is_plain(disk) or scenario.layout.on_filesystem:
        return "a host case has no disk options: raw, cache none, no filesystem"
    return None


def _in_container(scenario: Scenario, storage: StorageKind) -> str | None:
    disk = scenario.disk
    if storage.no_container:
        return storage.no_container
    if storage.network and storage.container_filesystem is None:
        return "QEMU accesses this storage over the network, so a container cannot mount it"
    if not _is_plain(disk):
        return "a container case has no disk options: raw, cache none"
    if not scenario.layout.on_filesystem:
        return "a container case needs a filesystem"
    fixed, layout = storage.container_filesystem, scenario.layout
    if fixed is not None and (layout.filesystem, layout.mount_options) != (fixed, ""):
        return f"Proxmox creates and mounts a container's file system: {fixed}, without options"
    return None


def why_not(scenario: Scenario, storage: StorageKind) -> str | None:
    """Return the first reason that excludes the scenario on `storage`, or None."""
    layout = scenario.layout
    without_vm = {Bus.HOST: _on_host, Bus.LXC: _in_container}.get(scenario.disk.bus)
    if without_vm is not None and (reason := without_vm(scenario, storage)):
        return reason
    if reason := _why_not_system(scenario, storage):
        return reason
    if layout.mount_options and not layout.on_filesystem:
        return "mount options need a filesystem"
    least = MIN_BYTES[layout.filesystem]
    if scenario.volume_bytes < least:
        return f"{layout.filesystem} needs a volume of {format_size(least)} or more"
    # A quarter stays free for the filesystem's own data; btrfs needs the most.
    if layout.on_filesystem and layout.file_bytes > scenario.volume_bytes * 3 // 4:
        return "the test file is larger than three quarters of the volume"
    reasons = (reason for reason, forbids in RULES if forbids(scenario.disk, storage))
    return next(reasons, None) or _why_no_chain(scenario, storage)


def _why_not_system(scenario: Scenario, storage: StorageKind) -> str | None:
    """Return why the guest's system cannot use the disk, or None."""
    layout, machine = scenario.layout, scenario.machine
    foreign = bool(machine.foreign) and scenario.disk.in_vm
    if layout.on_filesystem and layout.filesystem.of_windows is not foreign:
        return f"{layout.filesystem} needs a guest with {'linux' if foreign else 'windows'}"
    if not foreign:
        return None
    if not storage.boots:
        return "the simulated driver has Linux guests only"
    if storage.boots not in machine.foreign:
        return f"this driver boots {machine.os} from guest.{storage.boots} of the pack"
    if layout.mount_options:
        return f"{machine.os} has no mount options"
    return f"pvebench takes snapshots of linux guests only; {machine.os} needs chain 0" * bool(
        scenario.disk.chain
    )


def _why_not_foreign(scenario: Scenario, workload: Workload, _: StorageKind) -> str | None:
    """Return why a guest with another system than linux cannot run the workload, or None."""
    system = scenario.machine.os
    if workload.tool != "fio":
        return f"{workload.tool} needs a guest with linux; use fio"
    if Direction.TRIM in workload.directions:
        return f"fio cannot trim in a guest with {system}"
    if workload.parameters.get("ioengine") == "io_uring":
        return f"io_uring belongs to linux; with libaio, fio uses the engine of {system}"
    if workload.during or workload.further_vms:
        return "operations during a run and several VMs need guests with linux"
    return None


def _why_no_chain(scenario: Scenario, storage: StorageKind) -> str | None:
    disk = scenario.disk
    if scenario.layout.on_filesystem and (disk.backing or disk.chain):
        return "pvebench creates no filesystem on a linked clone or above snapshots"
    return storage.no_chain if disk.chain and disk.chain_kind not in storage.chains else None


def why_not_run(scenario: Scenario, workload: Workload, storage: StorageKind) -> str | None:
    """Return the reason that excludes `workload` on a possible scenario, or None."""
    checks = (
        (bool(scenario.machine.foreign) and scenario.disk.in_vm, _why_not_foreign),
        (workload.first_touch, _why_not_first),
        (workload.during, _why_not_during),
        (workload.further_vms > 0, _why_not_together),
    )
    for applies, check in checks:
        if applies and (reason := check(scenario, workload, storage)):
            return reason
    if scenario.disk.on_host:
        is_file = storage.files or scenario.disk.recordsize is not None
        return _why_not_on_host(workload, is_file=is_file)
    if scenario.disk.in_container and not workload.directions:
        return f"{workload.tool} needs a VM"
    if Direction.TRIM in workload.directions and (reason := _why_not_trim(scenario)):
        return reason
    return _why_not_here(scenario, workload)


def _why_not_trim(scenario: Scenario) -> str | None:
    if scenario.disk.in_container:
        return "a container case cannot trim"
    if not scenario.disk.discard:
        return "trim needs discard on"
    if scenario.layout.on_filesystem:
        return "trim needs a device without a filesystem"
    return None


def _why_not_first(scenario: Scenario, workload: Workload, _: StorageKind) -> str | None:
    if not scenario.disk.chain:
        return "touch first needs a snapshot: chain 1 or more"
    return "touch first excludes a steady state, whose writes come first" * bool(workload.steady)


def _why_not_during(scenario: Scenario, workload: Workload, storage: StorageKind) -> str | None:
    disk, name, possible = scenario.disk, workload.during, storage.operations
    if name not in possible.names:
        fallback = "pvebench has no operations on volumes of this storage"
        return possible.missing.get(name, fallback)
    if disk.cold or scenario.layout.on_filesystem:
        return "operations during a run need a disk that can be hot-plugged, without a filesystem"
    if disk.iothread and name == FLEECING and not possible.fleecing_iothread:
        return "QEMU 7.2 can crash when a disk with an I/O thread gets a fleecing image"
    if workload.parameters.get("target_rate") and name not in possible.throttled:
        return f"pvebench cannot limit the target of a {name} on this storage"
    if possible.max_bytes is not None and scenario.volume_bytes > possible.max_bytes:
        return (
            f"the volume is larger than max_size of operations, {format_size(possible.max_bytes)}"
        )
    return "operations during a run exclude iops and mbps" * bool(disk.iops or disk.mbps)


def _why_not_together(scenario: Scenario, workload: Workload, storage: StorageKind) -> str | None:
    if 1 + workload.further_vms > storage.vms and storage.few_vms:
        return storage.few_vms
    if workload.further_vms and storage.vms == 1:
        return "several VMs at the same time need a storage of kind dir or driver proxmox"
    if scenario.disk.cold:
        return "several VMs need a disk that can be hot-plugged"
    return "several VMs exclude a steady state" * bool(workload.steady)


def _why_not_on_host(workload: Workload, *, is_file: bool) -> str | None:
    if not workload.directions:
        return f"{workload.tool} needs a VM"
    if Direction.TRIM in workload.directions:
        return "a host case cannot trim"
    if workload.place is WorksOn.DEVICE and is_file:
        return f"{workload.tool} needs a device; volumes on this storage are files"
    if workload.place is WorksOn.DIRECTORY and not is_file:
        return f"{workload.tool} creates its own files; this storage has none"
    return None


def _why_not_here(scenario: Scenario, workload: Workload) -> str | None:
    layout = scenario.layout
    if workload.place is WorksOn.DEVICE and layout.on_filesystem:
        return f"{workload.tool} needs a device without a filesystem"
    if workload.place is WorksOn.DIRECTORY:
        if not layout.on_filesystem:
            return f"{workload.tool} creates its own files: it needs a filesystem"
        own = int(workload.parameters["size"])
        if own + layout.file_bytes > scenario.volume_bytes * 3 // 4:
            return (
                f"the files of {workload.tool} and the test file need more than three quarters "
                f"of the volume; reduce volume.file"
            )
    return None
