"""Cut what tests need of Proxmox VE's recorded API schema: `python -m pve.schema_excerpt FULL…`.

FULL is a `schema-8.json` or `schema-9.json` as generated from Proxmox's own sources; what is cut
out of it lies beside this file under the same name. Nothing is changed but the selection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ENDPOINTS = """
DELETE /access/roles/{roleid}
DELETE /access/users/{userid}
DELETE /access/users/{userid}/token/{tokenid}
DELETE /nodes/{node}/qemu/{vmid}
DELETE /nodes/{node}/qemu/{vmid}/snapshot/{snapname}
DELETE /nodes/{node}/storage/{storage}/content/{volume}
DELETE /nodes/{node}/tasks/{upid}
DELETE /pools
GET /access/acl
GET /access/permissions
GET /access/roles
GET /access/roles/{roleid}
GET /access/users
GET /access/users/{userid}/token
GET /access/users/{userid}/token/{tokenid}
GET /cluster/backup
GET /cluster/nextid
GET /cluster/resources
GET /cluster/status
GET /nodes
GET /nodes/{node}/apt/versions
GET /nodes/{node}/disks/list
GET /nodes/{node}/disks/zfs
GET /nodes/{node}/disks/zfs/{name}
GET /nodes/{node}/qemu
GET /nodes/{node}/qemu/{vmid}/agent/exec-status
GET /nodes/{node}/qemu/{vmid}/agent/file-read
GET /nodes/{node}/qemu/{vmid}/agent/info
GET /nodes/{node}/qemu/{vmid}/config
GET /nodes/{node}/qemu/{vmid}/pending
GET /nodes/{node}/qemu/{vmid}/snapshot
GET /nodes/{node}/qemu/{vmid}/status/current
GET /nodes/{node}/replication
GET /nodes/{node}/status
GET /nodes/{node}/storage
GET /nodes/{node}/storage/{storage}/content
GET /nodes/{node}/storage/{storage}/status
GET /nodes/{node}/tasks
GET /nodes/{node}/time
GET /nodes/{node}/tasks/{upid}/log
GET /nodes/{node}/tasks/{upid}/status
GET /nodes/{node}/version
GET /pools
GET /pools/{poolid}
GET /storage
GET /version
POST /access/roles
POST /access/ticket
POST /access/users
POST /access/users/{userid}/token/{tokenid}
POST /nodes/{node}/lxc
POST /nodes/{node}/qemu
POST /nodes/{node}/qemu/{vmid}/agent/exec
POST /nodes/{node}/qemu/{vmid}/agent/file-write
POST /nodes/{node}/qemu/{vmid}/agent/ping
POST /nodes/{node}/qemu/{vmid}/clone
POST /nodes/{node}/qemu/{vmid}/config
POST /nodes/{node}/qemu/{vmid}/monitor
POST /nodes/{node}/qemu/{vmid}/move_disk
POST /nodes/{node}/qemu/{vmid}/snapshot
POST /nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback
POST /nodes/{node}/qemu/{vmid}/status/start
POST /nodes/{node}/qemu/{vmid}/status/stop
POST /nodes/{node}/storage/{storage}/content
POST /nodes/{node}/storage/{storage}/upload
POST /nodes/{node}/vzdump
POST /pools
PUT /access/acl
PUT /access/roles/{roleid}
PUT /access/users/{userid}/token/{tokenid}
PUT /nodes/{node}/qemu/{vmid}/config
PUT /pools
""".strip().splitlines()
"""What the driver calls, what `init`'s commands on a node call, what tests ask for as an admin."""

BY_HAND = {
    "GET /nodes/{node}/ceph/status": {
        "allowtoken": 1,
        "parameters": {"node": {"format": "pve-node", "type": "string"}},
        "permissions": {"check": ["perm", "/", ["Sys.Audit", "Datastore.Audit"], "any", 1]},
    }
}
"""What the generated schemas lack: the permission is that of PVE/API2/Ceph.pm in pve-manager, and
of the recorded refusal (`Permission check failed (/, Sys.Audit|Datastore.Audit)`)."""

ROLES = ("Administrator", "PVEAuditor", "PVEVMAdmin")


def cut(full: Mapping[str, Any]) -> dict[str, Any]:
    """Return the excerpt of a whole schema."""
    endpoints = {
        name: {
            "allowtoken": found.get("allowtoken"),
            "parameters": found["parameters"].get("properties", {}),
            "permissions": found.get("permissions"),
        }
        for name in ENDPOINTS
        for found in [full["endpoints"][name]]
    } | BY_HAND
    rules = [rule for found in endpoints.values() for rule in found["parameters"].values()]
    formats = full["formats"]
    return {
        "endpoints": endpoints,
        "formats": {name: formats[name] for name in sorted(set(_needed(rules, formats)))},
        "option_privileges": full["hand_made"]["qemu_option_privileges"],
        "roles": {name: full["builtin_roles"][name] for name in ROLES},
        "source": f"Excerpt of the API schema of Proxmox VE, generated from its own sources "
        f"({full['meta']['target']}): the endpoints that are called, the formats of their "
        "parameters, three built-in roles.",
    }


def _needed(rules: Iterable[Mapping[str, Any]], formats: Mapping[str, Any]) -> Iterator[str]:
    """Yield every format that rules name, and those that these name in turn."""
    for rule in rules:
        name = str(rule.get("format", ""))
        name = name.removesuffix("-list").removesuffix("-opt")
        if name in formats:
            yield name
            yield from _needed(formats[name].get("properties", {}).values(), formats)


if __name__ == "__main__":
    for given in map(Path, sys.argv[1:]):
        text = json.dumps(cut(json.loads(given.read_text("utf-8"))), indent=1, sort_keys=True)
        Path(__file__).with_name(given.name).write_text(f"{text}\n", "utf-8")
