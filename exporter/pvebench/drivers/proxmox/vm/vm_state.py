"""State of VMs at the API, without an ownership check: configuration, volumes, pool, rights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pvebench.drivers.proxmox.api.connection import Api, version_number
from pvebench.drivers.proxmox.api.faults import INIT, Rejected
from pvebench.drivers.proxmox.api.privileges import missing_rights, privileges_in
from pvebench.errors import AccessDenied
from pvebench.model.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class VmPlace:
    """Node, pool and VM IDs for VMs and containers.

    Attributes:
        vmids: first and last VM ID to try.
    """

    node: str
    pool: str
    vmids: tuple[int, int]


@dataclass(frozen=True, slots=True)
class VmConfig:
    """VM configuration.

    Attributes:
        values: key -> effective value, including the digest.
        waiting: key -> entry of each pending change.
    """

    values: Mapping[str, Any]
    waiting: Mapping[str, Any]


def read_config(api: Api, path: str) -> VmConfig:
    """Return the configuration of the VM at `path`, without an ownership check."""
    rows = api.get(f"{path}/pending")
    return VmConfig(
        values={str(row["key"]): row["value"] for row in rows if "value" in row},
        waiting={str(row["key"]): row for row in rows if "pending" in row or "delete" in row},
    )


def refuse_without_rights(api: Api, pool: str) -> None:
    """Check missing rights after a rejected call; without one, make no request.

    A VM that the token may not see seems to be gone: each case would create another one.

    Raises AccessDenied: the right is still missing, so nothing may be created or started.
    """
    if not api.refused:
        return
    table = api.get("/access/permissions")
    missing = missing_rights(table, pool=pool, major=version_number(api)[0])
    if lacking := [entry for entry in missing if privileges_in(entry) & api.refused]:
        raise AccessDenied(
            f"the token lacks {'; '.join(lacking)}",
            cause="a role of the token or its user was changed, or the cluster was upgraded",
            next_step=f"run `{INIT}`",
        )
    api.refused.clear()


def node_time(api: Api, node: str, clock: Clock) -> float:
    """Return the node's time, Unix seconds; this machine's time if the token lacks the right."""
    try:
        return float(api.get(f"/nodes/{node}/time")["time"])
    except (AccessDenied, Rejected):
        return clock.now().timestamp()


def active_storages(api: Api, node: str, content: str | None = None) -> list[str]:
    """Return the storages of the node whose content can be listed and removed."""
    rows = api.get(f"/nodes/{node}/storage", content=content, enabled=1)
    return [str(row["storage"]) for row in rows if row.get("active")]


def listed_volumes(api: Api, node: str, vmid: int) -> set[str]:
    """Return the volumes on all storages of the node that are named after the VM ID."""
    volids: set[str] = set()
    for storage in active_storages(api, node, "images"):
        path = f"/nodes/{node}/storage/{storage}/content"
        volids |= {str(row["volid"]) for row in api.get(path, content="images", vmid=vmid)}
    return volids


def pool_members(api: Api, pool: str) -> set[int]:
    """Return the IDs of the VMs in a pool."""
    members = api.get(f"/pools/{pool}")["members"]
    return {int(member["vmid"]) for member in members if "vmid" in member}
