"""Durability of a configuration: which writes survive a killed QEMU and a loss of power."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from pvebench.model.definition import Definition


class Barrier(StrEnum):
    """What the guest does after its writes."""

    NONE = "none"
    FLUSH = "flush"
    FUA = "fua"
    """Each write must be on the disk before it completes."""


class Touch(StrEnum):
    """Whether the guest writes a block for the first time or again."""

    FIRST = "first"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Records of one kind: `written` were completed to the guest, `found` were read back."""

    sync: Barrier
    touch: Touch
    written: int
    found: int

    @property
    def lost(self) -> int:
        """Records that are missing although the guest's flush completed."""
        return 0 if self.sync is Barrier.NONE else self.written - self.found


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """Measured durability of a configuration on a storage.

    Attributes:
        configuration: `durability_key` of the disk.
        qemu: QEMU's version.
        killed: records after SIGKILL of QEMU.
        power: records in the state that a loss of power guarantees: the writes that QEMU flushed.
            Empty: not measured, as the driver has no log of a volume's writes.
        torn: blocks with neither the new nor the old content, after SIGKILL.
        damaged: images with errors by `qemu-img check`, after SIGKILL or a loss of power.
        requested, flushed: flushes of the guest, and those that reached the volume; without
            `power`, the latter are not counted.
        states: simulated losses of power with some of the later writes; `broken`: those of them
            in which a flushed record is missing.
    """

    node: str
    storage: str
    configuration: str
    qemu: str
    finished: datetime
    killed: tuple[Survival, ...]
    power: tuple[Survival, ...]
    torn: int
    damaged: int
    requested: int
    flushed: int
    states: int
    broken: int

    @property
    def lost_killed(self) -> int:
        """Flushed records lost with QEMU, plus torn blocks and damaged images."""
        return sum(survival.lost for survival in self.killed) + self.torn + self.damaged

    @property
    def lost_power(self) -> int:
        """Flushed records that a loss of power may lose."""
        return sum(survival.lost for survival in self.power) + self.broken

    @property
    def durable(self) -> bool:
        """Whether no flushed record was lost. Without `power`, it covers a killed QEMU only."""
        return not self.lost_killed and not self.lost_power

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps({**asdict(self), "finished": self.finished.isoformat()})

    @classmethod
    def from_json(cls, text: str) -> Durability:
        """Return the result of `to_json`."""
        data = json.loads(text)
        for kind in ("killed", "power"):
            data[kind] = tuple(
                Survival(**row | {"sync": Barrier(row["sync"]), "touch": Touch(row["touch"])})
                for row in data[kind]
            )
        return cls(**{**data, "finished": datetime.fromisoformat(data["finished"])})


class Durable(StrEnum):
    """Whether flushed data survives a killed QEMU and a loss of power."""

    MEASURED = "measured"
    """By `pvebench durability` on this storage."""
    BY_DESIGN = "by design"
    """As Proxmox VE documents the cache mode; not measured."""
    NO = "no"
    """By measurement, or because the cache mode or the storage ignores flushes."""


@dataclass(frozen=True, slots=True)
class KnownDurability:
    """What is known of durability.

    Attributes:
        measured: (node, storage, `durability_key`) -> its newest measured durability.
        unflushed: (node, storage) whose options ignore flushes.
    """

    measured: Mapping[tuple[str, str, str], Durability] = field(default_factory=dict)
    unflushed: Collection[tuple[str, str]] = ()

    def ignores_flushes(self, definition: Definition) -> bool:
        """Return whether options of the storage, which the volume does not override, do."""
        place = (definition.node, definition.storage)
        return place in self.unflushed and not definition.options.get("sync")


NOTHING_KNOWN: Final = KnownDurability()


def measured_of(definition: Definition, durability: KnownDurability) -> Durability | None:
    """Return the measured durability of a configuration; None: not measured."""
    if not durability.measured:
        return None
    place = (definition.node, definition.storage)
    return durability.measured.get((*place, durability_key(definition.options)))


def durable_of(definition: Definition, durability: KnownDurability) -> Durable:
    """Return whether a configuration is durable: the one answer for all outputs."""
    if durability.ignores_flushes(definition):
        return Durable.NO
    return durable_by(definition, measured_of(definition, durability))


def durable_by(definition: Definition, measured: Durability | None) -> Durable:
    """Return the same from its measured durability; None: not measured."""
    if definition.ignores_flushes or (measured and not measured.durable):
        return Durable.NO
    return Durable.MEASURED if measured and measured.power else Durable.BY_DESIGN


def durability_key(options: Mapping[str, str]) -> str:
    """Return the options that durability depends on: `qcow2.preallocation-off.none`.

    Args:
        options: of a disk, as text.
    """
    parts = [options["format"]]
    if options.get("backing") == "1":
        parts.append("backing")
    elif options.get("chain", "0") != "0":
        parts.append("chain")
    elif parts == ["qcow2"] and options.get("preallocation") == "off":
        parts.append("preallocation-off")
    return ".".join([*parts, options["cache"]])
