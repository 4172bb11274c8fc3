"""A test volume, how it is plugged, and what was read back of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Protocol

from pvebench.model.disk import Disk

# --- Which storage it is: what distinguishes it from another that later has its name.

Identity = Mapping[str, str]
"""Fact -> text, such as `type`, `uuid`, `serial`. Empty: the storage cannot be identified."""
UNCERTAIN: Final = frozenset(
    {
        *("type", "source", "file", "partition", "start"),
        *("path", "subdir", "pool", "data-pool", "namespace", "vgname", "thinpool"),
    }
)
"""Facts that another storage may have as well: a difference counts, equality proves nothing."""
_FILE_SYSTEM: Final = frozenset({"fsid", "uuid", "source", "share"})


class IdentityRecords(Protocol):
    """Remembers which storage the results of a name are from."""

    def recorded(self, node: str, storage: str) -> Identity | None:
        """Return what the storage is to be; None: nothing is recorded."""

    def record(self, node: str, storage: str, found: Identity) -> None:
        """Keep what the storage is from now on. Durable on return. Raises StoreError."""


def is_certain(found: Identity) -> bool:
    """Return whether the facts distinguish it from every other storage."""
    return bool(found.keys() - UNCERTAIN)


def is_same(was: Identity, now: Identity) -> bool:
    """Return whether it is the same storage, by the facts that are known of both.

    A user or kernel that shows fewer facts makes no other storage of it, unless none is left that
    would prove it.
    """
    common = {name for name in was if name in now}
    proved = bool(common - UNCERTAIN) or not is_certain(was)
    return bool(common) and proved and all(was[name] == now[name] for name in common)


def show(found: Identity) -> str:
    """Return the facts for people."""
    return ", ".join(f"{name} {text}" for name, text in found.items()) or "not known"


def change(storage: str, was: Identity, now: Identity) -> str:
    """Return the sentence that says that a storage is another one."""
    what = "file system" if _FILE_SYSTEM & was.keys() else "storage"
    return f"storage {storage} is not the {what} it was (was {show(was)}, is {show(now)})"


def token(found: Identity) -> str:
    """Return a short digest, for the fingerprints of its results."""
    text = json.dumps(dict(found), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


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
