"""Which storage it is: what distinguishes it from another that later has its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final, Protocol

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
