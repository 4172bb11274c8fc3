"""Orphans of any pvebench on a cluster, in a journal or not: VMs of the pool, guests of backends.

`vm.leftover_vms` handles those of this instance's journal; this module lists all, and removes only
what was listed and still has its ownership marker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import Orphan
from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.faults import Rejected
from pvebench.drivers.proxmox.cluster_access import access_to, connect, ssh_access
from pvebench.drivers.proxmox.node.node_backends import (
    LEFT_HERE,
    NODE_BACKENDS,
    NodeBackendKind,
    OrphanGuest,
)
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.drivers.proxmox.proxmox_settings import ClusterSettings, nodes_of, section
from pvebench.drivers.proxmox.vm.bench_vm import (
    KIND,
    BenchVm,
    NodeAccess,
    listed_volumes,
    node_time,
    refuse_without_rights,
)
from pvebench.drivers.proxmox.vm.description import claim_of, is_valid_claim, mark_of
from pvebench.drivers.proxmox.vm.drive import belongs, held_volumes
from pvebench.drivers.proxmox.vm.leftover_vms import KEPT
from pvebench.drivers.proxmox.vm.vm_copies import remove_unrecorded
from pvebench.errors import AccessDenied, DriverError, NotOwned, PvebenchError, ServerGone
from pvebench.log import log
from pvebench.model.ports import Clock, Journal, of_kinds

_WHY: Final = {KEPT: "kept by setting", KIND: LEFT_HERE}


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanVm(OrphanGuest):
    """VM that some pvebench created.

    Attributes:
        volumes: volumes in its configuration, or with its marker in their names.
        used_until: end of the claim of the instance that uses it, Unix seconds; 0: no claim, or the
            VM is stopped.
    """

    kind: ClassVar[str] = "VM"

    volumes: tuple[str, ...]
    used_until: float = 0.0

    @property
    def held(self) -> str:
        return ", ".join(self.volumes) or "no volumes"


def find_orphans(api: Api, *, pool: str, known: Mapping[str, str]) -> list[OrphanVm]:
    """Return the VMs of `pool` with an ownership marker of pvebench, on nodes that respond.

    Args:
        known: marker -> reason.

    Raises AccessDenied: the token may not see the VMs.
    """
    orphans = []
    for member in api.get(f"/pools/{pool}")["members"]:
        if member.get("type") != "qemu" or not {"node", "vmid"} <= set(member):
            continue
        node, vmid = str(member["node"]), int(member["vmid"])
        try:
            config = api.get(f"/nodes/{node}/qemu/{vmid}/config", current=1)
            status = str(api.get(f"/nodes/{node}/qemu/{vmid}/status/current")["status"])
        except (AccessDenied, Rejected):
            refuse_without_rights(api, pool)
            continue  # removed since the listing
        except ServerGone as error:
            log.warning("VM not read", vmid=vmid, node=node, reason=error.reason)
            continue
        mark = mark_of(config)
        if mark:
            volumes = held_volumes(config)
            try:
                listed = listed_volumes(api, node, vmid)
                volumes |= {volid for volid in listed if belongs(volid, vmid, mark)}
            except DriverError as error:
                log.warning("volumes not listed", vmid=vmid, node=node, reason=error.reason)
            orphan = OrphanVm(
                node=node,
                vmid=vmid,
                status=status,
                mark=mark,
                volumes=tuple(sorted(volumes)),
                why=known.get(mark, ""),
                used_until=claim_of(config) if status == "running" else 0.0,
            )
            orphans.append(orphan)
    return orphans


def remove_orphan(access: NodeAccess, orphan: OrphanVm) -> str:
    """Remove the VM with its volumes and its journal entries; return a line about it.

    Raises NotOwned: the VM changed since it was listed. Others as `BenchVm.destroy`.
    """
    vm = BenchVm(replace(access, node=orphan.node), orphan.vmid, orphan.mark)
    backups = remove_unrecorded(vm)  # not visible without the VM
    removed = f" and {backups} of its backups" if backups else ""
    stay = vm.destroy()
    for number, details in of_kinds(access.journal, *_WHY):
        if details.get("mark") == orphan.mark:
            access.journal.close(number)
    return f"removed VM {orphan.vmid} on {orphan.node} with its volumes{removed}{stay}"


def _explain_use(api: Api, orphan: OrphanVm, clock: Clock) -> OrphanVm:
    """Return the VM with its use by another instance; of its own VMs the journal has the reason."""
    if orphan.why or not orphan.used_until:
        return replace(orphan, used_until=0.0)
    now = node_time(api, orphan.node, clock)
    if not is_valid_claim(orphan.used_until, now):
        return replace(orphan, used_until=0.0)
    moment = datetime.fromtimestamp(orphan.used_until, UTC)
    return replace(orphan, why=f"used by another pvebench until {moment:%H:%M} UTC or longer")


def choose(orphans: Collection[OrphanVm], vmid: int) -> OrphanVm:
    """Return the orphan with that ID.

    Raises NotOwned: it is not listed, or another instance uses it; nothing else is ever removed.
    """
    for orphan in orphans:
        if orphan.vmid == vmid and not orphan.used_until:
            return orphan
        if orphan.vmid == vmid:
            raise NotOwned(
                f"VM {vmid} not changed: {orphan.why}",
                cause="another instance uses the same pool",
                next_step="stop that instance; if it is lost, repeat the command after that time",
            )
    raise NotOwned(
        f"VM {vmid} not changed: not listed as an orphan",
        next_step="run `pvebench cleanup --orphans` to list the orphans",
    )


class ClusterOrphans:
    """`drivers.driver.OrphanFinder` of the pool's VMs and the guests of node backends."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._pool = section(settings).pool
        self._vms: list[OrphanVm] = []
        self._others: dict[int, tuple[NodeBackendKind, OrphanGuest]] = {}

    def find(self, journal: Journal) -> list[Orphan]:
        """Return the orphans of any pvebench; this instance must not be running.

        Guests of node backends are listed only on nodes of the settings with SSH access.
        """
        clock = SystemClock()
        api = connect(section(self._settings), nodes_of(self._settings)[0], clock)
        reasons = {
            details.get("mark", ""): _WHY[kind]
            for _, kind, details in journal.pending()
            if kind in _WHY
        }
        orphans = find_orphans(api, pool=self._pool, known=reasons)
        self._vms = [_explain_use(api, orphan, clock) for orphan in orphans]
        self._others = {}
        for node in nodes_of(self._settings):
            with ssh_access(section(self._settings), node) as on_node:
                if on_node is not None:
                    self._list_others(on_node, node, journal)
        return [*self._vms, *(orphan for _, orphan in self._others.values())]

    def _list_others(self, on_node: NodeSsh, node: str, journal: Journal) -> None:
        for kind in NODE_BACKENDS.values():
            try:
                guests = kind.find_orphans(on_node, node, journal)
            except PvebenchError as error:  # the node is unreachable, or its script too old
                log.warning("listing containers failed", node=node, reason=error.reason)
                continue
            self._others |= {guest.vmid: (kind, guest) for guest in guests}

    def remove(self, journal: Journal, number: int) -> str:
        if number in self._others:
            kind, guest = self._others[number]
            with ssh_access(section(self._settings), guest.node) as on_node:
                if on_node is not None:
                    return kind.remove_orphan(on_node, guest, journal)
        cluster, node = section(self._settings), nodes_of(self._settings)[0]
        access = access_to(cluster, node, SystemClock(), journal)
        return remove_orphan(access, choose(self._vms, number))
