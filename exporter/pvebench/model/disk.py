"""The test disk: its options, and what each option means to Proxmox and QEMU.

The words are Proxmox's. Which options go together is in `rules.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from pvebench.model.units import format_size


class Bus(StrEnum):
    """Where the disk is plugged in."""

    VIRTIO = "virtio"
    SCSI = "scsi"
    SATA = "sata"
    IDE = "ide"
    HOST = "host"
    """No VM: the host itself uses the volume. The row that all others are compared with."""


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
    """Proxmox's cache modes."""

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


class Aio(StrEnum):
    """How QEMU submits I/O to the host."""

    IO_URING = "io_uring"
    NATIVE = "native"
    THREADS = "threads"


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
    queues: int = 0
    iops: int = 0
    mbps: int = 0
    cluster_size: int = 0
    preallocation: Preallocation = Preallocation.METADATA
    extended_l2: bool = False
    backing: bool = False
    drive_cache: bool | None = None
    read_ahead: int | None = None
    scheduler: str | None = None

    @property
    def on_host(self) -> bool:
        """Whether the host itself uses the volume, without a VM."""
        return self.bus is Bus.HOST

    @property
    def cold(self) -> bool:
        """Whether the disk must be known at power-on: no hot-plug on its bus, or no VM."""
        old_controller = self.bus is Bus.SCSI and self.scsihw is ScsiHw.LSI
        return self.bus in (Bus.SATA, Bus.IDE, Bus.HOST) or old_controller

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


_DEFAULTS: Final = tuple((field.name, field.default) for field in fields(Disk)[3:])
VOLUME_OPTIONS: Final = ("cluster_size", "preallocation", "extended_l2", "backing")
"""Options that are the volume's own: another value needs another volume."""
DEVICE_OPTIONS: Final = ("drive_cache", "read_ahead", "scheduler")
"""Settings of the host's device below the volume, put back after the runs that want them."""
_SIZES: Final = ("cluster_size", "read_ahead")


def option_text(value: object, *, size: bool = False) -> str:
    """Return an option's value as labels and slugs spell it: booleans are 1 and 0, sizes short.

    None, an option that is left as it is, is empty.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return format_size(value) if size and isinstance(value, int) else str(value)
