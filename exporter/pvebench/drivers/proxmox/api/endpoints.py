"""Every request of the driver: parameters, required shape of its response, privileges.

Responses are checked here once: a field that is missing or of another type is one error that
names it. The tests compare this list with the recorded schema, and their server rejects requests
that this list does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.ceph_state import STATUS as CEPH_STATUS
from pvebench.drivers.responses import (
    Shape,
    anything,
    fields,
    kind_of,
    number,
    rows,
    table,
    text,
    whole,
)
from pvebench.model.buses import BUSES

_UPID: Final = re.compile(r"UPID:[A-Za-z0-9-]{1,63}:([0-9A-Fa-f]+:){3}[^:\s/]*:[^:/]*:[^\s:/]+:\Z")


def task(value: Any) -> str:
    """Check a task ID."""
    good = isinstance(value, str) and _UPID.match(value)
    return "" if good else f"{kind_of(value)}, not a task"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Request of the driver.

    Attributes:
        answer: shape of the response.
        sends: names of the parameters, as in the API's schema; `scsi[n]` stands for a family.
        most_bytes: maximum size of the response.
    """

    method: str
    path: str
    answer: Shape
    sends: tuple[str, ...] = ()
    most_bytes: int = 8 << 20


_VM: Final = "/nodes/{node}/qemu/{vmid}"
_SLOTS: Final = tuple(sorted(f"{name}[n]" for name, bus in BUSES.items() if bus.slots))
_PRESSURES: Final = {
    f"pressure{name}_": number
    for name in ("cpusome", "iosome", "iofull", "memorysome", "memoryfull")
}
_VM_OPTIONS: Final = (
    "agent",
    "balloon",
    "boot",
    "cores",
    "cpu",
    "description",
    "hotplug",
    "kvm",
    "machine",
    "memory",
    "name",
    "onboot",
    "ostype",
    "scsihw",
    "serial[n]",
    "tablet",
    "tags",
    "vcpus",
    "vga",
    *_SLOTS,
)


def _endpoint(
    method: str, path: str, answer: Shape, sends: str = "", most_bytes: int = 8 << 20
) -> Endpoint:
    return Endpoint(method, path, answer, tuple(sends.split()), most_bytes)


_DRIVE: Final = fields(
    devpath=text, wearout_=anything, parent_=text, used_=text, model_=text, serial_=text, type_=text
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    # access rights, with an administrator's login: `init` and `setup`
    _endpoint("GET", "/access/permissions", table(table(number))),
    _endpoint("GET", "/access/roles", rows(fields(roleid=text, privs_=text))),
    _endpoint("POST", "/access/roles", anything, "roleid"),
    _endpoint("PUT", "/access/roles/{roleid}", anything, "privs"),
    _endpoint("GET", "/access/users", rows(fields(userid=text))),
    _endpoint("POST", "/access/users", anything, "userid"),
    _endpoint("GET", "/access/users/{userid}/token", rows(fields(tokenid=text, privsep_=number))),
    _endpoint("POST", "/access/users/{userid}/token/{tokenid}", fields(value=text), "privsep"),
    _endpoint("PUT", "/access/users/{userid}/token/{tokenid}", anything, "privsep"),
    _endpoint("DELETE", "/access/users/{userid}/token/{tokenid}", anything),
    _endpoint(
        "GET", "/access/acl", rows(fields(path=text, ugid=text, roleid=text, propagate_=number))
    ),
    _endpoint("PUT", "/access/acl", anything, "path roles users tokens propagate delete"),
    _endpoint(
        "POST",
        "/access/ticket",
        fields(ticket=text, CSRFPreventionToken_=text),
        "username password tfa-challenge",
    ),
    _endpoint("GET", "/pools", rows(fields(poolid=text))),
    _endpoint(
        "GET",
        "/pools/{poolid}",
        fields(members=rows(fields(id_=text, type_=text, vmid_=number, node_=text, storage_=text))),
    ),
    _endpoint("POST", "/pools", anything, "poolid"),
    _endpoint("PUT", "/pools", anything, "poolid storage delete"),
    # nodes and their activity
    _endpoint("GET", "/version", fields(version=text)),
    _endpoint("GET", "/nodes", rows(fields(node=text, status_=text))),
    _endpoint("GET", "/nodes/{node}/version", fields(version=text)),
    _endpoint("GET", "/nodes/{node}/time", fields(time=whole)),
    _endpoint(
        "GET",
        "/nodes/{node}/status",
        fields(
            current__kernel_=fields(release_=text),
            cpuinfo_=fields(model_=text, cpus_=number),
            cpu_=number,
            wait_=number,
            memory_=fields(total=whole, used=whole),
        ),
    ),
    _endpoint("GET", "/nodes/{node}/apt/versions", rows(fields(Package=text, OldVersion_=text))),
    _endpoint(
        "GET",
        "/nodes/{node}/tasks",
        rows(
            fields(upid=text, type_=text, status_=text, id_=anything, starttime=whole, pstart=whole)
        ),
        "source limit vmid typefilter since",
    ),
    _endpoint("DELETE", "/nodes/{node}/tasks/{upid}", anything),
    _endpoint("GET", "/nodes/{node}/tasks/{upid}/status", fields(status=text, exitstatus_=text)),
    _endpoint("GET", "/nodes/{node}/tasks/{upid}/log", rows(fields(t=text)), "start limit"),
    _endpoint("GET", "/nodes/{node}/replication", rows(fields(guest_=anything, pid_=anything))),
    _endpoint("GET", "/nodes/{node}/disks/zfs", rows(fields(name=text, frag_=number))),
    _endpoint("GET", "/nodes/{node}/disks/zfs/{name}", fields(scan_=text)),
    _endpoint("GET", "/nodes/{node}/disks/list", rows(_DRIVE), "include-partitions skipsmart"),
    _endpoint("GET", "/nodes/{node}/ceph/status", CEPH_STATUS),
    _endpoint(
        "GET",
        "/storage",
        rows(fields(storage=text, pool_=text, snapshot__as__volume__chain_=anything)),
        "type",
    ),
    _endpoint("GET", "/cluster/nextid", number, "vmid"),
    _endpoint(
        "GET",
        "/cluster/resources",
        rows(
            fields(
                type_=text,
                node_=text,
                status_=text,
                hastate_=text,
                vmid_=number,
                template_=number,
                lock_=text,
                tags_=text,
            )
        ),
        "type",
    ),
    # storages
    _endpoint(
        "GET",
        "/nodes/{node}/storage",
        rows(
            fields(
                storage=text,
                type=text,
                content_=text,
                active_=whole,
                enabled_=whole,
                avail_=whole,
                total_=whole,
                shared_=whole,
            )
        ),
        "content enabled format",
    ),
    _endpoint(
        "GET",
        "/nodes/{node}/storage/{storage}/status",
        fields(type_=text, active_=number, avail_=number),
    ),
    _endpoint(
        "GET",
        "/nodes/{node}/storage/{storage}/content",
        rows(fields(volid=text, size_=number, vmid_=number, format_=text, notes_=text)),
        "content vmid",
    ),
    _endpoint("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}", task),
    _endpoint("POST", "/nodes/{node}/storage/{storage}/content", text, "vmid filename size format"),
    _endpoint(
        "POST",
        "/nodes/{node}/storage/{storage}/upload",
        task,
        "content filename checksum checksum-algorithm",
    ),
    # the benchmark VM
    Endpoint(
        "POST",
        "/nodes/{node}/qemu",
        task,
        ("vmid", "pool", "archive", "storage", "force", "unique", *_VM_OPTIONS),
    ),
    _endpoint("DELETE", _VM, task, "purge"),
    _endpoint("GET", f"{_VM}/config", fields(digest_=text), "current"),
    Endpoint(
        "PUT", f"{_VM}/config", anything, ("delete", "digest", "force", "revert", *_VM_OPTIONS)
    ),
    _endpoint("GET", f"{_VM}/pending", rows(fields(key=text))),
    _endpoint(
        "GET",
        f"{_VM}/status/current",
        fields(
            status=text,
            qmpstatus_=text,
            lock_=text,
            blockstat_=table(
                fields(
                    rd_operations=number,
                    wr_operations=number,
                    flush_operations=number,
                    rd_bytes=number,
                    wr_bytes=number,
                    unmap_operations_=number,
                )
            ),
            running__qemu_=text,
            running__machine_=text,
            **_PRESSURES,
        ),
    ),
    _endpoint("POST", f"{_VM}/status/start", task),
    _endpoint("POST", f"{_VM}/status/stop", task),
    _endpoint("POST", f"{_VM}/monitor", text, "command"),
    # operations: with `init --with-operations`
    _endpoint("GET", f"{_VM}/snapshot", rows(fields(name=text))),
    _endpoint("POST", f"{_VM}/snapshot", task, "snapname description vmstate"),
    _endpoint("DELETE", f"{_VM}/snapshot/{{snapname}}", task),
    _endpoint("POST", f"{_VM}/snapshot/{{snapname}}/rollback", task),
    _endpoint("POST", f"{_VM}/move_disk", task, "disk storage bwlimit digest"),
    _endpoint(
        "POST",
        "/nodes/{node}/vzdump",
        task,
        "vmid storage mode compress remove lockwait notification-mode notes-template fleecing",
    ),
    # the guest
    _endpoint("POST", f"{_VM}/agent/ping", anything),
    _endpoint("POST", f"{_VM}/agent/exec", fields(pid=whole), "command input-data"),
    _endpoint(
        "GET",
        f"{_VM}/agent/exec-status",
        fields(exited=whole, exitcode_=whole, signal_=whole, out__data_=text, err__data_=text),
        "pid",
    ),
    _endpoint(
        "GET",
        f"{_VM}/agent/file-read",
        fields(content=text, bytes__read_=number),
        "file offset count",
        48 << 20,  # version 8 reads 16 MiB at once; some characters take several bytes
    ),
    _endpoint("POST", f"{_VM}/agent/file-write", anything, "file content encode"),
)


KEYS: Final = (
    *("id", "node", "storage", "volid", "vmid", "key", "name", "devpath", "Package", "upid"),
    *("path", "roleid", "userid", "tokenid", "poolid", "ugid"),
)
"""Members that sort the rows of a list. The server returns most lists in the order of a hash, which
differs between calls; the lines of a task's log have none of these members, and keep theirs."""


def ordered(answer: Any) -> Any:
    """Return a response with the rows of its list sorted."""
    if isinstance(answer, dict) and "members" in answer:  # of a pool
        return {**answer, "members": ordered(answer["members"])}
    if not isinstance(answer, list) or not all(isinstance(row, dict) for row in answer):
        return answer
    return sorted(answer, key=lambda row: [str(row.get(key, "")) for key in KEYS])


def _pattern(path: str) -> re.Pattern[str]:
    # Only volume names contain slashes, in the last part of these paths.
    named = re.escape(path).replace(r"\{volume\}", ".+")
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", named) + r"\Z")


_BY_METHOD: Final[Mapping[str, list[tuple[re.Pattern[str], Endpoint]]]] = {
    method: [(_pattern(entry.path), entry) for entry in ENDPOINTS if entry.method == method]
    for method in ("GET", "POST", "PUT", "DELETE")
}
_UNLISTED: Final = Endpoint("", "", anything)


def endpoint_of(method: str, path: str) -> Endpoint:
    """Return the entry for a request; for unlisted requests, one that accepts any response."""
    matches = (entry for pattern, entry in _BY_METHOD[method] if pattern.match(path))
    return next(matches, _UNLISTED)


# --- privileges, for `init`, `check` and tests


VM_ROLE: Final = "StorageBenchVM"
NODE_ROLE: Final = "StorageBenchNode"
"""Not prefixed with PVE: since 2023 the server reserves that prefix, in upper and lower case."""

TOKEN_NAME: Final = "bench"  # noqa: S105 # the token's public name, not its secret
DEFAULT_POOL: Final = "pvebench"
MAX_POOL: Final = 51
"""Characters; the server limits a user ID to 64 (`maxLength` of POST /access/users)."""


def user_of(pool: str) -> str:
    """Return the user of a pool; two pools never share user or token."""
    return "pvebench@pve" if pool == DEFAULT_POOL else f"pvebench-{pool}@pve"


def token_of(pool: str) -> str:
    """Return the full token ID of a pool."""
    return f"{user_of(pool)}!{TOKEN_NAME}"


_ALWAYS: Final = range(7, 1000)
_VM_PRIVILEGES: Final[Mapping[str, range]] = {
    "Datastore.AllocateSpace": _ALWAYS,
    "Datastore.AllocateTemplate": _ALWAYS,
    "Datastore.Audit": _ALWAYS,
    "Pool.Audit": _ALWAYS,
    "VM.Allocate": _ALWAYS,
    "VM.Audit": _ALWAYS,
    "VM.Config.CDROM": _ALWAYS,
    "VM.Config.CPU": _ALWAYS,
    "VM.Config.Disk": _ALWAYS,
    "VM.Config.HWType": _ALWAYS,
    "VM.Config.Memory": _ALWAYS,
    "VM.Config.Options": _ALWAYS,
    "VM.GuestAgent.Unrestricted": range(9, 1000),
    "VM.Monitor": range(7, 9),
    "VM.PowerMgmt": _ALWAYS,
}
"""Privilege on the pool -> major versions that need it; others may not know the privilege."""
OPERATION_ROLE: Final = "StorageBenchOperations"
"""Role of its own: every pvebench of the cluster shares VM_ROLE, but not all have operations."""
OPERATION_PRIVILEGES: Final = frozenset({"VM.Backup", "VM.Snapshot"})
"""Further privileges on the pool for snapshots and backups of the benchmark VM."""
NODE_PRIVILEGES: Final = frozenset({"Sys.Audit"})
"""Privileges on /nodes: running kernel, versions, other activity."""

AUDIT_ROLE: Final = "StorageBenchAudit"
AUDIT_PRIVILEGES: Final = {
    "/vms": frozenset({"VM.Audit"}),
    "/storage": frozenset({"Datastore.Audit"}),
}
"""Path -> privileges with which `pvebench advise --vms` reads all VMs; AUDIT_ROLE has both."""

SCRUB_PATH: Final = "/"
"""Path on which NODE_PRIVILEGES permit listing ZFS pools: /nodes/*/disks/zfs checks the root.
Without inheritance they permit nothing below it, only cluster-wide information."""

_TOO_MUCH: Final = frozenset({"Permissions.Modify", "Sys.Modify", "Datastore.Allocate"})
"""Rights that pvebench never needs and that reach beyond its pool."""


def vm_privileges(major: int, *, operations: bool = False) -> set[str]:
    """Return the privileges needed on the pool; version 9 split the guest agent right.

    Args:
        operations: also those for snapshots and backups.
    """
    needed = {name for name, majors in _VM_PRIVILEGES.items() if major in majors}
    return needed | OPERATION_PRIVILEGES if operations else needed


def missing_rights(
    table: Mapping[str, Mapping[str, int]], *, pool: str, major: int, operations: bool = False
) -> list[str]:
    """Return `PATH: PRIVILEGE …` per path that lacks some in a response of /access/permissions.

    In that response the value states whether paths below inherit a right; 0 is not a denial.
    """
    required = {
        f"/pool/{pool}": vm_privileges(major, operations=operations),
        "/nodes": set(NODE_PRIVILEGES),
    }
    missing = []
    for path, privileges in required.items():
        lacking = sorted(privileges - _rights_on(table, path))
        if lacking:
            missing.append(f"{path}: {' '.join(lacking)}")
    return missing


def missing_audit_rights(table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return `PATH: PRIVILEGE` for each path that an audit of all VMs cannot read, as above."""
    return [
        f"{path}: {' '.join(sorted(needed))}"
        for path, needed in AUDIT_PRIVILEGES.items()
        if not needed <= _rights_on(table, path, below=True)
    ]


def privileges_in(text: str) -> set[str]:
    """Return the privileges on the pool that an error message names."""
    return {name for name in _VM_PRIVILEGES if name in text}


def sees_scrubs(table: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether the token may list ZFS pools, from a response of /access/permissions."""
    return _rights_on(table, SCRUB_PATH) >= NODE_PRIVILEGES


def _rights_on(
    table: Mapping[str, Mapping[str, int]], path: str, *, below: bool = False
) -> set[str]:
    """Return the effective rights on a path, or below: its own or the nearest parent's."""
    for at in reversed(_upwards(path)):
        if at in table:
            own = at == path and not below
            return {name for name, inherited in table[at].items() if inherited or own}
    return set()


def excess_rights(table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return `PATH: PRIVILEGE …` for rights that a benchmark never needs."""
    return [
        f"{path}: {' '.join(sorted(_TOO_MUCH & set(rights)))}"
        for path, rights in table.items()
        if _TOO_MUCH & set(rights)
    ]


def _upwards(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[: count + 1]) for count in range(len(parts)))]
