"""Every request that the driver makes: what it may send, and of which shape the answer must be.

What a server answers is checked here once, for all who ask: a field that is missing or of another
kind is one error that names it, not a surprise further on. The tests hold this list against the
recorded schema, and their server refuses what the driver sends and this list does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
from pvebench.drivers.storages import ceph

_UPID: Final = re.compile(r"UPID:[A-Za-z0-9-]{1,63}:([0-9A-Fa-f]+:){3}[^:\s/]*:[^:/]*:[^\s:/]+:\Z")


def task(value: Any) -> str:
    """Take the name of a task."""
    good = isinstance(value, str) and _UPID.match(value)
    return "" if good else f"{kind_of(value)}, no task"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One request.

    Attributes:
        answer: the shape of its answer.
        sends: names of the parameters, as in the API's schema; `scsi[n]` stands for a family.
        most_bytes: longest answer that is read.
    """

    method: str
    path: str
    answer: Shape
    sends: tuple[str, ...] = ()
    most_bytes: int = 8 << 20


_VM: Final = "/nodes/{node}/qemu/{vmid}"
_SLOTS: Final = ("ide[n]", "sata[n]", "scsi[n]", "virtio[n]")
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


def _told(
    method: str, path: str, answer: Shape, sends: str = "", most_bytes: int = 8 << 20
) -> Endpoint:
    return Endpoint(method, path, answer, tuple(sends.split()), most_bytes)


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    # who may do what; made by an administrator's login, `init` and `setup`
    _told("GET", "/access/permissions", table(table(number))),
    _told("GET", "/access/roles", rows(fields(roleid=text, privs_=text))),
    _told("POST", "/access/roles", anything, "roleid"),
    _told("PUT", "/access/roles/{roleid}", anything, "privs"),
    _told("DELETE", "/access/roles/{roleid}", anything),
    _told("GET", "/access/users", rows(fields(userid=text))),
    _told("POST", "/access/users", anything, "userid"),
    _told("GET", "/access/users/{userid}/token", rows(fields(tokenid=text, privsep_=number))),
    _told("POST", "/access/users/{userid}/token/{tokenid}", fields(value=text), "privsep"),
    _told("PUT", "/access/users/{userid}/token/{tokenid}", anything, "privsep"),
    _told("DELETE", "/access/users/{userid}/token/{tokenid}", anything),
    _told("GET", "/access/acl", rows(fields(path=text, ugid=text, roleid=text, propagate_=number))),
    _told("PUT", "/access/acl", anything, "path roles users tokens propagate delete"),
    _told(
        "POST",
        "/access/ticket",
        fields(ticket=text, CSRFPreventionToken_=text),
        "username password tfa-challenge",
    ),
    _told("GET", "/pools", rows(fields(poolid=text))),
    _told(
        "GET",
        "/pools/{poolid}",
        fields(members=rows(fields(id_=text, type_=text, vmid_=number, node_=text, storage_=text))),
    ),
    _told("POST", "/pools", anything, "poolid"),
    _told("PUT", "/pools", anything, "poolid storage delete"),
    # nodes, and what else they do
    _told("GET", "/version", fields(version=text)),
    _told("GET", "/nodes", rows(fields(node=text, status_=text))),
    _told("GET", "/nodes/{node}/version", fields(version=text)),
    _told("GET", "/nodes/{node}/time", fields(time=whole)),
    _told(
        "GET",
        "/nodes/{node}/status",
        fields(
            current__kernel_=fields(release_=text),
            cpuinfo_=fields(model_=text, cpus_=number),
            cpu_=number,
            wait_=number,
        ),
    ),
    _told("GET", "/nodes/{node}/apt/versions", rows(fields(Package=text, OldVersion_=text))),
    _told(
        "GET",
        "/nodes/{node}/tasks",
        rows(
            fields(upid=text, type_=text, status_=text, id_=anything, starttime=whole, pstart=whole)
        ),
        "source limit vmid typefilter since",
    ),
    _told("GET", "/nodes/{node}/tasks/{upid}/status", fields(status=text, exitstatus_=text)),
    _told("GET", "/nodes/{node}/tasks/{upid}/log", rows(fields(t=text)), "start limit"),
    _told("GET", "/nodes/{node}/replication", rows(fields(guest_=anything, pid_=anything))),
    _told("GET", "/nodes/{node}/disks/zfs", rows(fields(name=text, frag_=number))),
    _told("GET", "/nodes/{node}/disks/zfs/{name}", fields(scan_=text)),
    _told("GET", "/nodes/{node}/disks/list", rows(fields(wearout_=anything))),
    _told("GET", "/nodes/{node}/ceph/status", ceph.STATUS),
    _told("GET", "/storage", rows(fields(storage=text, pool_=text)), "type"),
    _told("GET", "/cluster/nextid", number, "vmid"),
    _told(
        "GET",
        "/cluster/resources",
        rows(
            fields(
                type_=text,
                node_=text,
                status_=text,
                hastate_=text,
                vmid_=number,
                lock_=text,
                tags_=text,
            )
        ),
        "type",
    ),
    # storages
    _told(
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
    _told(
        "GET",
        "/nodes/{node}/storage/{storage}/status",
        fields(type_=text, active_=number, avail_=number),
    ),
    _told(
        "GET",
        "/nodes/{node}/storage/{storage}/content",
        rows(fields(volid=text, size_=number, vmid_=number, format_=text)),
        "content vmid",
    ),
    _told("POST", "/nodes/{node}/storage/{storage}/content", text, "vmid filename size format"),
    _told(
        "POST",
        "/nodes/{node}/storage/{storage}/upload",
        task,
        "content filename checksum checksum-algorithm",
    ),
    # the benchmark VM
    Endpoint("POST", "/nodes/{node}/qemu", task, ("vmid", "pool", *_VM_OPTIONS)),
    _told("DELETE", _VM, task, "purge"),
    _told("GET", f"{_VM}/config", fields(digest_=text), "current"),
    Endpoint("PUT", f"{_VM}/config", anything, ("delete", "digest", "revert", *_VM_OPTIONS)),
    _told("GET", f"{_VM}/pending", rows(fields(key=text))),
    _told(
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
    _told("POST", f"{_VM}/status/start", task),
    _told("POST", f"{_VM}/status/stop", task),
    _told("POST", f"{_VM}/monitor", text, "command"),
    # its guest
    _told("POST", f"{_VM}/agent/ping", anything),
    _told("POST", f"{_VM}/agent/exec", fields(pid=whole), "command input-data"),
    _told(
        "GET",
        f"{_VM}/agent/exec-status",
        fields(exited=whole, exitcode_=whole, signal_=whole, out__data_=text, err__data_=text),
        "pid",
    ),
    _told(
        "GET",
        f"{_VM}/agent/file-read",
        fields(content=text, bytes__read_=number),
        "file offset count",
        48 << 20,  # version 8 reads 16 MiB at once, some characters of which take more than a byte
    ),
    _told("POST", f"{_VM}/agent/file-write", anything, "file content encode"),
)


def _pattern(path: str) -> re.Pattern[str]:
    # A volume or a pool may have slashes in its name; of the paths above only a last part has.
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)) + r"\Z")


_BY_METHOD: Final[Mapping[str, list[tuple[re.Pattern[str], Endpoint]]]] = {
    method: [(_pattern(one.path), one) for one in ENDPOINTS if one.method == method]
    for method in ("GET", "POST", "PUT", "DELETE")
}
_UNLISTED: Final = Endpoint("", "", anything)


def endpoint_of(method: str, path: str) -> Endpoint:
    """Return the entry for a request; one that takes any answer if it is not listed."""
    found = (one for pattern, one in _BY_METHOD[method] if pattern.match(path))
    return next(found, _UNLISTED)
