"""Plausible numbers for a simulated disk. Shapes from published measurements, not from one disk."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from pvebench.model.disk import Bus, Cache, Disk, Format

BASE_IOPS: Final = 40_000.0
BASE_BYTES_PER_SECOND: Final = 900e6
SYNC_SECONDS: Final = 0.0006
"""What one sync costs on the simulated disk: an SSD with power loss protection behind a network."""
NOISE: Final = 0.03

_BUS_FACTOR: Final = {
    Bus.VIRTIO: 1.0,
    Bus.SCSI: 0.93,
    Bus.SATA: 0.6,
    Bus.IDE: 0.35,
    Bus.HOST: 1.1,
    Bus.LXC: 1.05,
}
_FORMAT_FACTOR: Final = {Format.RAW: 1.0, Format.QCOW2: 0.85, Format.VMDK: 0.6}
_READ_FACTOR: Final = {
    Cache.NONE: 1.0,
    Cache.DIRECTSYNC: 0.95,
    Cache.WRITETHROUGH: 1.6,
    Cache.WRITEBACK: 1.6,
    Cache.UNSAFE: 1.6,
}
_WRITE_FACTOR: Final = {
    Cache.NONE: 0.8,
    Cache.DIRECTSYNC: 0.05,
    Cache.WRITETHROUGH: 0.05,
    Cache.WRITEBACK: 1.1,
    Cache.UNSAFE: 1.3,
}


@dataclass(slots=True, kw_only=True)
class SimulatedDisk:
    """`workloads.PlayDisk`: how fast a disk with these options would be.

    Attributes:
        shift: factor on everything; what an upgrade cost.
    """

    name: str
    disk: Disk
    rng: random.Random
    shift: float = 1.0

    def iops(self, direction: str, *, bs: int, depth: float = 1, fsync: bool = False) -> float:
        """Return the I/O per second that it gives, without noise."""
        disk = self.disk
        factor = _BUS_FACTOR[disk.bus] * _FORMAT_FACTOR[disk.format]
        factor *= (_READ_FACTOR if direction == "read" else _WRITE_FACTOR)[disk.cache]
        factor *= 1.05 if disk.iothread else 1.0
        factor *= self.shift
        if fsync:
            # Every write waits for its sync, except where the host throws syncs away.
            return factor / (SYNC_SECONDS if disk.cache is not Cache.UNSAFE else SYNC_SECONDS / 20)
        return min(BASE_IOPS * depth / (depth + 8), BASE_BYTES_PER_SECOND / bs) * factor

    def rate(self, direction: str, *, bs: int, depth: float = 1) -> float:
        """Return the I/O per second that it gives this time."""
        return self.iops(direction, bs=bs, depth=depth) * (1 + self.rng.gauss(0.0, NOISE))
