"""The test disk: its options, and what each option means to Proxmox and QEMU.

The words are Proxmox's. Which options go together is in `rules.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class Bus(StrEnum):
    """Where the disk is plugged in."""

    VIRTIO = "virtio"
    SCSI = "scsi"


class Format(StrEnum):
    """How the volume is laid out on the storage."""

    RAW = "raw"
    QCOW2 = "qcow2"


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
    order in slugs, and is part of the data format.
    """

    bus: Bus
    format: Format
    cache: Cache
    aio: Aio = Aio.IO_URING
    iothread: bool = False
    detect_zeroes: bool = False

    def differences(self) -> list[tuple[str, str]]:
        """Return (option, value) for every option that is not at its default, in slug order."""
        pairs = []
        for field in fields(self)[3:]:
            value = getattr(self, field.name)
            if value != field.default:
                pairs.append((field.name, option_text(value)))
        return pairs


def option_text(value: object) -> str:
    """Return an option's value as labels and slugs spell it: booleans are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)
