"""Which disk options go together: one table, read by the planner.

Each rule says when it forbids a combination and why, in the words that `pvebench plan`
prints. Facts: QEMU refuses aio=native without O_DIRECT at start and at hot-plug; Proxmox
attaches an I/O thread only to virtio disks and to one-disk-per-controller scsi.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pvebench.model.disk import Aio, Bus, Disk, Format


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageKind:
    """What one kind of storage can hold.

    Attributes:
        name: the storage plugin's name (`dir`, `lvmthin`, `zfspool` …).
        formats: the volume formats it can hold.
    """

    name: str
    formats: frozenset[Format]


STORAGE_KINDS: dict[str, StorageKind] = {
    "dir": StorageKind(name="dir", formats=frozenset({Format.RAW, Format.QCOW2})),
}

HOT_PLUG_BUSES = frozenset({Bus.VIRTIO, Bus.SCSI})
IOTHREAD_BUSES = frozenset({Bus.VIRTIO, Bus.SCSI})


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
        "an I/O thread works only on virtio and scsi",
        lambda disk, _: disk.iothread and disk.bus not in IOTHREAD_BUSES,
    ),
    Rule(
        "this storage cannot hold this format",
        lambda disk, storage: disk.format not in storage.formats,
    ),
)


def why_not(disk: Disk, storage: StorageKind) -> str | None:
    """Return the first reason why `disk` cannot be on `storage`, or None if it can."""
    return next((rule.reason for rule in RULES if rule.forbids(disk, storage)), None)
