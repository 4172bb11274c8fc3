"""Checks of the cluster's requirements for runs, with read-only calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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


class NodeChecks:
    """Requirements of the cases of a node. Each answer of the server is requested once.

    Args:
        cases: those of the packs on the node.
    """

    def __init__(
        self, api: Api, cluster: ProxmoxSettings, node: str, cases: Sequence[Case] = ()
    ) -> None:
        self._api, self._cluster, self._node = api, cluster, node
        self._storages = cluster.storages_on(node)
        self._needs = needs_of(cluster, cases)

    def all(self) -> Iterator[Finding]:
        """Yield a finding for each requirement. Never raises DriverError."""
        try:
            version = version_number(self._api)
        except DriverError as error:
            yield "server", False, str(error)
            return  # no other check is possible
        needs = self._needs
        yield _server(version, self._cluster.version)
        yield from guarded("rights", lambda: self._rights(version[0]))
        yield from guarded("node", self._check_node)
        yield from guarded("pool", self._check_pool)
        yield from guarded("storages", self._check_storages)
        if needs.operations:
            yield from guarded("operations", self._targets)
        yield from guarded("image storage", self._image_storage)
        for vmid in needs.templates:
            yield from guarded(f"template {vmid}", partial(self._template, vmid))
        yield from guarded("VM IDs", self._numbers)
        if needs.memory:
            yield from guarded("memory", self._memory)

    @cached_property
    def rows(self) -> dict[str, Mapping[str, Any]]:
        """ID -> entry of the storages of the node that the token sees."""
        rows = self._api.get(f"/nodes/{self._node}/storage", format=1)
        return {str(row["storage"]): row for row in rows}

    def why_off(self, name: str) -> str:
        """Return why a storage has no space, and what to do; empty: it is active."""
        if name not in self.rows:
            add = f"run pveum pool modify {self._cluster.pool} --storage {name}"
            return f"{name} not on {self._node} or not in the pool; {add}"
        try:
            space_of(self.rows[name], name, self._node)
        except VolumeError as error:
            return f"{error.happened}; {error.next_step}"
        return ""

    @cached_property
    def spaces(self) -> dict[str, Space]:
        """Name -> free space of the active storages, those of operations by their ID.

        Raises DriverError: unknown.
        """
        rows = {name: row for name, row in self.rows.items() if not self.why_off(name)}
        ids = {name: entry.id for name, entry in self._storages.items() if entry.id in rows}
        others, marks = rows.keys() - ids.values(), self._marks
        spaces = {name: space_of(rows[name], name, self._node) for name in others}
        for name, known in ids.items():
            space = space_of(rows[known], known, self._node, self._storages[name].min_free or 0)
            try:
                held = self._held_already(known) if marks else 0
                spaces[name] = replace(space, free=space.free + held, held=held)
            except DriverError as error:
                log.warning("free space not checked", storage=name, reason=error.reason)
        return spaces

    @cached_property
    def _marks(self) -> dict[int, str]:
        """VM ID -> marker of each VM of any pvebench on the node; none if not visible."""
        try:
            orphans = find_orphans(self._api, pool=self._cluster.pool, known={})
        except (AccessDenied, Rejected):
            return {}
        return {orphan.vmid: orphan.mark for orphan in orphans if orphan.node == self._node}

    def _held_already(self, storage: str) -> int:
        """Return the bytes of pvebench's volumes there, in use or kept."""
        path = f"/nodes/{self._node}/storage/{storage}/content"
        return sum(
            int(entry.get("size") or entry.get("approximate-size", 0))
            for entry in self._api.get(path, content="images")
            if any(belongs(str(entry["volid"]), *owner) for owner in self._marks.items())
        )

    def _too_small(self) -> dict[str, str]:
        """Return storage -> why the needs do not fit, those of operations by their ID."""
        passing = {name: size for name, (_, size) in (self._needs.operations or {}).items()}
        need = {**dict.fromkeys(self._storages, 0), **passing, **self._needs.volumes}
        return {
            name: f"{text}; free space, or reduce volume.size or --scale"
            for name, text in lacking(need, self.spaces).items()
        }

    def _rights(self, major: int) -> Iterator[Finding]:
        table = self._api.get("/access/permissions")
        operations, templates = self._needs.operations is not None, tuple(self._needs.templates)
        needed = RequiredGrants(
            major=major, pool=self._cluster.pool, operations=operations, templates=templates
        )
        missing = missing_rights(table, needed)
        flags = [" --with-operations"] * operations
        flags += [f" --template {vmid}" for vmid in templates]
        fix = f"run {INIT}{''.join(flags)} (user and token both need each right)"
        yield (
            "rights",
            not missing,
            f"missing: {'; '.join(missing)}; {fix}" if missing else "complete",
        )
        yield "scrub guard", True, self._scrubs() if sees_scrubs(table) else _SCRUBS_UNSEEN
        if excess := "; ".join(excess_rights(table)):
            text = f"warning: {excess}; role {VM_ROLE} on the pool is sufficient"
            yield "excess rights", True, text

    def _scrubs(self) -> str:
        node = self._node
        try:
            pools = ", ".join(pool.name for pool in zfs_pools(self._api, node))
        except Rejected as error:
            return f"off: listing the ZFS pools of {node} failed: {error.text}"
        return f"runs wait for scrubs of {pools}" if pools else f"no ZFS pool on {node}"

    def _check_node(self) -> Iterator[Finding]:
        rows, node = self._api.get("/nodes"), self._node
        known = {str(entry["node"]): str(entry.get("status")) for entry in rows}
        if node not in known:
            names = ", ".join(sorted(known))
            yield "node", False, f"the cluster has no node {node!r}; set node to one of {names}"
        else:
            text = f"{node} is {known[node]}{UNKNOWN_NODE * (known[node] == 'unknown')}"
            yield "node", known[node] == "online", text

    def _check_pool(self) -> Iterator[Finding]:
        pool = self._cluster.pool
        try:
            members = self._api.get(f"/pools/{pool}")["members"]
        except (AccessDenied, Rejected):
            yield "pool", False, f"pool {pool} missing or not visible; run {INIT}"
            return
        names = [str(member.get("id")) for member in members]
        yield "pool", True, f"{pool} with {', '.join(names) or 'no members'}"

    def _check_storages(self) -> Iterator[Finding]:
        short = self._too_small()
        for name, storage in self._storages.items():
            row = self.rows.get(storage.id, {})
            wrong = self.why_off(storage.id) or _wrong_storage(row, storage) or short.get(name)
            free = f"{storage.type}, {show_bytes(row.get('avail', 0))} free{_raw_only(row)}"
            idle = f"; not measured by any pack; add axes: {{storage: [{name}]}}"
            unused = name not in self._needs.volumes
            yield f"storage {name}", not wrong, wrong or free + idle * unused

    def _targets(self) -> Iterator[Finding]:
        """Yield whether the storages of backups, fleecing images and moves can be used."""
        short = self._too_small()
        for name, (contents, size) in (self._needs.operations or {}).items():
            needed = ",".join(sorted(contents))
            text = self.why_off(name) or short.get(name, "")
            text = content_refused(self.rows.get(name, {}), contents) or text
            if size:
                needed += f", {show_bytes(size)} needed"
            yield f"operations on {name}", not text, text or needed

    def _image_storage(self) -> Iterator[Finding]:
        name = self._cluster.iso_storage
        text = self.why_off(name) or content_refused(self.rows[name], ["iso"], "ISO images")
        yield "image storage", not text, text or name

    def _template(self, vmid: int) -> Iterator[Finding]:
        """Yield whether a VM can be cloned: its configuration, and the storages of its disks."""
        template = read_template(self._api, self._node, vmid)
        faults = [*template.faults(), *map(self.why_off, sorted(template.storages))]
        kind = "linked clones" if is_on(str(template.config.get("template", ""))) else "full clones"
        took = newest_duration(self._api, self._node, CLONE, vmid)
        text = f"{kind} of {', '.join(template.disks.values())}; time of the last one: {took}"
        yield f"template {vmid}", not any(faults), "; ".join(filter(None, faults)) or text

    def _numbers(self) -> Iterator[Finding]:
        need, (first, last) = self._needs.vmids, self._cluster.vmids
        free = list(islice(free_ids(self._api, (first, last)), need))
        own = sum(first <= vmid <= last for vmid in self._marks) if len(free) < need else 0
        good = bool(free) and len(free) + own >= need
        text = (
            f"{free[0]} is free"
            if good
            else f"no free VM ID from {first} to {last}; set other vmids"
        )
        if need > 1:
            text = f"{need} needed, {len(free) + own} from {first} to {last} free or of pvebench"
            text += "" if good else "; set other vmids"
        yield "VM IDs", good, text

    def _memory(self) -> Iterator[Finding]:
        need, free = self._needs.memory, available_memory(self._api, self._node)
        text = f"{show_bytes(need)} needed for several VMs, {show_bytes(free)} available"
        good = need <= free
        yield "memory", good, text if good else f"{text}; reduce vms or guest.memory in the packs"


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
