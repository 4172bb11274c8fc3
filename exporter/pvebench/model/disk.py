"""Options of the test disk, with Proxmox's names; `rules.py` defines which can be combined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

from pvebench.model.units import GIB, KIB, MIB, SECTOR, format_size

DEFAULT_CLUSTER: Final = 64 * KIB
OVERLAY_CLUSTER: Final = 128 * KIB
"""Cluster of an overlay of Proxmox VE 9, with 32 subclusters of 4 KiB."""
MAX_CHAIN: Final = 32
MAX_LIMITED: Final = 100_000_000
"""Maximum of the options that limit operations or MiB per second."""
_SCHEDULER: Final = re.compile(r"[a-z][a-z0-9_-]*\Z")


class Part(StrEnum):
    """Object that an option belongs to: the attachment, the volume or the device below."""

    PLUG = "plug"
    VOLUME = "volume"
    """Of the volume: another value needs another volume."""
    DEVICE = "device"
    """Of the host's device below the volume, restored after the runs that change it."""
    POOL = "pool"
    """Of the thin pool or ZFS dataset that pvebench creates for the volume alone."""


def traits(
    *,
    low: int | None = None,
    high: int | None = None,
    size: bool = False,
    check: Callable[[Any], Any] | None = None,
    of: Part = Part.PLUG,
) -> dict[str, Any]:
    """Return the metadata of an option's field, for packs.

    Args:
        low, high: limits of a number in a pack; the default may be outside of them.
        size: whether it is in bytes, written as `64k`.
        check: takes the pack's value and returns the value to use, or raises ValueError.
    """
    return {"low": low, "high": high, "size": size, "check": check, "of": of}


class Bus(StrEnum):
    """Bus of the disk."""

    VIRTIO = "virtio"
    SCSI = "scsi"
    SATA = "sata"
    IDE = "ide"
    HOST = "host"
    """No VM: the host uses the volume. The case that all others are compared with."""
    LXC = "lxc"
    """No VM: a container on the host's kernel, with the volume's file system mounted in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusTraits:
    """Traits of a bus.

    Attributes:
        hotplug: whether a disk can be attached to a running VM.
        iothread: whether a disk has an I/O thread of its own, whatever its controller is.
        rotation: whether a disk can report that it does not rotate (option ssd).
        device: QEMU's type of the disk.
        controller: part of the type of the controller of each disk; empty: any or none.
        slots: indexes of Proxmox's slots that test disks use. People use slot 0 for disks that they
            add; more slots of scsi need a newer machine type; ide2 is the guest image.
        modules: kernel modules of the guest.
    """

    hotplug: bool
    device: str
    slots: range
    modules: tuple[str, ...]
    iothread: bool = False
    rotation: bool = True
    controller: str = ""


_WITHOUT_VM: Final = BusTraits(hotplug=False, device="", slots=range(0), modules=())
BUSES: Final[Mapping[str, BusTraits]] = {
    Bus.VIRTIO: BusTraits(
        hotplug=True,
        device="virtio-blk-pci",
        slots=range(1, 16),
        modules=("virtio_blk",),
        iothread=True,
        rotation=False,
    ),
    Bus.SCSI: BusTraits(
        hotplug=True, device="scsi-hd", slots=range(1, 14), modules=("virtio_scsi",)
    ),
    Bus.SATA: BusTraits(
        hotplug=False, device="ide-hd", controller="ahci", slots=range(1, 6), modules=("ahci",)
    ),
    Bus.IDE: BusTraits(hotplug=False, device="ide-hd", slots=range(2), modules=("ata_piix",)),
    Bus.HOST: _WITHOUT_VM,
    Bus.LXC: _WITHOUT_VM,
}
"""Bus -> its traits, in the order in which a device's bus is looked up."""


def modules_of(*, hotplug: bool) -> tuple[str, ...]:
    """Return the guest's modules for the buses with or without hot-plug."""
    return tuple(name for bus in BUSES.values() if bus.hotplug is hotplug for name in bus.modules)


class ScsiHw(StrEnum):
    """SCSI controller: one per disk, one for several, or an emulated old one."""

    SINGLE = "virtio-scsi-single"
    SHARED = "virtio-scsi-pci"
    LSI = "lsi"


class Format(StrEnum):
    """Format of the volume on the storage."""

    RAW = "raw"
    QCOW2 = "qcow2"
    VMDK = "vmdk"


class Preallocation(StrEnum):
    """Preallocation of a new volume; `metadata` is Proxmox's default (raw: off)."""

    OFF = "off"
    METADATA = "metadata"
    FALLOC = "falloc"
    FULL = "full"


class ChainKind(StrEnum):
    """Place of a volume's snapshots."""

    VOLUME = "volume"
    """One overlay file per snapshot, as `snapshot-as-volume-chain` of Proxmox VE 9 creates them."""
    INTERNAL = "internal"
    """In the qcow2 file itself."""
    STORAGE = "storage"
    """In the storage, such as ZFS or LVM-thin."""


class Sync(StrEnum):
    """ZFS: whether it waits for the ZIL, as programs ask for, at every write, or never."""

    STANDARD = "standard"
    ALWAYS = "always"
    DISABLED = "disabled"


class PrimaryCache(StrEnum):
    """ZFS: content that the ARC caches."""

    ALL = "all"
    METADATA = "metadata"
    NONE = "none"


class Compression(StrEnum):
    """ZFS: algorithm for new blocks."""

    OFF = "off"
    LZ4 = "lz4"
    ZLE = "zle"
    GZIP = "gzip"
    ZSTD = "zstd"


class Cache(StrEnum):
    """Proxmox's cache modes, from the safest to the least safe."""

    NONE = "none"
    DIRECTSYNC = "directsync"
    WRITETHROUGH = "writethrough"
    WRITEBACK = "writeback"
    UNSAFE = "unsafe"

    @property
    def direct(self) -> bool:
        """Whether QEMU opens the volume with O_DIRECT, which bypasses the host's page cache."""
        return self in (Cache.NONE, Cache.DIRECTSYNC)

    @property
    def no_flush(self) -> bool:
        """Whether QEMU ignores the guest's flushes."""
        return self is Cache.UNSAFE

    @property
    def write_cache(self) -> bool:
        """Whether the guest sees a volatile write cache (and so sends flushes)."""
        return self in (Cache.NONE, Cache.WRITEBACK, Cache.UNSAFE)


class HostCache(StrEnum):
    """Treatment of a volume's host page cache before each run, in modes that use it."""

    DROPPED = "dropped"
    """Written back and dropped on the host, and verified."""
    REWRITTEN = "rewritten"
    """The volume is rewritten with direct I/O, for which the kernel drops its pages."""
    REOPENED = "reopened"
    """The disk is attached again: its cache is dropped when the last user closes it."""
    WARM = "warm"
    """None: reads may hit data of earlier runs, or of the fill, in the host's memory."""
    ARC = "arc"
    """None: ZFS caches the reads of every mode, direct I/O too, in its ARC."""

    @property
    def warm(self) -> bool:
        """Whether reads may hit data of earlier runs."""
        return self in (HostCache.WARM, HostCache.ARC)


class Aio(StrEnum):
    """QEMU's method to submit I/O to the host."""

    IO_URING = "io_uring"
    NATIVE = "native"
    THREADS = "threads"


def _cluster(size: int) -> int:
    if not SECTOR <= size <= 2 * MIB or size & (size - 1):
        raise ValueError(f"invalid qcow2 cluster size {size}: use a power of two, 512 to 2M")
    return 0 if size == DEFAULT_CLUSTER else size  # the default has one name only


def _overlay_cluster(size: int) -> int:
    if size not in (DEFAULT_CLUSTER, OVERLAY_CLUSTER):
        raise ValueError(f"invalid overlay cluster size {size}: use 128k or 64k")
    return 0 if size == OVERLAY_CLUSTER else size


def _power_of_two(low: int, high: int, what: str) -> Callable[[int], int]:
    def check(size: int) -> int:
        if not low <= size <= high or size & (size - 1):
            limits = f"{format_size(low)} to {format_size(high)}"
            raise ValueError(f"invalid {what} of {size} bytes: use a power of two, {limits}")
        return size

    return check


def _thin_chunk(size: int) -> int:
    if not 64 * KIB <= size <= GIB or size % (64 * KIB):
        raise ValueError(f"invalid thin chunk of {size} bytes: use a multiple of 64k, up to 1G")
    return size


def _read_ahead(size: int) -> int:
    if not 0 <= size <= GIB or size % SECTOR:
        raise ValueError(f"invalid read-ahead of {size} bytes: use whole sectors of 512, up to 1G")
    return size


def _scheduler(text: str) -> str:
    if not _SCHEDULER.match(text):
        raise ValueError(
            f"invalid I/O scheduler {text!r}: write it as in /sys/block/*/queue/scheduler"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One configuration of the test disk.

    The first three name a scenario; every later field has a documented default and
    appears in a slug only where it differs from it. The order of the fields is the
    order in slugs, and is part of the data format: new ones go to the end.

    Attributes:
        scsihw: the SCSI controller; concerns bus scsi only.
        discard: whether the guest's discards reach the volume.
        ssd: whether the guest sees a disk that does not rotate.
        queues: request queues of the controller; 0: QEMU's own choice.
        iops, mbps: limits of the disk, operations and MiB per second; 0: none.
        cluster_size: of qcow2, in bytes; 0: qcow2's own default, 64 KiB.
        extended_l2: whether qcow2 tracks 32 subclusters per cluster.
        backing: whether the volume is an overlay on a full base image, as in a linked clone.
        drive_cache: the write cache in the drive below the volume; None: unchanged.
        read_ahead: of the device below the volume, in bytes; None: unchanged.
        scheduler: I/O scheduler of the device below the volume; None: unchanged.
        chain: snapshots below the data that the guest writes.
        chain_kind: place of these snapshots.
        overlay_cluster: of overlays, in bytes; 0: 128 KiB with subclusters and the volume's
            preallocation, as Proxmox VE 9 creates them. 64 KiB: without both, as before.
        thin_chunk: of the LVM-thin pool, in bytes; None: 64 KiB.
        volblocksize: of the zvol, in bytes; None: 16 KiB, as of OpenZFS 2.2.
        recordsize: the volume is a file in a ZFS dataset with such records; None: it is a zvol.
        sync, primarycache, compression: of the zvol or dataset; None: standard, all, lz4.
    """

    bus: Bus
    format: Format
    cache: Cache
    aio: Aio = Aio.IO_URING
    iothread: bool = False
    detect_zeroes: bool = False
    scsihw: ScsiHw = ScsiHw.SINGLE
    discard: bool = False
    ssd: bool = False
    queues: int = field(default=0, metadata=traits(low=2, high=64))
    iops: int = field(default=0, metadata=traits(low=0, high=MAX_LIMITED))
    mbps: int = field(default=0, metadata=traits(low=0, high=MAX_LIMITED))
    cluster_size: int = field(default=0, metadata=traits(size=True, check=_cluster, of=Part.VOLUME))
    preallocation: Preallocation = field(
        default=Preallocation.METADATA, metadata=traits(of=Part.VOLUME)
    )
    extended_l2: bool = field(default=False, metadata=traits(of=Part.VOLUME))
    backing: bool = field(default=False, metadata=traits(of=Part.VOLUME))
    drive_cache: bool | None = field(default=None, metadata=traits(of=Part.DEVICE))
    read_ahead: int | None = field(
        default=None, metadata=traits(size=True, check=_read_ahead, of=Part.DEVICE)
    )
    scheduler: str | None = field(default=None, metadata=traits(check=_scheduler, of=Part.DEVICE))
    chain: int = field(default=0, metadata=traits(low=0, high=MAX_CHAIN, of=Part.VOLUME))
    chain_kind: ChainKind = field(default=ChainKind.VOLUME, metadata=traits(of=Part.VOLUME))
    overlay_cluster: int = field(
        default=0, metadata=traits(size=True, check=_overlay_cluster, of=Part.VOLUME)
    )
    thin_chunk: int | None = field(
        default=None, metadata=traits(size=True, check=_thin_chunk, of=Part.POOL)
    )
    volblocksize: int | None = field(
        default=None,
        metadata=traits(
            size=True, check=_power_of_two(4 * KIB, 128 * KIB, "volblocksize"), of=Part.POOL
        ),
    )
    recordsize: int | None = field(
        default=None,
        metadata=traits(size=True, check=_power_of_two(SECTOR, MIB, "recordsize"), of=Part.POOL),
    )
    sync: Sync | None = field(default=None, metadata=traits(of=Part.POOL))
    primarycache: PrimaryCache | None = field(default=None, metadata=traits(of=Part.POOL))
    compression: Compression | None = field(default=None, metadata=traits(of=Part.POOL))

    @property
    def on_host(self) -> bool:
        """Whether the host uses the volume, without VM and container."""
        return self.bus is Bus.HOST

    @property
    def in_container(self) -> bool:
        """Whether the volume's file system is mounted in a container."""
        return self.bus is Bus.LXC

    @property
    def in_vm(self) -> bool:
        """Whether a VM uses the disk: QEMU has counters, a guest kernel boots."""
        return not (self.on_host or self.in_container)

    @property
    def past_cache(self) -> Disk:
        """A default disk on the same volume that can be hot-plugged and bypasses the cache."""
        own = {name: getattr(self, name) for name in VOLUME_OPTIONS}
        return Disk(bus=Bus.VIRTIO, format=self.format, cache=Cache.NONE, **own)

    @property
    def unchained(self) -> Disk:
        """The disk before its first snapshot."""
        return replace(self, chain=0, chain_kind=ChainKind.VOLUME, overlay_cluster=0)

    @property
    def copies(self) -> int:
        """Maximum number of full copies of the volume's data with its snapshots, without a base."""
        if self.chain_kind is not ChainKind.VOLUME:
            return 2
        # An overlay is sparse unless its data is preallocated, and only the newest one is written.
        thick = self.preallocation in (Preallocation.FALLOC, Preallocation.FULL)
        return 1 + (self.chain if thick and not self.overlay_cluster else min(self.chain, 1))

    @property
    def cold(self) -> bool:
        """Whether the disk must be attached at power-on: no hot-plug on its bus, or no VM."""
        old_controller = self.bus is Bus.SCSI and self.scsihw is ScsiHw.LSI
        return not BUSES[self.bus].hotplug or old_controller

    def differences(self, names: Iterable[str] = ()) -> list[tuple[str, str]]:
        """Return (option, value) for every option that is not at its default, in slug order.

        With `names`, only those options.
        """
        selected = set(names)
        pairs = []
        for name, default in _DEFAULTS:
            value = getattr(self, name)
            if value != default and (not selected or name in selected):
                pairs.append((name, option_text(value, size=name in _SIZES)))
        return pairs


def _of(*parts: Part) -> tuple[str, ...]:
    return tuple(option.name for option in fields(Disk) if option.metadata.get("of") in parts)


DISK_OPTIONS: Final = tuple(option.name for option in fields(Disk))
"""All options in the order of slugs; the first three have no default."""
_DEFAULTS: Final = tuple((option.name, option.default) for option in fields(Disk)[3:])
POOL_OPTIONS: Final = _of(Part.POOL)
VOLUME_OPTIONS: Final = _of(Part.VOLUME, Part.POOL)
DEVICE_OPTIONS: Final = _of(Part.DEVICE)
HOST_OPTIONS: Final = _of(Part.DEVICE, Part.POOL)
"""Options that cases without a VM have too."""
_SIZES: Final = tuple(option.name for option in fields(Disk) if option.metadata.get("size"))


def option_text(value: object, *, size: bool = False) -> str:
    """Return an option's value for labels and slugs: booleans as 1 and 0, sizes short.

    None, an unchanged option, is an empty string.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return format_size(value) if size and isinstance(value, int) else str(value)
