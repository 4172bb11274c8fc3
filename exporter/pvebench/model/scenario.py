"""Scenario: one fully resolved configuration on a node, with a readable, stable slug."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from pvebench.model.disk import Disk, option_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The benchmark VM around the test disk. A change needs a restart of the VM."""

    memory_bytes: int
    cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One configuration that is measured.

    Attributes:
        node: the Proxmox node, or the lab machine's name.
        storage: the storage's id.
        disk: the test disk's options.
        machine: the VM around it.
        volume_bytes: size of the test volume.
    """

    node: str
    storage: str
    disk: Disk
    machine: Machine
    volume_bytes: int

    @property
    def slug(self) -> str:
        """`storage.bus.format.cache`, then `.key-value` for what differs from the defaults."""
        disk = self.disk
        head = [self.storage, disk.bus, disk.format, disk.cache]
        tail = [f"{key}-{value}" for key, value in disk.differences()]
        return ".".join([*head, *tail])

    @property
    def volume(self) -> str:
        """What volume it needs: scenarios with the same answer share one filled volume."""
        return f"{self.storage}.{self.disk.format}"

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
        options = {key: option_text(value) for key, value in asdict(self.disk).items()}
        return {
            **options,
            "memory_bytes": str(self.machine.memory_bytes),
            "cpus": str(self.machine.cpus),
            "volume_bytes": str(self.volume_bytes),
        }

    @property
    def fingerprint(self) -> str:
        """Digest of the whole meaning: results compare only where it is equal."""
        text = json.dumps([self.node, self.storage, self.meaning()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
