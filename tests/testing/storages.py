"""Contexts of storages, by the keys of their settings."""

from __future__ import annotations

from typing import Any

from pvebench.drivers.storages import KINDS
from pvebench.drivers.storages.contract import StorageContext


def storage_context(
    *, name: str, kind: str, owner: str = "", **keys: object
) -> StorageContext[Any]:
    """Return the context of a storage of this kind, with these keys of its settings."""
    settings = KINDS[kind].settings.model_validate({"kind": kind, **keys})
    return StorageContext(name=name, owner=owner, settings=settings)
