"""VMs and storages of a cluster, as an audit of their disks reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedVm:
    """A VM.

    Attributes:
        config: key -> current value.
        pending: key -> value that waits for a cold start; empty: it is removed.
    """

    node: str
    vmid: int
    name: str
    config: Mapping[str, str]
    pending: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCluster:
    """What the token may see.

    Attributes:
        storages: ID -> its options; `type` is always there. Empty: they could not be read.
        names: ID of a storage -> its names in packs.
        unread: what could not be read, with the reason.
    """

    vms: tuple[AuditedVm, ...]
    storages: Mapping[str, Mapping[str, str]]
    names: Mapping[str, tuple[str, ...]]
    unread: tuple[str, ...] = ()

    def absence(self, storage: str, node: str) -> str:
        """Return why the VMs of a node cannot use a storage; empty: they can."""
        row = self.storages.get(storage)
        if row is None:
            return "does not exist, or the token cannot see it" if self.storages else ""
        if row.get("disable") == "1":
            return "is disabled"
        nodes = row.get("nodes", node).replace(" ", "").split(",")
        return "" if node in nodes else f"is not available on node {node}"
