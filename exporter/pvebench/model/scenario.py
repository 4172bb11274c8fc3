"""Scenario: one fully resolved configuration on a node, with a readable, stable slug."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property

from pvebench.model.disk import DEVICE_OPTIONS, VOLUME_OPTIONS, Disk, HostCache, Layout, option_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The benchmark VM around the test disk. A change needs a restart of the VM."""

    memory_bytes: int
    cpus: int


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One configuration that is measured. What follows from it is worked out once.

    Attributes:
        node: the Proxmox node, or the lab machine's name.
        storage: the storage's id.
        disk: the test disk's options.
        machine: the VM around it.
        volume_bytes: size of the test volume.
        layout: what the guest has on the disk.
        host_cache: what is done about the host's page cache, in modes that use it.
        identity: digest of which storage it is; empty: the one that it was at first.
    """

    node: str
    storage: str
    disk: Disk
    machine: Machine
    volume_bytes: int
    layout: Layout = field(default_factory=Layout)
    host_cache: HostCache = HostCache.DROPPED
    identity: str = ""

    @property
    def cooled(self) -> HostCache | None:
        """What must be done with the volume itself before each run; None: nothing."""
        by_us = (HostCache.REWRITTEN, HostCache.REOPENED)
        return self.host_cache if self.host_cache in by_us and not self.disk.cache.direct else None

    @property
    def _treated(self) -> dict[str, str]:
        """What moves numbers and is not the default; past the cache it does not matter."""
        default = self.disk.cache.direct or self.host_cache is HostCache.DROPPED
        return {} if default else {"host_cache": str(self.host_cache)}

    @cached_property
    def slug(self) -> str:
        """`storage.bus.format.cache`, then `.key-value` for what differs from the defaults."""
        disk = self.disk
        head = [self.storage, disk.bus, disk.format, disk.cache]
        different = [*disk.differences(), *self.layout.differences()]
        tail = [f"{key}-{value}" for key, value in different]
        return ".".join([*head, *tail])

    @cached_property
    def host_slug(self) -> str:
        """Slug of the host's own row on this storage: the same settings of the device below."""
        tail = [f".{key}-{value}" for key, value in self.disk.differences(DEVICE_OPTIONS)]
        return "".join([f"{self.storage}.host.raw.none", *tail])

    @cached_property
    def volume(self) -> str:
        """What volume it needs: scenarios with the same answer share one."""
        own = [f"{key}-{value}" for key, value in self.disk.differences(VOLUME_OPTIONS)]
        return ".".join([self.storage, self.disk.format, *own])

    def labels(self) -> dict[str, str]:
        """Return the labels that every result of this scenario carries."""
        return {
            "node": self.node,
            "storage": self.storage,
            "bus": str(self.disk.bus),
            "cache": str(self.disk.cache),
            "format": str(self.disk.format),
            "scenario": self.slug,
        }

    def meaning(self) -> dict[str, str]:
        """Return everything that the slug stands for, as text, for info metrics and records."""
        options = {**asdict(self.disk), **asdict(self.layout)}
        return {
            **{key: option_text(value) for key, value in options.items()},
            "memory_bytes": str(self.machine.memory_bytes),
            "cpus": str(self.machine.cpus),
            "volume_bytes": str(self.volume_bytes),
            **self._treated,
            **({"storage_identity": self.identity} if self.identity else {}),
        }

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the whole meaning: results compare only where it is equal.

        Options at their defaults are left out, so that an option that a later pvebench learns
        does not end the histories of those who do not use it.
        """
        disk = self.disk
        named = {"bus": disk.bus, "format": disk.format, "cache": disk.cache}
        sizes = [self.volume_bytes, self.machine.memory_bytes, self.machine.cpus]
        layout = asdict(self.layout) if self.layout.on_filesystem else {}
        for default in ("fill_passes", "fill_compress"):
            layout.pop(default, None)
        meaning = [self.node, self.storage, named, dict(disk.differences()), layout, sizes]
        meaning += [self.layout.filled] if self.layout.filled else []
        meaning += [self._treated] if self._treated else []
        meaning += [{"storage_identity": self.identity}] if self.identity else []
        text = json.dumps(meaning, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
