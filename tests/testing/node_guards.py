"""The guard of a node of the simulated cluster, and a case for it."""

from __future__ import annotations

from pve.site import Site, scenario
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard
from pvebench.drivers.proxmox.vm.drive import ClusterStorage
from pvebench.model.workload import Case
from testing.packs import tool_workload

FIO = tool_workload("fio", {"rw": "read", "bs": "4k"}, ramp_seconds=1, runtime_seconds=1)


def case(storage: str = "local") -> Case:
    return Case(scenario=scenario(storage=storage), workload=FIO)


def guard(site: Site, **floors: int) -> NodeGuard:
    return NodeGuard(
        site.connect(),
        "pve1",
        claims=Claims(site.connect(), "pve1", lambda: site.node.vm, site.clock),
        now=site.clock.monotonic,
        storages={
            name: ClusterStorage(
                id=name, type=one.type, min_free=floors.get(name, 0), shared=one.shared
            )
            for name, one in site.cluster.storages.items()
        },
    )


def allow_root(site: Site) -> None:
    access = site.cluster.access
    for subject in (site.token.user, f"{site.token.user}!{site.token.name}"):
        access.acl.append(("/", subject, "StorageBenchNode"))
        access.not_inherited.add(("/", subject, "StorageBenchNode"))
