"""Is everything on the cluster that a run needs? Harmless calls only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from pvebench.drivers.driver import Finding
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.api.privileges import (
    VM_ROLE,
    excess_rights,
    missing_rights,
    sees_scrubs,
)
from pvebench.drivers.proxmox.api.pve_version import version_number
from pvebench.drivers.proxmox.node.node_activity import HASTATE_SINCE
from pvebench.drivers.proxmox.node.node_state import zfs_pools
from pvebench.drivers.proxmox.vm.bench_vm import VmPlace
from pvebench.drivers.proxmox.vm.drive import STORAGE_TYPES, ClusterStorage, belongs
from pvebench.drivers.proxmox.vm.leftovers import find_orphans
from pvebench.drivers.proxmox.vm.vm_create import is_free
from pvebench.drivers.proxmox.vm.vm_volumes import RESERVE_BYTES
from pvebench.errors import AccessDenied, DriverError, PvebenchError
from pvebench.model.units import show_bytes

_SCRUBS_UNSEEN: Final = (
    "off: a scrub of a ZFS pool is not noticed, its load only by limits.io_pressure; to see it: "
    "pvebench proxmox init --with-scrub-guard (Sys.Audit on / alone, not below)"
)


def inspect(
    api: Api,
    *,
    place: VmPlace,
    storages: Mapping[str, ClusterStorage],
    iso_storage: str,
    major: int,
    needs: Mapping[str, int],
    containers: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield a finding for each thing that must be so. Never raises DriverError.

    Args:
        major: the version that plans are made for.
        needs: storage's name -> bytes that the packs' volumes take there.
        containers: storages of the cluster on which containers' volumes are to be.
    """
    try:
        version = version_number(api)
    except DriverError as error:
        yield "server", False, str(error)
        return  # nothing else can be asked
    yield _server(version, major)
    yield from _guarded("rights", lambda: _rights(api, place, version[0]))
    yield from _guarded("node", lambda: _node(api, place.node))
    yield from _guarded("pool", lambda: _pool(api, place.pool))
    yield from _guarded("storages", lambda: _storages(api, place, storages, needs))
    if containers:
        yield from _guarded("containers", lambda: _containers(api, place, containers))
    yield from _guarded("image storage", lambda: _image_storage(api, place, iso_storage))
    yield from _guarded("VM numbers", lambda: _numbers(api, place))


def _server(version: tuple[int, ...], major: int) -> Finding:
    found = f"Proxmox VE {'.'.join(map(str, version))}"
    if version[0] != major:
        found += f": write version: {version[0]} in the settings"
    elif version < HASTATE_SINCE:
        since = ".".join(map(str, HASTATE_SINCE))
        found += f"; maintenance of a node is told only from {since} on: pause pvebench by hand"
    return "server", version[0] == major, found


def _guarded(name: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except PvebenchError as error:
        yield name, False, str(error)


def _rights(api: Api, place: VmPlace, major: int) -> Iterator[Finding]:
    table = api.get("/access/permissions")
    missing = missing_rights(table, pool=place.pool, major=major)
    mend = "make them: pvebench proxmox init (user and token both need each right)"
    found = f"missing: {'; '.join(missing)}; {mend}" if missing else "all that is needed"
    yield "rights", not missing, found
    yield "scrub guard", True, _scrubs(api, place.node) if sees_scrubs(table) else _SCRUBS_UNSEEN
    excess = excess_rights(table)
    if excess:
        yield (
            "rights beyond need",
            True,
            f"warning: {'; '.join(excess)}; a token with role {VM_ROLE} on the pool is enough",
        )


def _scrubs(api: Api, node: str) -> str:
    try:
        pools = ", ".join(pool.name for pool in zfs_pools(api, node))
    except Rejected as error:
        return f"off: the pools of {node} cannot be looked at: {error.text}"
    return f"runs wait for scrubs of {pools}" if pools else f"no ZFS pool is seen on {node}"


def _node(api: Api, node: str) -> Iterator[Finding]:
    known = {str(entry["node"]): str(entry.get("status")) for entry in api.get("/nodes")}
    if node not in known:
        names = ", ".join(sorted(known))
        yield "node", False, f"the cluster has no node {node!r}; give one of {names} as node"
    else:
        yield "node", known[node] == "online", f"{node} is {known[node]}"


def _pool(api: Api, pool: str) -> Iterator[Finding]:
    try:
        members = api.get(f"/pools/{pool}")["members"]
    except (AccessDenied, Rejected):
        make = "pvebench proxmox init, with --apply or its commands"
        yield "pool", False, f"there is no pool {pool} that the token may see; make it: {make}"
        return
    names = [str(member.get("id")) for member in members]
    yield "pool", True, f"{pool} with {', '.join(names) or 'no members'}"


def _storages(
    api: Api, place: VmPlace, storages: Mapping[str, ClusterStorage], needs: Mapping[str, int]
) -> Iterator[Finding]:
    rows = _rows(api, place)
    add = f"pveum pool modify {place.pool} --storage"
    marks = _marks(api, place)
    for name, wanted in storages.items():
        row = rows.get(wanted.id)
        if row is None:
            yield (
                f"storage {name}",
                False,
                f"{wanted.id} is not on {place.node}, or not in the pool: {add} {wanted.id}",
            )
            continue
        need = max(0, needs.get(name, 0) - _held_already(api, place, wanted.id, marks))
        wrong = _wrong_storage(row, wanted) or _too_small(row, need)
        free = f"{wanted.type}, {show_bytes(int(row.get('avail', 0)))} free{_raw_only(row)}"
        idle = "" if name in needs else f"; no pack measures it: axes: {{storage: [{name}]}} would"
        yield f"storage {name}", not wrong, wrong or f"{free}{idle}"


def _marks(api: Api, place: VmPlace) -> dict[int, str]:
    """Return number -> mark of each VM that some pvebench has on the node; none if it is untold."""
    try:
        strays = find_orphans(api, pool=place.pool, known={})
    except (AccessDenied, Rejected):
        return {}
    return {one.vmid: one.mark for one in strays if one.node == place.node}


def _held_already(api: Api, place: VmPlace, storage: str, marks: Mapping[int, str]) -> int:
    """Return the bytes of our volumes there: of an instance that runs, or kept from the last.

    Args:
        marks: number -> mark of each VM that some pvebench has on the node.
    """
    entries = api.get(f"/nodes/{place.node}/storage/{storage}/content", content="images")
    return sum(
        int(entry.get("size", 0))
        for entry in entries
        if any(belongs(str(entry["volid"]), vmid, mark) for vmid, mark in marks.items())
    )


def _rows(api: Api, place: VmPlace) -> dict[str, Mapping[str, Any]]:
    rows = api.get(f"/nodes/{place.node}/storage", format=1)
    return {str(row["storage"]): row for row in rows}


def _too_small(row: Mapping[str, Any], need: int) -> str:
    free = int(row.get("avail", 0))
    if free >= need + RESERVE_BYTES:
        return ""
    return (
        f"{show_bytes(free)} free, {show_bytes(need + RESERVE_BYTES)} needed: free space, or make "
        f"volume.size or --scale smaller"
    )


def _raw_only(row: Mapping[str, Any]) -> str:
    """Return what to know of an LVM storage, which holds qcow2 only if it was made for it."""
    formats = row.get("formats")
    supported = formats.get("supported") if isinstance(formats, dict) else None
    if row["type"] != "lvm" or not isinstance(supported, list) or "qcow2" in supported:
        return ""
    return (
        "; raw only, for it was made without snapshot-as-volume-chain: exclude it with qcow2 "
        "from packs, or write version: 8"
    )


def _image_storage(api: Api, place: VmPlace, iso_storage: str) -> Iterator[Finding]:
    row = _rows(api, place).get(iso_storage)
    if row is None:
        found = (
            f"{iso_storage} is not on {place.node}, or not in the pool: "
            f"pveum pool modify {place.pool} --storage {iso_storage}"
        )
    elif "iso" not in str(row.get("content")).split(","):
        found = f"{iso_storage} holds no ISO images: {_allow(row, 'iso')}"
    else:
        found = ""
    yield "image storage", not found, found or iso_storage


def _containers(api: Api, place: VmPlace, wanted: Collection[str]) -> Iterator[Finding]:
    """Yield whether storages let containers be. The node's root makes them: no right is needed."""
    rows = _rows(api, place)
    for name in sorted(wanted):
        row = rows.get(name, {})
        allowed = "rootdir" in str(row.get("content", "rootdir")).split(",")
        seen = "holds containers" if row else "the token does not see it; the node's root may"
        found = seen if allowed else f"holds no containers: {_allow(row, 'rootdir')}"
        yield f"containers on {name}", allowed, found


def _allow(row: Mapping[str, Any], kind: str) -> str:
    """Return the command that lets a storage hold `kind` as well: it replaces the whole list."""
    kinds = [one for one in str(row.get("content", "")).split(",") if one not in ("", "none")]
    return f"pvesm set {row['storage']} --content {','.join([*kinds, kind])}"


def _wrong_storage(row: Mapping[str, Any], wanted: ClusterStorage) -> str:
    if not row.get("active") or not row.get("enabled"):
        return f"{wanted.id} is not active: pvesm status --storage {wanted.id}"
    if row["type"] != wanted.type:
        return f"{wanted.id} is of type {row['type']}: write type: {row['type']} in the settings"
    if "images" not in str(row.get("content")).split(","):
        return f"{wanted.id} holds no disk images: {_allow(row, 'images')}"
    if row["type"] not in STORAGE_TYPES:
        return f"{wanted.id}: no test volumes can be made on type {row['type']}"
    return ""


def _numbers(api: Api, place: VmPlace) -> Iterator[Finding]:
    first, last = place.vmids
    free = next((number for number in range(first, last + 1) if is_free(api, number)), None)
    found = f"{free} is free" if free else f"none of {first} to {last} is free: give other vmids"
    yield "VM numbers", free is not None, found
