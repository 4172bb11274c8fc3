"""VMs and storages of a cluster, as an audit of their disks reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedVm:
    """A VM.

    Attributes:
        config: key -> current value.
        pending: keys whose change waits for a cold start.
    """

    node: str
    vmid: int
    name: str
    config: Mapping[str, str]
    pending: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCluster:
    """What the token may see.

    Attributes:
        storages: ID -> its options; `type` is always there.
        names: ID of a storage -> its names in packs.
        unread: VMs that could not be read, with the reason.
    """

    vms: tuple[AuditedVm, ...]
    storages: Mapping[str, Mapping[str, str]]
    names: Mapping[str, tuple[str, ...]]
    unread: tuple[str, ...] = ()
