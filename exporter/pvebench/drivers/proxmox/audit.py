"""Reader of all VMs of a cluster, for `pvebench advise --vms`. It only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import INIT
from pvebench.drivers.proxmox.api.privileges import missing_audit_rights
from pvebench.drivers.proxmox.vm.description import mark_of
from pvebench.errors import AccessDenied, DriverError, ServerGone
from pvebench.model.audit import AuditedCluster, AuditedVm
from pvebench.model.ports import Clock

_PAUSE_SECONDS: Final = 0.2
"""Between two VMs: each of a node's three API workers handles one request at a time."""


def read_cluster(api: Api, clock: Clock, names: Mapping[str, Sequence[str]]) -> AuditedCluster:
    """Return all VMs except those of pvebench, with one request for each.

    Args:
        names: ID of a storage -> its names in packs.

    Raises AccessDenied: rights of `proxmox init --with-advice` are missing. Others as `Api`.
    """
    if missing := missing_audit_rights(api.get("/access/permissions")):
        raise AccessDenied(
            f"the token lacks {'; '.join(missing)}",
            cause="an audit reads all VMs, which a benchmark may not",
            next_step=f"run `{INIT} --with-advice`",
        )
    vms: list[AuditedVm] = []
    unread: list[str] = []
    silent: set[str] = set()
    for row in api.get("/cluster/resources", type="vm"):
        if row.get("type") != "qemu" or row.get("template"):
            continue
        if row["node"] in silent and row.get("status") == "unknown":
            unread.append(f"VM {row['vmid']}: node {row['node']} does not respond")
            continue
        try:
            vm = _read_vm(api, row)
            vms += [] if mark_of(vm.config) else [vm]
        except DriverError as error:  # moved or removed since the list, no access, or no response
            unread.append(f"VM {row['vmid']}: {error.happened}")
            silent |= {row["node"]} if isinstance(error, ServerGone) else set()
        clock.sleep(_PAUSE_SECONDS)
    return AuditedCluster(
        vms=tuple(sorted(vms, key=lambda audited_vm: audited_vm.vmid)),
        storages={str(row["storage"]): _texts(row) for row in api.get("/storage")},
        names={key: tuple(own) for key, own in names.items()},
        unread=tuple(unread),
    )


def _read_vm(api: Api, row: Mapping[str, Any]) -> AuditedVm:
    keys = api.get(f"/nodes/{row['node']}/qemu/{row['vmid']}/pending")
    config = {str(key["key"]): str(key["value"]) for key in keys if "value" in key}
    return AuditedVm(
        node=str(row["node"]),
        vmid=int(row["vmid"]),
        name=config.get("name", ""),
        config=config,
        pending={
            str(row["key"]): str(row.get("pending", ""))
            for row in keys
            if "pending" in row or "delete" in row
        },
    )


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in row.items()}
