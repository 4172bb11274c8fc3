"""Space and content types that the packs' cases need on the storages of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pvebench.drivers.proxmox.cluster_access import storages_of
from pvebench.drivers.proxmox.proxmox_settings import OperationSettings, ProxmoxSettings
from pvebench.drivers.proxmox.setup.checks import Needs
from pvebench.model.space import SpaceNeed
from pvebench.model.workload import Case


def needs_of(cluster: ProxmoxSettings, node: str, cases: Sequence[Case]) -> Needs:
    """Return the needs of the cases of a node."""
    space = SpaceNeed(cluster.kinds()).add(*cases).total()
    volumes = {name: space.pop(name) for name in cluster.storages if name in space}
    several = [case for case in cases if case.workload.further_vms]
    containers = _container_storages(cluster, node, cases)
    restores = any(case.workload.during == "restore" for case in cases)
    vms = max((1 + case.workload.further_vms for case in several), default=1)
    sizes = ((1 + one.workload.further_vms) * one.scenario.machine.memory_bytes for one in several)
    return Needs(
        volumes=volumes,
        vmids=vms + restores + bool(containers),
        memory=max(sizes, default=0),
        containers=containers,
        operations=None if cluster.operations is None else _targets(cluster.operations, space),
    )


def _targets(
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


def _container_storages(cluster: ProxmoxSettings, node: str, cases: Sequence[Case]) -> set[str]:
    """Return the cluster storages for the volumes of the cases' containers."""
    storages = storages_of(cluster, node)
    names = {case.scenario.storage for case in cases if case.scenario.disk.in_container}
    roots = {cluster.container_storage} if names and cluster.container_storage else set()
    return {storages[name].id for name in names} | roots
