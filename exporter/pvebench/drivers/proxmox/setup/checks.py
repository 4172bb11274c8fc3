"""Checks of the cluster's requirements for runs, with read-only calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from pvebench.drivers.driver import Finding
from pvebench.drivers.proxmox.api.connection import Api, version_number
from pvebench.drivers.proxmox.api.faults import INIT, Rejected
from pvebench.drivers.proxmox.api.privileges import (
    VM_ROLE,
    RequiredGrants,
    excess_rights,
    missing_rights,
    sees_scrubs,
)
from pvebench.drivers.proxmox.api.tasks import newest_duration
from pvebench.drivers.proxmox.node.node_activity import HASTATE_SINCE, UNKNOWN_NODE
from pvebench.drivers.proxmox.node.node_state import available_memory, zfs_pools
from pvebench.drivers.proxmox.orphans import find_orphans
from pvebench.drivers.proxmox.proxmox_settings import OperationSettings, ProxmoxSettings
from pvebench.drivers.proxmox.vm.bench_vm import VmPlace
from pvebench.drivers.proxmox.vm.drive import ClusterStorage, belongs, is_on
from pvebench.drivers.proxmox.vm.template import CLONE, read_template
from pvebench.drivers.proxmox.vm.vm_create import free_ids
from pvebench.drivers.proxmox.vm.vm_volumes import space_of
from pvebench.errors import AccessDenied, DriverError, PvebenchError, VolumeError
from pvebench.log import log
from pvebench.model.storage_use import Space, SpaceNeed, lacking
from pvebench.model.units import show_bytes
from pvebench.model.workload import Case

_SCRUBS_UNSEEN: Final = (
    "off: scrubs of ZFS pools are not detected, only their load by limits.io_pressure; to detect "
    f"them, run {INIT} --with-scrub-guard "
    "(Sys.Audit on / without propagation)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Needs of the packs' cases.

    Attributes:
        volumes: storage name -> bytes of volumes, and of operations there.
        operations: cluster storage -> content types that operations need, and bytes, unless it is
            in `volumes`; None: the settings have no operations.
        vmids: number of IDs for VMs.
        memory: bytes of the VMs of the case with most; 0: no case has several.
        templates: IDs of VMs that guests are cloned from.
    """

    volumes: Mapping[str, int]
    operations: Mapping[str, tuple[Collection[str], int]] | None = None
    vmids: int = 1
    memory: int = 0
    templates: Collection[int] = ()


def needs_of(cluster: ProxmoxSettings, cases: Sequence[Case]) -> Needs:
    """Return the needs of the cases of a node."""
    space = SpaceNeed(cluster.kinds()).add(*cases).total()
    volumes = {name: space.pop(name) for name in cluster.storages if name in space}
    several = [case for case in cases if case.workload.further_vms]
    restores = any(case.workload.during == "restore" for case in cases)
    vms = max((1 + case.workload.further_vms for case in several), default=1)
    sizes = ((1 + one.workload.further_vms) * one.scenario.machine.memory_bytes for one in several)
    return Needs(
        volumes=volumes,
        vmids=vms + restores + any(not case.scenario.disk.in_vm for case in cases),
        memory=max(sizes, default=0),
        templates=sorted({case.scenario.machine.template for case in cases} - {0}),
        operations=None
        if cluster.operations is None
        else _for_operations(cluster.operations, space),
    )


def _for_operations(
    chosen: OperationSettings, space: Mapping[str, int]
) -> dict[str, tuple[frozenset[str], int]]:
    """Return cluster storage -> content types and bytes that operations need on it."""
    roles = (
        (chosen.backup_storage, "backup"),
        (chosen.fleecing_storage, "images"),
        (chosen.move_storage, "images"),
    )
    contents = {name: frozenset(kind for at, kind in roles if at == name) for name, _ in roles}
    return {name: (kinds, space.get(name, 0)) for name, kinds in contents.items() if name}


def inspect(
    api: Api,
    *,
    place: VmPlace,
    storages: Mapping[str, ClusterStorage],
    iso_storage: str,
    major: int,
    needs: Needs,
) -> Iterator[Finding]:
    """Yield a finding for each requirement. Never raises DriverError.

    Args:
        major: major version of the settings.
    """
    try:
        version = version_number(api)
    except DriverError as error:
        yield "server", False, str(error)
        return  # no other check is possible
    yield _server(version, major)
    yield from guarded("rights", lambda: _rights(api, place, version[0], needs))
    yield from guarded("node", lambda: _node(api, place.node))
    yield from guarded("pool", lambda: _pool(api, place.pool))
    yield from guarded("storages", lambda: _storages(api, place, storages, needs))
    if needs.operations:
        yield from guarded("operations", lambda: _targets(api, place, storages, needs))
    yield from guarded("image storage", lambda: _image_storage(api, place, iso_storage))
    for vmid in needs.templates:
        yield from guarded(f"template {vmid}", partial(_template, api, place, vmid))
    yield from guarded("VM IDs", lambda: _numbers(api, place, needs.vmids))
    if needs.memory:
        yield from guarded("memory", lambda: _memory(api, place.node, needs.memory))


def _server(version: tuple[int, ...], major: int) -> Finding:
    text = f"Proxmox VE {'.'.join(map(str, version))}"
    if version[0] != major:
        text += f"; set version: {version[0]} in the settings"
    elif version < HASTATE_SINCE:
        since = ".".join(map(str, HASTATE_SINCE))
        text += f"; node maintenance is reported only since {since}; pause pvebench manually"
    return "server", version[0] == major, text


def guarded(name: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of `look`; an error of the server or a setting is one too."""
    try:
        yield from look()
    except PvebenchError as error:
        yield name, False, str(error)


def _rights(api: Api, place: VmPlace, major: int, needs: Needs) -> Iterator[Finding]:
    table = api.get("/access/permissions")
    operations, templates = needs.operations is not None, tuple(needs.templates)
    needed = RequiredGrants(
        major=major, pool=place.pool, operations=operations, templates=templates
    )
    missing = missing_rights(table, needed)
    flags = [*[" --with-operations"] * operations, *(f" --template {vmid}" for vmid in templates)]
    fix = f"run {INIT}{''.join(flags)} (user and token both need each right)"
    text = f"missing: {'; '.join(missing)}; {fix}" if missing else "complete"
    yield "rights", not missing, text
    yield "scrub guard", True, _scrubs(api, place.node) if sees_scrubs(table) else _SCRUBS_UNSEEN
    if excess := "; ".join(excess_rights(table)):
        text = f"warning: {excess}; role {VM_ROLE} on the pool is sufficient"
        yield "excess rights", True, text


def _scrubs(api: Api, node: str) -> str:
    try:
        pools = ", ".join(pool.name for pool in zfs_pools(api, node))
    except Rejected as error:
        return f"off: listing the ZFS pools of {node} failed: {error.text}"
    return f"runs wait for scrubs of {pools}" if pools else f"no ZFS pool on {node}"


def _node(api: Api, node: str) -> Iterator[Finding]:
    known = {str(entry["node"]): str(entry.get("status")) for entry in api.get("/nodes")}
    if node not in known:
        names = ", ".join(sorted(known))
        yield "node", False, f"the cluster has no node {node!r}; set node to one of {names}"
    else:
        text = f"{node} is {known[node]}{UNKNOWN_NODE * (known[node] == 'unknown')}"
        yield "node", known[node] == "online", text


def _pool(api: Api, pool: str) -> Iterator[Finding]:
    try:
        members = api.get(f"/pools/{pool}")["members"]
    except (AccessDenied, Rejected):
        yield ("pool", False, f"pool {pool} missing or not visible; run {INIT}")
        return
    names = [str(member.get("id")) for member in members]
    yield "pool", True, f"{pool} with {', '.join(names) or 'no members'}"


def _storages(
    api: Api, place: VmPlace, storages: Mapping[str, ClusterStorage], needs: Needs
) -> Iterator[Finding]:
    rows = storage_rows(api, place)
    short = _too_small(api, place, storages, needs)
    for name, storage in storages.items():
        row = rows.get(storage.id, {})
        wrong = why_off(rows, storage.id, place) or _wrong_storage(row, storage) or short.get(name)
        free = f"{storage.type}, {show_bytes(row.get('avail', 0))} free{_raw_only(row)}"
        idle = f"; not measured by any pack; add axes: {{storage: [{name}]}}"
        yield f"storage {name}", not wrong, wrong or free + idle * (name not in needs.volumes)


def spaces_on(api: Api, place: VmPlace, storages: Mapping[str, ClusterStorage]) -> dict[str, Space]:
    """Return name -> free space of the active storages, those of operations by their ID.

    Raises DriverError: unknown.
    """
    rows = storage_rows(api, place)
    rows = {name: row for name, row in rows.items() if not why_off(rows, name, place)}
    marks = _marks(api, place)
    ids = {name: storage.id for name, storage in storages.items() if storage.id in rows}
    others = rows.keys() - ids.values()
    spaces = {name: space_of(rows[name], name, place.node) for name in others}
    for name, known in ids.items():
        space = space_of(rows[known], known, place.node, storages[name].min_free)
        try:
            held = _held_already(api, place, known, marks) if marks else 0
            spaces[name] = replace(space, free=space.free + held, held=held)
        except DriverError as error:
            log.warning("free space not checked", storage=name, reason=error.reason)
    return spaces


def why_off(rows: Mapping[str, Mapping[str, Any]], name: str, place: VmPlace) -> str:
    """Return why a storage has no space, and what to do; empty: it is active."""
    if name not in rows:
        add = f"run pveum pool modify {place.pool} --storage {name}"
        return f"{name} not on {place.node} or not in the pool; {add}"
    try:
        space_of(rows[name], name, place.node)
    except VolumeError as error:
        return f"{error.happened}; {error.next_step}"
    return ""


def _marks(api: Api, place: VmPlace) -> dict[int, str]:
    """Return VM ID -> marker of each VM of any pvebench on the node; none if not visible."""
    try:
        orphans = find_orphans(api, pool=place.pool, known={})
    except (AccessDenied, Rejected):
        return {}
    return {orphan.vmid: orphan.mark for orphan in orphans if orphan.node == place.node}


def _held_already(api: Api, place: VmPlace, storage: str, marks: Mapping[int, str]) -> int:
    """Return the bytes of pvebench's volumes there, in use or kept.

    Args:
        marks: VM ID -> marker of each VM of any pvebench on the node.
    """
    entries = api.get(f"/nodes/{place.node}/storage/{storage}/content", content="images")
    return sum(
        int(entry.get("size") or entry.get("approximate-size", 0))
        for entry in entries
        if any(belongs(str(entry["volid"]), vmid, mark) for vmid, mark in marks.items())
    )


def storage_rows(api: Api, place: VmPlace) -> dict[str, Mapping[str, Any]]:
    """Return ID -> entry of the storages of a node that the token sees."""
    rows = api.get(f"/nodes/{place.node}/storage", format=1)
    return {str(row["storage"]): row for row in rows}


def _too_small(
    api: Api, place: VmPlace, storages: Mapping[str, ClusterStorage], needs: Needs
) -> dict[str, str]:
    """Return storage -> why the needs do not fit, those of operations by their ID."""
    passing = {name: size for name, (_, size) in (needs.operations or {}).items()}
    need = {**dict.fromkeys(storages, 0), **passing, **needs.volumes}
    short = lacking(need, spaces_on(api, place, storages))
    return {
        name: f"{text}; free space, or reduce volume.size or --scale"
        for name, text in short.items()
    }


def _raw_only(row: Mapping[str, Any]) -> str:
    """Return a note if an LVM storage lacks qcow2 support, which depends on its creation."""
    formats = row.get("formats")
    supported = formats.get("supported") if isinstance(formats, dict) else None
    if row.get("type") != "lvm" or not isinstance(supported, list) or "qcow2" in supported:
        return ""
    return (
        "; raw only (no snapshot-as-volume-chain); exclude it with qcow2 in packs, or set "
        "version: 8"
    )


def _image_storage(api: Api, place: VmPlace, iso_storage: str) -> Iterator[Finding]:
    rows = storage_rows(api, place)
    text = why_off(rows, iso_storage, place)
    text = text or content_refused(rows[iso_storage], ["iso"], "ISO images")
    yield "image storage", not text, text or iso_storage


def _template(api: Api, place: VmPlace, vmid: int) -> Iterator[Finding]:
    """Yield whether a VM can be cloned: its configuration, and the storages of its disks."""
    template, rows = read_template(api, place.node, vmid), storage_rows(api, place)
    faults = list(template.faults())
    faults += filter(None, (why_off(rows, name, place) for name in sorted(template.storages)))
    kind = "linked clones" if is_on(str(template.config.get("template", ""))) else "full clones"
    took = newest_duration(api, place.node, CLONE, vmid)
    text = f"{kind} of {', '.join(template.disks.values())}; time of the last one: {took}"
    yield f"template {vmid}", not faults, "; ".join(faults) or text


def _targets(
    api: Api, place: VmPlace, storages: Mapping[str, ClusterStorage], needs: Needs
) -> Iterator[Finding]:
    """Yield whether the storages of backups, fleecing images and moves can be used."""
    rows = storage_rows(api, place)
    short = _too_small(api, place, storages, needs)
    for name, (contents, size) in (needs.operations or {}).items():
        needed = ",".join(sorted(contents))
        text = why_off(rows, name, place) or short.get(name, "")
        text = content_refused(rows.get(name, {}), contents) or text
        if size:
            needed += f", {show_bytes(size)} needed"
        yield f"operations on {name}", not text, text or needed


def content_refused(row: Mapping[str, Any], kinds: Collection[str], noun: str = "") -> str:
    """Return which content a storage does not allow, and the command; empty: it allows all."""
    allowed = str(row.get("content", ",".join(kinds))).split(",")
    if not (lacking := sorted(set(kinds).difference(allowed))):
        return ""
    # The command replaces the whole list of content types.
    content = ",".join(sorted({*allowed, *kinds} - {"", "none"}))
    command = f"pvesm set {row['storage']} --content {content}"
    return f"{row['storage']} does not allow {noun or ','.join(lacking)}; run {command}"


def _wrong_storage(row: Mapping[str, Any], storage: ClusterStorage) -> str:
    if row["type"] != storage.type:
        return f"{storage.id} has type {row['type']}; set type: {row['type']} in the settings"
    return content_refused(row, ["images"], "disk images")


def _numbers(api: Api, place: VmPlace, need: int) -> Iterator[Finding]:
    first, last = place.vmids
    free = list(islice(free_ids(api, place), need))
    own = sum(first <= vmid <= last for vmid in _marks(api, place)) if len(free) < need else 0
    good = bool(free) and len(free) + own >= need
    text = (
        f"{free[0]} is free" if good else f"no free VM ID from {first} to {last}; set other vmids"
    )
    if need > 1:
        text = f"{need} needed, {len(free) + own} from {first} to {last} free or of pvebench"
        text += "" if good else "; set other vmids"
    yield "VM IDs", good, text


def _memory(api: Api, node: str, need: int) -> Iterator[Finding]:
    free = available_memory(api, node)
    text = f"{show_bytes(need)} needed for several VMs, {show_bytes(free)} available"
    good = need <= free
    yield "memory", good, text if good else f"{text}; reduce vms or guest.memory in the packs"
