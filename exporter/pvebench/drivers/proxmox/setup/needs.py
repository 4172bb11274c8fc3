"""Space and content types that the packs' cases need on the storages of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pvebench.drivers.driver import volume_bytes
from pvebench.drivers.proxmox.cluster_access import storages_of
from pvebench.drivers.proxmox.containers.container import ROOT_BYTES
from pvebench.drivers.proxmox.settings import OperationSettings, ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import Needs
from pvebench.drivers.proxmox.vm.drive import space_needed
from pvebench.drivers.proxmox.vm.vm_snapshots import vmstate_bytes
from pvebench.model.workload import SNAPSHOT_OPERATIONS, SNAPSHOT_RAM, Case


def needs_of(cluster: ProxmoxSettings, node: str, cases: Sequence[Case]) -> Needs:
    """Return the needs of the cases of a node."""
    return Needs(
        volumes=_volumes(cluster, cases),
        containers=_container_storages(cluster, node, cases),
        operations=None if cluster.operations is None else _targets(cluster.operations, cases),
    )


def _targets(
    chosen: OperationSettings, cases: Sequence[Case]
) -> dict[str, tuple[frozenset[str], int]]:
    """Return cluster storage -> content types and bytes that operations need on it.

    Operations run one at a time, but a backup with fleecing needs both of its storages at once.
    """
    sizes = {case.workload.during: case.scenario.volume_bytes for case in sorted(cases, key=_size)}
    backup = (chosen.backup_storage, "backup")
    copies = {
        "backup": (backup,),
        "backup-fleecing": (backup, (chosen.fleecing_storage, "images")),
        "restore": (backup,),
        "move": ((chosen.move_storage, "images"),),
    }
    needs: dict[str, tuple[frozenset[str], int]] = {}
    for name, targets in copies.items():
        together = Counter(storage for storage, _ in targets)
        for storage, content in targets:
            contents, size = needs.get(storage, (frozenset(), 0))
            size = max(size, together[storage] * sizes.get(name, 0))
            needs[storage] = contents | {content}, size
    return {storage: need for storage, need in needs.items() if storage}


def _size(case: Case) -> int:
    return case.scenario.volume_bytes


def _volumes(cluster: ProxmoxSettings, cases: Sequence[Case]) -> dict[str, int]:
    """Return storage -> bytes of all volumes; containers have their own volumes."""

    def needed(case: Case) -> int:
        size = space_needed(case.scenario, cluster.storages[case.scenario.storage].type)
        if case.workload.during == SNAPSHOT_RAM:
            size += vmstate_bytes(case.scenario.machine.memory_bytes)
        return size + _size(case) * (case.workload.during in (*SNAPSHOT_OPERATIONS, "restore"))

    inside = [case for case in cases if case.scenario.disk.in_container]
    guests = [case for case in cases if not case.scenario.disk.in_container]
    sizes = volume_bytes(guests, needed)
    root = 0 if cluster.container_storage else ROOT_BYTES
    for name, size in volume_bytes(inside).items():
        sizes[name] = sizes.get(name, 0) + size + root
    return sizes


def _container_storages(cluster: ProxmoxSettings, node: str, cases: Sequence[Case]) -> set[str]:
    """Return the cluster storages for the volumes of the cases' containers."""
    known = storages_of(cluster, node)
    names = {case.scenario.storage for case in cases if case.scenario.disk.in_container}
    roots = {cluster.container_storage} if names and cluster.container_storage else set()
    return {known[name].id for name in names} | roots
