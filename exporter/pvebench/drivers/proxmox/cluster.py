"""A Proxmox VE cluster put together as sites, one a node, and what is done beside measuring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import Engine, Finding, Workplace, attempt, guest_image, volume_bytes
from pvebench.drivers.linux.node_exporter import NodeExporterProbe, fetch, read_counters
from pvebench.drivers.proxmox.api.connection import TOKEN_VARIABLE, Api, Connection
from pvebench.drivers.proxmox.api.faults import Rejected, spoken
from pvebench.drivers.proxmox.api.tasks import share_of_log
from pvebench.drivers.proxmox.cluster_access import (
    asked,
    by_ssh,
    connect,
    exporter_url,
    place_of,
    storages_of,
)
from pvebench.drivers.proxmox.containers.container import KIND as CONTAINER
from pvebench.drivers.proxmox.containers.container import ROOT_BYTES, undo_containers
from pvebench.drivers.proxmox.containers.node_containers import NodeContainers
from pvebench.drivers.proxmox.hypervisor import ProxmoxNode
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard
from pvebench.drivers.proxmox.node.node_ssh import ContainerGuard, NodeCounters, NodeSsh, check_node
from pvebench.drivers.proxmox.node.node_state import LoadGuard, LoadLimits, NodeProbe
from pvebench.drivers.proxmox.node_router import NodeRouter
from pvebench.drivers.proxmox.orphans import ClusterSweeper
from pvebench.drivers.proxmox.settings import ClusterSettings, ProxmoxSettings, nodes_of, section
from pvebench.drivers.proxmox.setup.checks import inspect
from pvebench.drivers.proxmox.vm.bench_vm import KIND
from pvebench.drivers.proxmox.vm.leftovers import KEPT, find_orphans, undo_pending
from pvebench.drivers.proxmox.vm.vm_create import VmOptions, find_iso
from pvebench.drivers.storages.network import ServerLink
from pvebench.errors import AccessDenied, PvebenchError
from pvebench.guest import GuestImage, load_image, to_be_built
from pvebench.model.ports import Clock, Guard, HostProbe, Journal, Site, Traffic
from pvebench.model.volume import Identity
from pvebench.model.workload import Case

# --- Which storage of the cluster it is, as far as the API shows it: its configuration.
#
# The disks below a storage of the nodes are not in it. `pvebench check` says so.

_KEYS: Final = (
    "type",
    "path",
    "server",
    "export",
    "share",
    "subdir",
    "pool",
    "data-pool",
    "namespace",
    "monhost",
    "vgname",
    "thinpool",
    "portal",
    "target",
    "volume",
)
"""Of storage.cfg, what names the place of the data. Others, such as `content`, are no identity."""


def identity_of(api: Api, storage: str) -> Identity:
    """Return what the cluster's configuration says of a storage; empty: the token may not see it.

    Raises:
        DriverError: the server does not answer.
    """
    rows = api.get("/storage")
    row: dict[str, Any] = next((one for one in rows if one["storage"] == storage), {})
    return {key: str(row[key]) for key in _KEYS if row.get(key)}


_POLL_SECONDS: Final = 0.3
"""Each call holds one of the few workers of the node's API; the job's start is seen soon enough."""


class ClusterEngine(Engine):
    """`drivers.driver.Engine` of a cluster."""

    def sites(self, settings: ClusterSettings, place: Workplace) -> list[Site]:
        """Return the nodes that the settings name; nothing is asked of them yet."""
        image = guest_image(settings, place)
        given = section(settings)
        return [_site(given, node, image, place) for node in nodes_of(settings)]

    def undo(self, settings: ClusterSettings, journal: Journal) -> list[str]:
        """Undo what is open in the journal, on whatever node; only those nodes are asked."""
        nodes = {details["node"] for _, kind, details in journal.pending() if kind == KIND}
        given, clock = section(settings), SystemClock()
        lines = _undo_containers(given, journal)
        for node in sorted(nodes):
            api = connect(given, node, clock)
            lines += undo_pending(journal, api, clock, node=node, keep=given.keep_volumes)
        return lines

    def kept(self, journal: Journal) -> list[str]:
        """Return a line about each VM that was set aside with its volumes."""
        return [
            f"VM {details['vmid']} on {details['node']} is kept by choice, with its filled "
            "volumes; pvebench cleanup --orphans shows and removes it"
            for _, kind, details in journal.pending()
            if kind == KEPT
        ]

    def check(self, settings: ClusterSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        """Yield what is found on each node of the cluster, and at its node_exporter."""
        nodes = nodes_of(settings)
        for node in nodes:
            own = [case for case in cases if case.scenario.node == node]
            for name, good, text in _check_node(settings, node, own):
                yield (f"{node}: {name}" if len(nodes) > 1 else name), good, spoken(text)

    def identities(
        self, settings: ClusterSettings
    ) -> dict[tuple[str, str], Callable[[], Identity]]:
        given, clock = section(settings), SystemClock()
        return {
            (node, name): partial(_identity, given, node, storage.id, clock)
            for node in nodes_of(settings)
            for name, storage in storages_of(given, node).items()
        }

    def clocks(self, settings: ClusterSettings) -> Iterator[tuple[str, float | None]]:
        """Yield each node's time."""
        for node in nodes_of(settings):
            api = connect(section(settings), node, SystemClock())
            try:
                yield node, float(api.get(f"/nodes/{node}/time")["time"])
            except (AccessDenied, Rejected):
                yield node, None

    def sweeper(self, settings: ClusterSettings) -> ClusterSweeper:
        return ClusterSweeper(settings)


def _identity(given: ProxmoxSettings, node: str, storage: str, clock: SystemClock) -> Identity:
    return identity_of(connect(given, node, clock), storage)


def _site(given: ProxmoxSettings, node: str, image: GuestImage, place: Workplace) -> Site:
    traffic = Traffic()
    on_node = by_ssh(given, node)
    vm = ProxmoxNode(
        connect(given, node, place.clock, traffic),
        place=place_of(given, node),
        options=VmOptions(
            iso_storage=given.iso_storage,
            cpu=given.cpu,
            machine=given.machine,
            kvm=given.kvm,
            keep=given.keep_volumes,
        ),
        image=image,
        journal=place.journal,
        clock=place.clock,
        storages=storages_of(given, node),
    )
    hypervisor: ProxmoxNode | NodeRouter = vm
    if on_node is not None:
        vm.use_ssh(on_node)
        containers = NodeContainers(
            on_node,
            connect(given, node, place.clock, traffic),
            place=place_of(given, node),
            image=image,
            journal=place.journal,
            storages=storages_of(given, node),
            root=given.container_storage,
        )
        hypervisor = NodeRouter(vm, containers)
        counters: HostProbe | None = _by_ssh_counters(on_node, hypervisor)
    else:
        url = exporter_url(given, node)
        counters = NodeExporterProbe(url) if url else None
    probe = NodeProbe(vm, counters)
    # Round trips go from the node, where pvebench is not: only what is declared is known.
    networks = {
        name: ServerLink(link_bits_per_second=entry.link_bits_per_second)
        for name, entry in given.storages.items()
        if entry.link_bits_per_second
    }
    api = connect(given, node, place.clock, traffic)
    guard = _guard(given, vm, node, api, place.clock)
    guard.look_for_room(hypervisor.needs_bytes)
    return Site(
        node=node,
        hypervisor=hypervisor,
        probe=probe,
        clock=place.clock,
        poll_seconds=_POLL_SECONDS,
        networks=networks,
        upkeep=vm.upkeep,
        guards=(
            guard,
            *([ContainerGuard(on_node)] if on_node is not None else []),
            *_load_guards(given, probe, place.clock),
        ),
        free=guard.free,
        seen=guard.seen,
        identify=lambda name: identity_of(api, storages_of(given, node)[name].id),
        fill_notes=hypervisor if given.keep_volumes else None,
        traffic=traffic,
    )


def _by_ssh_counters(on_node: NodeSsh, measures: NodeRouter) -> NodeCounters:
    """Return what counts on the node by ssh: all that node_exporter tells, and more."""
    return NodeCounters(
        on_node,
        vmid=lambda: measures.vmid,
        devices=lambda: measures.devices,
        container=lambda: measures.containers.vmid,
    )


def _undo_containers(given: ProxmoxSettings, journal: Journal) -> list[str]:
    nodes = {details["node"] for _, kind, details in journal.pending() if kind == CONTAINER}
    lines: list[str] = []
    for node in sorted(nodes):
        with asked(given, node) as on_node:
            lines += undo_containers(journal, on_node, node=node)
    return lines


def _guard(
    given: ProxmoxSettings, hypervisor: ProxmoxNode, node: str, api: Connection, clock: Clock
) -> NodeGuard:
    return NodeGuard(
        api,
        node,
        storages=storages_of(given, node),
        shared=frozenset(name for name, entry in given.storages.items() if entry.is_shared),
        floors={name: entry.min_free or 0 for name, entry in given.storages.items()},
        claims=Claims(api, node, lambda: hypervisor.vm, clock),
    )


def _load_guards(given: ProxmoxSettings, probe: HostProbe, clock: Clock) -> list[Guard]:
    limits = LoadLimits(cpu_ratio=given.limits.cpu, io_pressure_ratio=given.limits.io_pressure)
    return [] if limits == LoadLimits() else [LoadGuard(probe, clock, limits)]


def _needs(given: ProxmoxSettings, cases: Sequence[Case]) -> dict[str, int]:
    """Return storage -> bytes of all volumes there; a container's is its own, not the VM's."""
    inside = [case for case in cases if case.scenario.disk.in_container]
    found = volume_bytes([case for case in cases if not case.scenario.disk.in_container])
    root = 0 if given.container_storage else ROOT_BYTES
    for name, size in volume_bytes(inside).items():
        found[name] = found.get(name, 0) + size + root
    return found


def _container_storages(given: ProxmoxSettings, node: str, cases: Sequence[Case]) -> set[str]:
    """Return the storages of the cluster on which the cases' containers have volumes."""
    known = storages_of(given, node)
    names = {case.scenario.storage for case in cases if case.scenario.disk.in_container}
    roots = {given.container_storage} if names and given.container_storage else set()
    return {known[name].id for name in names} | roots


def _check_node(settings: ClusterSettings, node: str, cases: Sequence[Case]) -> Iterator[Finding]:
    given = section(settings)
    try:
        api = connect(given, node, SystemClock())
    except PvebenchError as error:
        yield "token", False, str(error)
        return
    yield "token", True, _token_word(given)
    found = list(
        inspect(
            api,
            place=place_of(given, node),
            storages=storages_of(given, node),
            iso_storage=given.iso_storage,
            major=given.version,
            needs=_needs(given, cases),
            containers=_container_storages(given, node, cases),
        )
    )
    yield from found
    if len(found) > 1:  # else the server does not even tell its version
        yield _image(settings, node, api, given.iso_storage)
        yield attempt("benchmark VMs", lambda: _made_here(api, given.pool, node))
        yield attempt("task log", lambda: share_of_log(api, node, str(api.login), time.time()))
    if (on_node := by_ssh(given, node)) is not None:
        yield from check_node(on_node)
    else:
        yield _exporter(exporter_url(given, node))


def _token_word(given: ProxmoxSettings) -> str:
    if TOKEN_VARIABLE in os.environ or given.token_file is None:
        return f"from {TOKEN_VARIABLE}"
    return f"{given.token_file}, mode {given.token_file.stat().st_mode & 0o777:04o}"


def _image(settings: ClusterSettings, node: str, api: Connection, storage: str) -> Finding:
    try:
        if to_be_built(settings.image_directory):
            return "guest image", True, f"the first run builds it, and uploads it to {storage}"
        image = load_image(settings.image_directory)
        found = find_iso(api, node, storage, image)
    except PvebenchError as error:
        return "guest image", False, str(error)
    return "guest image", True, found or f"to be uploaded to {storage} by the first run"


def _made_here(api: Connection, pool: str, node: str) -> str:
    """Return what some pvebench made on the node; from here nobody can tell which one."""
    found = [one.text for one in find_orphans(api, pool=pool, known={}) if one.node == node]
    advice = "; if no pvebench uses it now: pvebench cleanup --orphans" if found else ""
    return f"{'; '.join(found) or 'none'}{advice}"


def _exporter(url: str) -> Finding:
    if not url:
        return (
            "node_exporter",
            True,
            "none is configured: the API's own figures are used, marked total_coarse",
        )
    try:
        cpus = read_counters(fetch(url)).cpus
    except PvebenchError as error:
        return "node_exporter", False, str(error)
    return "node_exporter", bool(cpus), f"{cpus} CPUs at {url}"


ENGINE: Final = ClusterEngine()
