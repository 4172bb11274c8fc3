"""Which options go together: one table, read by the planner.

Each rule says when it forbids a combination and why, in the words that `pvebench plan`
prints. Facts: QEMU refuses aio=native without O_DIRECT at start and at hot-plug; Proxmox
attaches an I/O thread only to virtio disks and to one-disk-per-controller scsi, has `queues`
only there, and knows no `ssd` on virtio.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pvebench.model.disk import (
    DEVICE_OPTIONS,
    Aio,
    Bus,
    Cache,
    Disk,
    Filesystem,
    Format,
    HostCache,
    Preallocation,
    ScsiHw,
)
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB, format_size
from pvebench.model.workload import Direction, Place, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageKind:
    """What one kind of storage can hold.

    Attributes:
        name: the storage plugin's name (`dir`, `lvmthin`, `zfspool` …), or a lab's own.
        formats: the volume formats it can hold.
        files: whether volumes are files here: only those can be preallocated, or overlay another.
        network: whether QEMU itself speaks the storage's protocol; then there is no aio.
        tuned: whether we make the volumes ourselves, and so decide on qcow2's own options.
        own_device: whether a volume has a whole block device of this machine for itself, so that
            changing the device's settings concerns nobody else.
        host_cache: what is done about the host's page cache of its volumes before each run.
        no_container: why a container cannot have its volumes here; empty: it can.
        container_filesystem: what the hypervisor makes for a container, whose volume it maps and
            mounts itself, without options; None: we do, and make what a pack asks for.
    """

    name: str
    formats: frozenset[Format]
    files: bool = False
    network: bool = False
    tuned: bool = True
    own_device: bool = False
    host_cache: HostCache = HostCache.DROPPED
    no_container: str = ""
    container_filesystem: Filesystem | None = None


class Rows(StrEnum):
    """Which rows of a pack an instance can run: those of VMs, those without one, or both.

    Without a VM are the host's own and those of containers.
    """

    VM = "vm"
    HOST = "host"
    BOTH = "both"


def _single_scsi(disk: Disk) -> bool:
    return disk.bus is Bus.SCSI and disk.scsihw is ScsiHw.SINGLE


def _of_qcow2(disk: Disk) -> bool:
    return bool(disk.cluster_size or disk.extended_l2 or disk.backing)


def _of_device(disk: Disk) -> bool:
    return bool(disk.differences(DEVICE_OPTIONS))


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason why a combination cannot be. `forbids` is pure."""

    reason: str
    forbids: Callable[[Disk, StorageKind], bool]


RULES: tuple[Rule, ...] = (
    Rule(
        "aio=native needs O_DIRECT, which this cache mode does not use",
        lambda disk, _: disk.aio is Aio.NATIVE and not disk.cache.direct,
    ),
    Rule(
        "scsihw concerns bus scsi only",
        lambda disk, _: disk.bus is not Bus.SCSI and disk.scsihw is not ScsiHw.SINGLE,
    ),
    Rule(
        "an I/O thread works only on virtio, and on scsi with virtio-scsi-single",
        lambda disk, _: disk.iothread and disk.bus is not Bus.VIRTIO and not _single_scsi(disk),
    ),
    Rule(
        "queues work only on scsi with virtio-scsi-single",
        lambda disk, _: bool(disk.queues) and not _single_scsi(disk),
    ),
    Rule("a virtio disk has no ssd flag", lambda disk, _: disk.ssd and disk.bus is Bus.VIRTIO),
    Rule(
        "this storage cannot hold this format",
        lambda disk, storage: disk.format not in storage.formats,
    ),
    Rule(
        "cluster_size, extended_l2 and backing are options of qcow2",
        lambda disk, _: _of_qcow2(disk) and disk.format is not Format.QCOW2,
    ),
    Rule(
        "extended_l2 needs clusters of 16k or more",
        lambda disk, _: disk.extended_l2 and 0 < disk.cluster_size < 16384,
    ),
    Rule("vmdk cannot discard", lambda disk, _: disk.discard and disk.format is Format.VMDK),
    Rule(
        "vmdk has no preallocation",
        lambda disk, _: (
            disk.format is Format.VMDK and disk.preallocation is not Preallocation.METADATA
        ),
    ),
    Rule(
        "raw has no metadata: off is what its default does already",
        lambda disk, _: disk.format is Format.RAW and disk.preallocation is Preallocation.OFF,
    ),
    Rule(
        "this storage holds no files: no preallocation and no backing file",
        lambda disk, storage: (
            not storage.files and (disk.backing or disk.preallocation is not Preallocation.METADATA)
        ),
    ),
    Rule(
        "Proxmox's API makes qcow2 volumes with its own options only",
        lambda disk, storage: bool(disk.cluster_size or disk.extended_l2) and not storage.tuned,
    ),
    Rule(
        "a linked clone is never preallocated",
        lambda disk, _: disk.backing and disk.preallocation is not Preallocation.METADATA,
    ),
    Rule(
        "aio concerns local files and devices; QEMU itself speaks to this storage",
        lambda disk, storage: storage.network and disk.aio is not Aio.IO_URING,
    ),
    Rule(
        "drive_cache, read_ahead and scheduler need a device that is pvebench's alone: a storage "
        "of kind loop or block",
        lambda disk, storage: _of_device(disk) and not storage.own_device,
    ),
    Rule(
        "a loop device has no drive with a cache",
        lambda disk, storage: disk.drive_cache is not None and storage.name == "loop",
    ),
)


LEAST_BYTES: dict[Filesystem, int] = {
    Filesystem.NONE: 0,
    Filesystem.EXT4: 16 * MIB,
    # mkfs refuses less: 300 MB since xfsprogs 5.19, 109 MiB in btrfs-progs.
    Filesystem.XFS: 320 * MIB,
    Filesystem.BTRFS: 128 * MIB,
}


def _on_host(scenario: Scenario, storage: StorageKind) -> str | None:
    disk = scenario.disk
    if storage.network:
        return "QEMU itself speaks to this storage, so the host has no row of its own"
    of_vm = [name for name, _ in disk.differences() if name not in DEVICE_OPTIONS]
    plain = disk.format is Format.RAW and disk.cache is Cache.NONE and not of_vm
    if not plain or scenario.layout.on_filesystem:
        return "the host's own row has no disk options: raw, cache none, no filesystem"
    return None


def _in_container(scenario: Scenario, storage: StorageKind) -> str | None:
    disk = scenario.disk
    if storage.no_container:
        return storage.no_container
    if storage.network and storage.container_filesystem is None:
        return "QEMU itself speaks to this storage, so a container has nothing to mount"
    of_vm = [name for name, _ in disk.differences() if name not in DEVICE_OPTIONS]
    if disk.format is not Format.RAW or disk.cache is not Cache.NONE or of_vm:
        return "a container's row has no disk options: raw, cache none"
    if not scenario.layout.on_filesystem:
        return "a container has a file system mounted, not a disk: it needs a filesystem"
    made = storage.container_filesystem
    if made is not None and (scenario.layout.filesystem, scenario.layout.mount_options) != (
        made,
        "",
    ):
        return f"Proxmox makes and mounts a container's file system: {made}, without options"
    return None


def why_not(scenario: Scenario, storage: StorageKind) -> str | None:
    """Return the first reason why the scenario cannot be on `storage`, or None if it can."""
    layout = scenario.layout
    without_vm = {Bus.HOST: _on_host, Bus.LXC: _in_container}.get(scenario.disk.bus)
    if without_vm is not None and (reason := without_vm(scenario, storage)):
        return reason
    if layout.mount_options and not layout.on_filesystem:
        return "mount options need a filesystem"
    if layout.on_filesystem and scenario.disk.backing:
        return "a linked clone brings its own data; no filesystem is made on it"
    least = LEAST_BYTES[layout.filesystem]
    if scenario.volume_bytes < least:
        return f"{layout.filesystem} needs a volume of {format_size(least)} or more"
    # A quarter stays free for the filesystem's own data; btrfs needs the most.
    if layout.on_filesystem and layout.file_bytes > scenario.volume_bytes * 3 // 4:
        return "the file fills more than three quarters of the volume"
    return next((rule.reason for rule in RULES if rule.forbids(scenario.disk, storage)), None)


def why_not_run(scenario: Scenario, workload: Workload, storage: StorageKind) -> str | None:
    """Return why `workload` cannot run on a scenario that itself can be, or None if it can."""
    if scenario.disk.on_host:
        return _why_not_on_host(workload, storage)
    if scenario.disk.in_container and not workload.directions:
        return f"{workload.tool} needs a VM"
    if Direction.TRIM in workload.directions:
        if scenario.disk.in_container:
            return "a container does not trim"
        if not scenario.disk.discard:
            return "trim needs discard on"
        if scenario.layout.on_filesystem:
            return "trim works on the bare device only"
    return _why_not_here(scenario, workload)


def _why_not_on_host(workload: Workload, storage: StorageKind) -> str | None:
    if not workload.directions:
        return f"{workload.tool} needs a VM"
    if Direction.TRIM in workload.directions:
        return "the host's own row does not trim"
    if workload.place is Place.DEVICE and storage.files:
        return f"{workload.tool} works on a bare device only; volumes are files here"
    if workload.place is Place.DIRECTORY and not storage.files:
        return f"{workload.tool} makes files of its own; this storage holds none"
    return None


def _why_not_here(scenario: Scenario, workload: Workload) -> str | None:
    layout = scenario.layout
    if workload.place is Place.DEVICE and layout.on_filesystem:
        return f"{workload.tool} works on a bare device only"
    if workload.place is Place.DIRECTORY:
        if not layout.on_filesystem:
            return f"{workload.tool} makes files of its own: it needs a filesystem"
        own = min(int(workload.parameters["size"]), layout.file_bytes)
        if own + layout.file_bytes > scenario.volume_bytes * 3 // 4:
            return (
                f"the files of {workload.tool} and the test file fill more than three quarters "
                f"of the volume; make volume.file smaller"
            )
    return None
