"""Test volume, its attachment, and the storage's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Protocol

from pvebench.model.disk import Disk
from pvebench.model.scenario import Scenario

# --- identity of a storage, as distinct from a later one of the same name

Identity = Mapping[str, str]
"""Fact -> text, such as `type`, `uuid`, `serial`. Empty: the storage cannot be identified."""
UNCERTAIN: Final = frozenset(
    {
        *("type", "source", "file", "partition", "start", "model", "transport"),
        *("path", "subdir", "pool", "data-pool", "namespace", "vgname", "thinpool", "drive"),
    }
)
"""Facts that several storages may have in common: only a difference is evidence."""
UNSEEN: Final = "drive not visible through the API"
"""Text of a fact that is unknown for now."""
_FILE_SYSTEM: Final = frozenset({"fsid", "uuid", "source", "share"})


class IdentityRecords(Protocol):
    """Record of the storage that the results of a name are from."""

    def recorded(self, node: str, storage: str) -> Identity | None:
        """Return the recorded identity; None: none."""

    def record(self, node: str, storage: str, identity: Identity) -> None:
        """Record the storage's identity. Durable on return. Raises StoreError."""


def is_certain(identity: Identity) -> bool:
    """Return whether the facts distinguish the storage from every other one."""
    return bool(identity.keys() - UNCERTAIN)


def is_same(was: Identity, now: Identity) -> bool:
    """Return whether both are the same storage, by the facts that both have.

    Fewer facts, as for another user or kernel, do not make another storage, unless no fact that
    could prove it is left.
    """
    common = {name for name in was if name in now and UNSEEN not in {was[name], now[name]}}
    proved = bool(common - UNCERTAIN) or not is_certain(was)
    return bool(common) and proved and all(was[name] == now[name] for name in common)


def show(identity: Identity) -> str:
    """Return the facts for people."""
    texts = (one if one == UNSEEN else f"{name} {one}" for name, one in identity.items())
    return ", ".join(texts) or "not known"


def device_text(identity: Identity) -> str:
    """Return model, end of the serial number, file system and transport; empty: unknown."""
    ends = " ".join(f"…{serial[-4:]}" for serial in identity.get("serial", "").split())
    parts = (
        identity.get("model", "") or identity.get("drive", ""),
        f"serial {ends}" if ends else "",
        identity.get("type", ""),
        identity.get("transport", "") or identity.get("share", ""),
    )
    return ", ".join(part for part in parts if part)


def change(storage: str, was: Identity, now: Identity) -> str:
    """Return the message for a storage that is another one than before."""
    what = "file system of storage" if _FILE_SYSTEM & was.keys() else "storage"
    return f"{what} {storage} changed (was {show(was)}, is {show(now)})"


def token(identity: Identity) -> str:
    """Return a short digest, for the fingerprints of its results."""
    text = json.dumps(dict(identity), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Existing test volume with pvebench's ownership marker.

    Attributes:
        volid: the storage's name for it; in a directory, its path.
        complete: whether it has data everywhere from the start (a linked clone): a fill would
            replace it.
        local: whether it is a file or device of this machine, so that QEMU's I/O to it is block
            I/O here; false if QEMU accesses a server over the network.
        offset_bytes: its begin within the object that `volid` names.
    """

    storage: str
    volid: str
    format: str
    size_bytes: int
    complete: bool = False
    local: bool = True
    offset_bytes: int = 0

    @classmethod
    def of(cls, scenario: Scenario, volid: str, **more: Any) -> Volume:
        """Return the volume of a scenario; `more`: further attributes, if not the defaults."""
        form, size = str(scenario.disk.format), scenario.volume_bytes
        return cls(storage=scenario.storage, volid=volid, format=form, size_bytes=size, **more)


@dataclass(frozen=True, slots=True)
class Plug:
    """Volume and the options to attach it with."""

    volume: Volume
    disk: Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Effective configuration of a disk, read back from hypervisor and guest after the switch.

    Attributes:
        device: the block device's path in the guest.
        effective: option -> value as read back, in the terms of `Disk` (`bus`, `cache` …).
        unverified: options that cannot be read back.
        raw: the hypervisor's responses, for the evidence.
        offset_bytes: the volume's begin on the device.
        scratch: directory on the storage for tools that create files; empty: none.
        work: directory for jobs and their output; empty: the guest's usual one.
        conditions: conditions of the storage at that time: metric -> share.
    """

    device: str
    effective: Mapping[str, str]
    unverified: tuple[str, ...] = ()
    raw: str = ""
    offset_bytes: int = 0
    scratch: str = ""
    work: str = ""
    conditions: Mapping[str, float] = field(default_factory=dict)


_TIMED: Final = ("rd_total", "wr_total", "flush_total", "unmap_total", "idle")
QEMU_TIMES: Final = [f"{name}_time_ns" for name in _TIMED]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounters:
    """QEMU's counters of the test disk since it was attached."""

    read_operations: int = 0
    write_operations: int = 0
    flush_operations: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    unmap_operations: int = 0
    unmap_bytes: int = 0
    latency_seconds: float = 0.0
    """Sum of the latencies of all operations; 0 if unknown."""
    idle_seconds: float = field(default=0.0, compare=False)
    """Time since the last operation; 0 if unknown."""

    @property
    def operations(self) -> int:
        """All operations that move or discard data."""
        return self.read_operations + self.write_operations + self.unmap_operations

    @classmethod
    def of_qemu(cls, row: Mapping[str, Any]) -> BlockCounters:
        """Return the counters of a disk in QEMU's statistics."""
        *latencies, idle = (int(row.get(key) or 0) / 1e9 for key in QEMU_TIMES)
        return cls(
            read_operations=int(row["rd_operations"]),
            write_operations=int(row["wr_operations"]),
            flush_operations=int(row["flush_operations"]),
            read_bytes=int(row["rd_bytes"]),
            write_bytes=int(row["wr_bytes"]),
            unmap_operations=int(row.get("unmap_operations") or 0),
            unmap_bytes=int(row.get("unmap_bytes") or 0),
            latency_seconds=sum(latencies),
            idle_seconds=idle,
        )

    def since(self, before: BlockCounters) -> BlockCounters:
        """Return the difference from `before`."""
        return replace(
            self, **{name: getattr(self, name) - getattr(before, name) for name in _COUNTED}
        )


_COUNTED: Final = [each.name for each in fields(BlockCounters) if each.compare]


def sum_of(counters: Iterable[BlockCounters]) -> BlockCounters:
    """Return the sum of several devices' counters."""
    every = list(counters)
    return BlockCounters(
        **{name: sum(getattr(device, name) for device in every) for name in _COUNTED},
        idle_seconds=min((device.idle_seconds for device in every), default=0.0),
    )
