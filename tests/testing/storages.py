"""Contexts of storages, by the keys of their settings, and what the host measures on them."""

from __future__ import annotations

from typing import Any

from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import StorageContext
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.units import MIB


def storage_context(
    *, name: str, kind: str, owner: str = "", **keys: object
) -> StorageContext[Any]:
    """Return the context of a storage of this kind, with these keys of its settings."""
    settings = KINDS[kind].settings.model_validate({"kind": kind, **keys})
    return StorageContext(name=name, owner=owner, settings=settings)


def host_row(size: int, node: str = "lab", storage: str = "local", **options: Any) -> Scenario:
    """Return a scenario of the host on a volume of `size` bytes, with these options of its disk."""
    disk = Disk(bus=Bus.HOST, format=Format.RAW, cache=Cache.NONE, **options)
    machine = Machine(memory_bytes=MIB, cpus=1)
    return Scenario(node=node, storage=storage, disk=disk, machine=machine, volume_bytes=size)
