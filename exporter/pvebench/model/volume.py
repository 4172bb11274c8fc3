"""A test volume, how it is plugged, and what was read back of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from pvebench.model.disk import Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A test volume that exists and carries pvebench's mark.

    Attributes:
        volid: the storage's name for it; for a lab directory, its path.
        complete: it came with data everywhere (a linked clone): filling would undo what it is.
        local: whether it is a file or device of this machine, so that QEMU's I/O to it is block
            I/O here; not so where QEMU itself speaks to a server.
        offset_bytes: where it begins in what its `volid` names.
    """

    storage: str
    volid: str
    format: str
    size_bytes: int
    complete: bool = False
    local: bool = True
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plug:
    """A volume and the options to plug it with."""

    volume: Volume
    disk: Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A disk as the hypervisor and the guest really have it, read back after the switch.

    Attributes:
        device: the block device's path in the guest.
        effective: option -> value as read back, in the words of `Disk` (`bus`, `cache` …).
        unverified: options that nothing outside can confirm.
        raw: hypervisor's own answers, for the evidence.
        offset_bytes: where on the device the volume begins.
        scratch: directory on the storage for tools that make files of their own; empty: none.
        work: directory for jobs and their output; empty: the guest's usual one.
        conditions: what was so of the storage then: metric -> share.
    """

    device: str
    effective: Mapping[str, str]
    unverified: tuple[str, ...] = ()
    raw: str = ""
    offset_bytes: int = 0
    scratch: str = ""
    work: str = ""
    conditions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounters:
    """QEMU's own counters of the test disk since it was attached."""

    read_operations: int
    write_operations: int
    flush_operations: int
    read_bytes: int
    write_bytes: int
    unmap_operations: int = 0

    @property
    def operations(self) -> int:
        """All that moves or discards data."""
        return self.read_operations + self.write_operations + self.unmap_operations

    def since(self, before: BlockCounters) -> BlockCounters:
        """Return what was counted after `before`."""
        names = [field.name for field in fields(self)]
        return BlockCounters(**{one: getattr(self, one) - getattr(before, one) for one in names})


def sum_of(counters: Iterable[BlockCounters]) -> BlockCounters:
    """Return what several devices counted together."""
    every = list(counters)
    names = [field.name for field in fields(BlockCounters)]
    return BlockCounters(**{name: sum(getattr(one, name) for one in every) for name in names})
