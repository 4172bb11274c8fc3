"""Sites of a Proxmox VE cluster, one per node, and tasks other than measuring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from pvebench.drivers.backend_router import BackendRouter
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import (
    AuditedCluster,
    AuditedVm,
    DriverContext,
    Engine,
    Finding,
    attempt,
    guest_image,
)
from pvebench.drivers.linux.node_exporter import NodeExporterProbe, fetch, read_counters
from pvebench.drivers.proxmox.api.connection import TOKEN_VARIABLE, Api
from pvebench.drivers.proxmox.api.faults import INIT, readable
from pvebench.drivers.proxmox.api.privileges import missing_audit_rights
from pvebench.drivers.proxmox.api.tasks import share_of_log
from pvebench.drivers.proxmox.cluster_access import access_to, by_ssh, connect, ssh_access
from pvebench.drivers.proxmox.hypervisor import BOOT_SECONDS, ProxmoxHypervisor
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard, OperationGuard
from pvebench.drivers.proxmox.node.node_backends import NODE_BACKENDS, NodeBackend
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh, check_node
from pvebench.drivers.proxmox.node.node_state import LoadGuard, NodeProbe
from pvebench.drivers.proxmox.node.storage_options import drives_of, identity_of
from pvebench.drivers.proxmox.orphans import ClusterOrphans, find_orphans
from pvebench.drivers.proxmox.proxmox_settings import (
    ClusterSettings,
    LimitSettings,
    OperationSettings,
    ProxmoxSettings,
    nodes_of,
    section,
)
from pvebench.drivers.proxmox.setup.checks import NodeChecks
from pvebench.drivers.proxmox.vm.bench_vm import KIND, read_config
from pvebench.drivers.proxmox.vm.description import mark_of
from pvebench.drivers.proxmox.vm.leftover_vms import KEPT, undo_vms
from pvebench.drivers.proxmox.vm.vm_create import NodeContext, VmOptions, find_iso
from pvebench.drivers.storages.server_link import ServerLink
from pvebench.errors import AccessDenied, DriverError, PvebenchError, ServerGone
from pvebench.guest.build import needs_build
from pvebench.guest.image import GuestImage, load_image
from pvebench.log import log
from pvebench.model.disk import Bus
from pvebench.model.ports import (
    Clock,
    Guard,
    HostProbe,
    HostSnapshot,
    Journal,
    Site,
    StorageFunctions,
    Traffic,
    VmFunctions,
    of_kinds,
)
from pvebench.model.storage_use import Space
from pvebench.model.volume import Identity
from pvebench.model.workload import Case

_POLL_SECONDS: Final = 0.3
"""Interval of polls, seconds. Each call occupies one of the few workers of the node's API."""


class ClusterEngine(Engine):
    """`drivers.driver.Engine` of a cluster."""

    boot_limit = BOOT_SECONDS

    def sites(self, settings: ClusterSettings, place: DriverContext) -> list[Site]:
        """Return the nodes of the settings, without any request."""
        image = guest_image(settings, place)
        cluster = section(settings)
        return [_site(cluster, node, image, place) for node in nodes_of(settings)]

    def undo(self, settings: ClusterSettings, journal: Journal) -> list[str]:
        """Undo open journal entries on all nodes; contact only those nodes."""
        lines = []
        for backend in NODE_BACKENDS.values():
            for node in _nodes_in(journal, backend.journal_kind, settings):
                with ssh_access(section(settings), node) as on_node:
                    lines += backend.undo(on_node, node, journal)
        for node in _nodes_in(journal, KIND, settings):
            cluster = section(settings)
            access = access_to(cluster, node, SystemClock(), journal)
            lines += undo_vms(access, keep=cluster.keep_volumes)
        return lines

    def kept(self, journal: Journal) -> list[str]:
        """Return a line about each kept VM with its volumes."""
        return [
            f"VM {details.get('vmid')} on {details.get('node')} kept by setting, with its filled "
            "volumes; `pvebench cleanup --orphans` lists and removes it"
            for _, details in of_kinds(journal, KEPT)
        ]

    def check(self, settings: ClusterSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        """Yield findings about each node of the cluster and its node_exporter."""
        nodes = nodes_of(settings)
        for node in nodes:
            own = [case for case in cases if case.scenario.node == node]
            for name, good, text in _check_node(settings, node, own):
                yield (f"{node}: {name}" if len(nodes) > 1 else name), good, readable(text)

    def identities(
        self, settings: ClusterSettings
    ) -> dict[tuple[str, str], Callable[[], Identity]]:
        cluster, clock = section(settings), SystemClock()
        return {
            (node, name): partial(_identity, cluster, node, storage.id, clock)
            for node in nodes_of(settings)
            for name, storage in cluster.storages_on(node).items()
        }

    def clocks(self, settings: ClusterSettings) -> Iterator[tuple[str, float | None]]:
        """Yield each node's time."""
        for node in nodes_of(settings):
            api = connect(section(settings), node, SystemClock())
            try:
                yield node, float(api.get(f"/nodes/{node}/time")["time"])
            except PvebenchError:
                yield node, None

    def read_vms(self, settings: ClusterSettings) -> AuditedCluster:
        cluster, node, clock = section(settings), nodes_of(settings)[0], SystemClock()
        names: dict[str, list[str]] = {}
        for name, entry in cluster.storages.items():
            names.setdefault(entry.id, []).append(name)
        return read_cluster(connect(cluster, node, clock), clock, names)

    def orphan_finder(self, settings: ClusterSettings) -> ClusterOrphans:
        return ClusterOrphans(settings)


def _identity(cluster: ProxmoxSettings, node: str, storage: str, clock: SystemClock) -> Identity:
    api = connect(cluster, node, clock)
    return identity_of(api, storage, drives_of(api, node))


# --- All VMs of a cluster, for `pvebench advise --vms`. It only reads.

_PAUSE_SECONDS: Final = 0.2
"""Between two VMs: each of a node's three API workers handles one request at a time."""


def read_cluster(api: Api, clock: Clock, names: Mapping[str, Sequence[str]]) -> AuditedCluster:
    """Return all VMs except those of pvebench, with one request for each.

    Args:
        names: ID of a storage -> its names in packs.

    Raises AccessDenied: rights of `proxmox init --with-advice` are missing. Others as `Api`.
    """
    if missing := missing_audit_rights(api.get("/access/permissions")):
        raise AccessDenied(
            f"the token lacks {'; '.join(missing)}",
            cause="an audit reads all VMs, which a benchmark may not",
            next_step=f"run `{INIT} --with-advice`",
        )
    vms: list[AuditedVm] = []
    unread: list[str] = []
    silent: set[str] = set()
    for row in api.get("/cluster/resources", type="vm"):
        if row.get("type") != "qemu" or row.get("template"):
            continue
        if not {"node", "vmid"} <= row.keys():
            number = str(row.get("id", "of an unknown number")).rpartition("/")[2]
            unread.append(f"VM {number}: listed without its node or number")
            continue
        if row["node"] in silent and row.get("status") == "unknown":
            unread.append(f"VM {row['vmid']}: node {row['node']} does not respond")
            continue
        try:
            vm = _read_vm(api, row)
            vms += [] if mark_of(vm.config) else [vm]
        except DriverError as error:  # moved or removed since the list, no access, or no response
            unread.append(f"VM {row['vmid']}: {error.happened}")
            silent |= {row["node"]} if isinstance(error, ServerGone) else set()
        clock.sleep(_PAUSE_SECONDS)
    storages: dict[str, dict[str, str]] = {}
    try:
        storages |= {str(row["storage"]): _texts(row) for row in api.get("/storage")}
    except DriverError as error:
        unread.append(f"storages: {error.happened}")
    return AuditedCluster(
        vms=tuple(sorted(vms, key=lambda audited_vm: audited_vm.vmid)),
        storages=storages,
        names={key: tuple(own) for key, own in names.items()},
        unread=tuple(unread),
    )


def _read_vm(api: Api, row: Mapping[str, Any]) -> AuditedVm:
    seen = read_config(api, f"/nodes/{row['node']}/qemu/{row['vmid']}")
    config = _texts(seen.values)
    return AuditedVm(
        node=str(row["node"]),
        vmid=int(row["vmid"]),
        name=config.get("name", ""),
        config=config,
        pending={key: str(change.get("pending", "")) for key, change in seen.waiting.items()},
    )


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in row.items()}


# --- Sites.


def vm_of(
    cluster: ProxmoxSettings,
    node: str,
    image: GuestImage,
    place: DriverContext,
    traffic: Traffic | None = None,
) -> ProxmoxHypervisor:
    """Return the benchmark VM of a node; nothing is created yet."""
    context = NodeContext(
        api=connect(cluster, node, place.clock, traffic),
        clock=place.clock,
        journal=place.journal,
        node=node,
        pool=cluster.pool,
        vmids=cluster.vmids,
        image=image,
        storages=cluster.storages_on(node),
    )
    options = VmOptions(
        iso_storage=cluster.iso_storage,
        cpu=cluster.cpu,
        machine=cluster.machine,
        kvm=cluster.kvm,
        keep=cluster.keep_volumes,
    )
    return ProxmoxHypervisor(context, options)


def _site(cluster: ProxmoxSettings, node: str, image: GuestImage, place: DriverContext) -> Site:
    traffic = Traffic()
    on_node = by_ssh(cluster, node)
    vm = vm_of(cluster, node, image, place, traffic)
    vm.targets = cluster.operations or OperationSettings()
    nodes = [on_node] if on_node is not None else []
    kinds = [(kind, ssh) for ssh in nodes for kind in NODE_BACKENDS.values()]
    backends = {kind.bus: kind.make(ssh, vm.context, cluster) for kind, ssh in kinds}
    router = BackendRouter(vm, backends, volumes=backends)
    url = cluster.node_exporter.replace("{node}", node)
    counters = NodeExporterProbe(url).snapshot if url else None
    if on_node is not None:
        vm.use_ssh(on_node)
        counters = partial(_counters, on_node, vm, router)
    probe = NodeProbe(vm.averages, counters)
    api = connect(cluster, node, place.clock, traffic)
    claims = Claims(api, node, lambda: vm.vm, place.clock, vm.further_vmids)
    guard = NodeGuard(api, node, storages=cluster.storages_on(node), claims=claims)
    guard.needs = partial(_needs_of, vm, backends)
    drives = cache(partial(drives_of, api, node))  # the node queries each drive
    return Site(
        node=node,
        hypervisor=router,
        probe=probe,
        clock=place.clock,
        poll_seconds=_POLL_SECONDS,
        vms=VmFunctions(
            take_snapshots=vm.take_snapshots, operate=vm.operate, further_vm=vm.further_vm
        ),
        storages=StorageFunctions(
            identify=lambda name: identity_of(api, cluster.storages_on(node)[name].id, drives()),
            networks={
                # pvebench does not run on the node, so it cannot measure round trips.
                name: ServerLink(link_bits_per_second=entry.link_bits_per_second)
                for name, entry in cluster.storages.items()
                if entry.link_bits_per_second
            },
            free=guard.free,
            seen=guard.seen,
        ),
        upkeep=vm.upkeep,
        guards=(
            guard,
            *(kind.guard(ssh) for kind, ssh in kinds),
            *_limits(cluster, node, api, probe, place.clock),
        ),
        fill_notes=vm if cluster.keep_volumes else None,
        traffic=traffic,
    )


def _needs_of(vm: ProxmoxHypervisor, backends: Mapping[Bus, NodeBackend], case: Case) -> int:
    """Return the bytes that the volumes of `case` still need; 0 if unknown."""
    backend = backends.get(case.scenario.disk.bus)
    return backend.needs_bytes(case.scenario) if backend else vm.needs_of(case)


def _counters(
    node: NodeSsh, vm: ProxmoxHypervisor, router: BackendRouter[NodeBackend]
) -> HostSnapshot:
    """Return the counters of a node, and of the VM or the backend in use, over SSH."""
    if (backend := router.replacement) is not None:
        return node.snapshot(0, backend.devices, backend.vmid)
    return node.snapshot(vm.vmid, vm.devices)


def _nodes_in(journal: Journal, kind: str, settings: ClusterSettings) -> list[str]:
    """Return the nodes of a kind's journal entries; an entry without one is reported anywhere."""
    entries = of_kinds(journal, kind)
    return sorted({details.get("node") or nodes_of(settings)[0] for _, details in entries})


def _limits(
    cluster: ProxmoxSettings, node: str, api: Api, probe: HostProbe, clock: Clock
) -> Iterator[Guard]:
    """Yield the guards of the limits that are set."""
    if cluster.operations is not None:
        per_day = cluster.operations.per_day
        yield OperationGuard(api, node, str(api.login), per_day=per_day)
    if cluster.limits != LimitSettings():
        yield LoadGuard(probe, clock, cluster.limits)


def _check_node(settings: ClusterSettings, node: str, cases: Sequence[Case]) -> Iterator[Finding]:
    cluster = section(settings)
    try:
        api = connect(cluster, node, SystemClock())
    except PvebenchError as error:
        yield "token", False, str(error)
        return
    yield "token", True, _token_source(cluster)
    findings = list(NodeChecks(api, cluster, node, cases).all())
    yield from findings
    if len(findings) > 1:  # else the server did not even report its version
        yield _image(settings, node, api, cluster.iso_storage)
        yield attempt("benchmark VMs", lambda: _orphans_on(api, cluster.pool, node))
        yield attempt("task log", lambda: share_of_log(api, node, str(api.login), time.time()))
    with ssh_access(cluster, node) as on_node:
        if on_node is not None:
            yield from check_node(on_node)
        else:
            yield _exporter(cluster.node_exporter.replace("{node}", node))
        for kind in NODE_BACKENDS.values():
            yield from kind.check(on_node, api, cluster, cases)


def spaces(settings: ClusterSettings) -> dict[tuple[str, str], Space]:
    """Return (node, storage) -> free space, where known. Raises PvebenchError: on no node."""
    cluster = section(settings)
    spaces: dict[tuple[str, str], Space] = {}
    for node in nodes_of(settings):
        api = connect(cluster, node, SystemClock())
        try:
            known = NodeChecks(api, cluster, node).spaces
        except DriverError as error:
            if node == nodes_of(settings)[-1] and not spaces:
                raise
            log.warning("free space not checked", node=node, reason=error.reason)
            continue
        spaces |= {(node, name): space for name, space in known.items()}
    return spaces


def _token_source(cluster: ProxmoxSettings) -> str:
    if TOKEN_VARIABLE in os.environ or cluster.token_file is None:
        return f"from {TOKEN_VARIABLE}"
    return f"{cluster.token_file}, mode {cluster.token_file.stat().st_mode & 0o777:04o}"


def _image(settings: ClusterSettings, node: str, api: Api, storage: str) -> Finding:
    try:
        if needs_build(settings.image_directory):
            return "guest image", True, f"the first run builds it and uploads it to {storage}"
        image = load_image(settings.image_directory)
        volid = find_iso(api, node, storage, image)
    except PvebenchError as error:
        return "guest image", False, str(error)
    return "guest image", True, volid or f"the first run uploads it to {storage}"


def _orphans_on(api: Api, pool: str, node: str) -> str:
    """Return the VMs of any pvebench on the node; the owning instance is unknown here."""
    vms = [vm.text for vm in find_orphans(api, pool=pool, known={}) if vm.node == node]
    advice = "; if no pvebench uses them, run pvebench cleanup --orphans" if vms else ""
    return f"{'; '.join(vms) or 'none'}{advice}"


def _exporter(url: str) -> Finding:
    if not url:
        text = "not configured; the API's values are used, marked total_coarse"
        return "node_exporter", True, text
    try:
        cpus = read_counters(fetch(url)).cpus
    except PvebenchError as error:
        return "node_exporter", False, str(error)
    return "node_exporter", bool(cpus), f"{cpus} CPUs at {url}"


ENGINE: Final = ClusterEngine()
