"""What is on the test disk in the guest: nothing but data, or a filesystem with one file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from pvebench.model.units import GIB, KIB, MIB, SECTOR, format_size

# --- The test disk: its options, and what each option means to Proxmox and QEMU.
#
# The words are Proxmox's. Which options go together is in `rules.py`.

DEFAULT_CLUSTER: Final = 64 * KIB
MOST_LIMITED: Final = 100_000_000
"""The highest limit of operations or MiB per second that can be asked for."""
_SCHEDULER: Final = re.compile(r"[a-z][a-z0-9_-]*\Z")


class Part(StrEnum):
    """What an option belongs to: how the disk is plugged in, or what it lies on."""

    PLUG = "plug"
    VOLUME = "volume"
    """The volume's own: another value needs another volume."""
    DEVICE = "device"
    """Of the host's device below the volume, put back after the runs that want it."""


def traits(
    *,
    low: int | None = None,
    high: int | None = None,
    size: bool = False,
    check: Callable[[Any], Any] | None = None,
    of: Part = Part.PLUG,
) -> dict[str, Any]:
    """Return what packs need to know of an option beside its type, as a field's metadata.

    Args:
        low, high: limits of a number that a pack gives; the default may lie beyond them.
        size: whether it is in bytes, written as `64k`.
        check: takes what a pack gives and returns what is kept, or raises ValueError.
    """
    return {"low": low, "high": high, "size": size, "check": check, "of": of}


class Bus(StrEnum):
    """Where the disk is plugged in."""

    VIRTIO = "virtio"
    SCSI = "scsi"
    SATA = "sata"
    IDE = "ide"
    HOST = "host"
    """No VM: the host itself uses the volume. The row that all others are compared with."""
    LXC = "lxc"
    """No VM: a container on the host's kernel, with the volume's file system mounted in it."""


class ScsiHw(StrEnum):
    """The SCSI controller: one for each disk, one for several, or an emulated old one."""

    SINGLE = "virtio-scsi-single"
    SHARED = "virtio-scsi-pci"
    LSI = "lsi"


class Format(StrEnum):
    """How the volume is laid out on the storage."""

    RAW = "raw"
    QCOW2 = "qcow2"
    VMDK = "vmdk"


class Preallocation(StrEnum):
    """How much of a new volume is allocated; `metadata` is Proxmox's default (raw: off)."""

    OFF = "off"
    METADATA = "metadata"
    FALLOC = "falloc"
    FULL = "full"


class Cache(StrEnum):
    """Proxmox's cache modes, from the safest to the least safe."""

    NONE = "none"
    DIRECTSYNC = "directsync"
    WRITETHROUGH = "writethrough"
    WRITEBACK = "writeback"
    UNSAFE = "unsafe"

    @property
    def direct(self) -> bool:
        """Whether QEMU opens the volume with O_DIRECT, past the host's page cache."""
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
    """What becomes of the host's page cache of a volume before each run in a mode that uses it."""

    DROPPED = "dropped"
    """Written back and dropped on the host itself, and looked at."""
    REWRITTEN = "rewritten"
    """The volume is written anew past it, which puts its pages out: the kernel's direct writes."""
    REOPENED = "reopened"
    """The disk is plugged in anew: what is cached of it goes when its last user closes it."""
    WARM = "warm"
    """Nothing: reads may come from what earlier runs, or the fill, left in the host's memory."""


class Aio(StrEnum):
    """How QEMU submits I/O to the host."""

    IO_URING = "io_uring"
    NATIVE = "native"
    THREADS = "threads"


def _cluster(size: int) -> int:
    if not SECTOR <= size <= 2 * MIB or size & (size - 1):
        raise ValueError(f"{size} is not a cluster size of qcow2: a power of two, 512 to 2M")
    return 0 if size == DEFAULT_CLUSTER else size  # the default has one name only


def _read_ahead(size: int) -> int:
    if not 0 <= size <= GIB or size % SECTOR:
        raise ValueError(f"{size} bytes of read-ahead: use whole sectors of 512, up to 1G")
    return size


def _scheduler(text: str) -> str:
    if not _SCHEDULER.match(text):
        raise ValueError(
            f"{text!r} is no I/O scheduler: write it as in /sys/block/*/queue/scheduler"
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
        ssd: whether the guest is told that the disk does not rotate.
        queues: request queues of the controller; 0: QEMU's own choice.
        iops, mbps: limits of the disk, operations and MiB per second; 0: none.
        cluster_size: of qcow2, in bytes; 0: qcow2's own default, 64 KiB.
        extended_l2: whether qcow2 tracks 32 subclusters in each cluster.
        backing: whether the volume is an overlay on a full base image, as in a linked clone.
        drive_cache: the write cache in the drive below the volume; None: as it is.
        read_ahead: of the device below the volume, in bytes; None: as it is.
        scheduler: I/O scheduler of the device below the volume; None: as it is.
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
    iops: int = field(default=0, metadata=traits(low=0, high=MOST_LIMITED))
    mbps: int = field(default=0, metadata=traits(low=0, high=MOST_LIMITED))
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

    @property
    def on_host(self) -> bool:
        """Whether the bare host uses the volume: no VM and no container."""
        return self.bus is Bus.HOST

    @property
    def in_container(self) -> bool:
        """Whether the volume's file system is mounted in a container."""
        return self.bus is Bus.LXC

    @property
    def in_vm(self) -> bool:
        """Whether there is a VM around the disk: QEMU that counts, a kernel that boots."""
        return not (self.on_host or self.in_container)

    @property
    def past_cache(self) -> Disk:
        """A plain disk on the same volume that can be hot-plugged and writes past the cache."""
        own = {name: getattr(self, name) for name in VOLUME_OPTIONS}
        return Disk(bus=Bus.VIRTIO, format=self.format, cache=Cache.NONE, **own)

    @property
    def cold(self) -> bool:
        """Whether the disk must be known at power-on: no hot-plug on its bus, or no VM."""
        old_controller = self.bus is Bus.SCSI and self.scsihw is ScsiHw.LSI
        return self.bus in (Bus.SATA, Bus.IDE) or old_controller or not self.in_vm

    def differences(self, names: Iterable[str] = ()) -> list[tuple[str, str]]:
        """Return (option, value) for every option that is not at its default, in slug order.

        With `names`, only those options.
        """
        wanted = set(names)
        pairs = []
        for name, default in _DEFAULTS:
            value = getattr(self, name)
            if value != default and (not wanted or name in wanted):
                pairs.append((name, option_text(value, size=name in _SIZES)))
        return pairs


def _of(part: Part) -> tuple[str, ...]:
    return tuple(one.name for one in fields(Disk) if one.metadata.get("of") is part)


DISK_OPTIONS: Final = tuple(one.name for one in fields(Disk))
"""All, in the order of slugs; the first three have no default."""
_DEFAULTS: Final = tuple((one.name, one.default) for one in fields(Disk)[3:])
VOLUME_OPTIONS: Final = _of(Part.VOLUME)
DEVICE_OPTIONS: Final = _of(Part.DEVICE)
_SIZES: Final = tuple(one.name for one in fields(Disk) if one.metadata.get("size"))


def option_text(value: object, *, size: bool = False) -> str:
    """Return an option's value as labels and slugs spell it: booleans are 1 and 0, sizes short.

    None, an option that is left as it is, is empty.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return format_size(value) if size and isinstance(value, int) else str(value)


_MOUNT_OPTIONS: Final = re.compile(r"[a-z0-9_=,-]+\Z")
DEFAULT_FILE: Final = "fio.dat"


class Filesystem(StrEnum):
    """What the guest makes on the disk; `none`: workloads use the bare device."""

    NONE = "none"
    EXT4 = "ext4"
    XFS = "xfs"
    BTRFS = "btrfs"


def _mount_options(text: str) -> str:
    if text and not _MOUNT_OPTIONS.match(text):
        raise ValueError(f"{text!r}: write mount options as mount -o takes them: noatime,commit=30")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the guest uses the disk. Its options are what packs sweep; the rest is the volume's.

    Attributes:
        mount_options: as `mount -o` takes them; empty: the kernel's defaults.
        file_name: of the test file in the root of the filesystem.
        file_bytes: its size; 0 without a filesystem.
        fill_passes: how often everything is written before it is measured; two bring an SSD to
            the state that it has in use.
        fill_compress: how many per cent of the data that is filled in can be compressed away.
    """

    filesystem: Filesystem = field(default=Filesystem.NONE, metadata=traits())
    mount_options: str = field(default="", metadata=traits(check=_mount_options))
    file_name: str = DEFAULT_FILE
    file_bytes: int = 0
    fill_passes: int = 1
    fill_compress: int = 0

    @property
    def on_filesystem(self) -> bool:
        """Whether workloads use a file rather than the device."""
        return self.filesystem is not Filesystem.NONE

    @property
    def content(self) -> str:
        """Identity of what must be on the volume before a run; equal: no new preparation."""
        filled = self.filled
        if not self.on_filesystem:
            return "/".join(["data", *filled])
        return "/".join([self.filesystem, self.file_name, str(self.file_bytes), *filled])

    @property
    def filled(self) -> list[str]:
        """What is unusual about the data that is filled in; nothing by default."""
        passes = [f"fill-{self.fill_passes}"] if self.fill_passes != 1 else []
        return [*passes, *([f"compress-{self.fill_compress}"] if self.fill_compress else [])]

    def differences(self) -> list[tuple[str, str]]:
        """Return (option, value) for a slug: only what is not at its default."""
        values = [(one, getattr(self, one.name)) for one in fields(self) if one.metadata]
        return [(one.name, option_text(value)) for one, value in values if value != one.default]


LAYOUT_OPTIONS: Final = tuple(one.name for one in fields(Layout) if one.metadata)
"""Those of its fields that packs sweep."""
