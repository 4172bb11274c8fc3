"""A Proxmox VE cluster put together as sites, one a node, and what is done beside measuring."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.driver import Engine, Finding, Workplace, attempt, guest_image, volume_bytes
from pvebench.drivers.host.exporter import NodeExporterProbe, fetch, read_counters
from pvebench.drivers.host.ssh import SshConnection
from pvebench.drivers.proxmox.claims import Claims
from pvebench.drivers.proxmox.connection import TOKEN_VARIABLE, Connection, Server, read_token
from pvebench.drivers.proxmox.faults import Rejected, spoken
from pvebench.drivers.proxmox.inspection import inspect
from pvebench.drivers.proxmox.leftovers import (
    KEPT,
    Stray,
    choose,
    find_strays,
    journalled,
    remove_stray,
    undo_pending,
)
from pvebench.drivers.proxmox.load import LoadGuard, LoadLimits, NodeProbe
from pvebench.drivers.proxmox.making import VmOptions, find_iso
from pvebench.drivers.proxmox.neighbours import NodeGuard
from pvebench.drivers.proxmox.node import ProxmoxNode
from pvebench.drivers.proxmox.node_ssh import NodeCounters, NodeSsh, check_node
from pvebench.drivers.proxmox.settings import ClusterSettings, ProxmoxSettings, nodes_of, section
from pvebench.drivers.proxmox.storage_types import ClusterStorage
from pvebench.drivers.proxmox.vm import KIND, VmPlace
from pvebench.drivers.storages.network import ServerLink
from pvebench.errors import AccessDenied, PvebenchError
from pvebench.guest import GuestImage, load_image
from pvebench.model.guard import Guard
from pvebench.model.ports import Clock, HostProbe, Journal, Site
from pvebench.model.traffic import Traffic
from pvebench.model.workload import Case

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
        lines: list[str] = []
        for node in sorted(nodes):
            api = connect(given, node, clock)
            lines += undo_pending(journal, api, clock, node=node, keep=given.keep_volumes)
        return lines

    def kept(self, journal: Journal) -> list[str]:
        """Return a line about each VM that was set aside with its volumes."""
        return [
            f"VM {details['vmid']} on {details['node']} is kept by choice, with its filled "
            "volumes; pvebench sweep shows and removes it"
            for _, kind, details in journal.pending()
            if kind == KEPT
        ]

    def check(self, settings: ClusterSettings, cases: Sequence[Case]) -> Iterator[Finding]:
        """Yield what is found on each node of the cluster, and at its node_exporter."""
        nodes = nodes_of(settings)
        for node in nodes:
            needs = volume_bytes([case for case in cases if case.scenario.node == node])
            for name, good, text in _check_node(settings, node, needs):
                yield (f"{node}: {name}" if len(nodes) > 1 else name), good, spoken(text)

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


class ClusterSweeper:
    """`drivers.driver.Sweeper` of the pool in which VMs are made."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._pool = section(settings).pool
        self._found: list[Stray] = []

    def find(self, journal: Journal) -> list[Stray]:
        """Return the VMs in our pool that some pvebench made, none of them in use by this one."""
        self._found = find_strays(self._connect(), pool=self._pool, known=journalled(journal))
        return self._found

    def remove(self, journal: Journal, number: int) -> str:
        stray = choose(self._found, number)
        return remove_stray(
            self._connect(), stray, pool=self._pool, clock=SystemClock(), journal=journal
        )

    def _connect(self) -> Connection:
        return connect(section(self._settings), nodes_of(self._settings)[0], SystemClock())


def server_of(given: ProxmoxSettings, node: str) -> Server:
    """Return where the API is and how it is trusted, for the worker of `node`."""
    return Server(
        host=given.host.replace("{node}", node),
        port=given.port,
        ca_file=given.tls.ca_file,
        fingerprint=given.tls.fingerprint,
    )


def connect(
    given: ProxmoxSettings, node: str, clock: Clock, traffic: Traffic | None = None
) -> Connection:
    """Return a connection with the configured token; nothing is sent yet."""
    return Connection(server_of(given, node), read_token(given.token_file), clock, traffic)


def storages_of(given: ProxmoxSettings, node: str) -> dict[str, ClusterStorage]:
    """Return name in packs -> storage of the cluster, for those that `node` has."""
    return {
        name: ClusterStorage(id=entry.id or name, type=entry.type)
        for name, entry in given.storages.items()
        if entry.is_on(node)
    }


def _place(given: ProxmoxSettings, node: str) -> VmPlace:
    return VmPlace(node=node, pool=given.pool, vmids=given.vmids)


def _exporter_url(given: ProxmoxSettings, node: str) -> str:
    return given.node_exporter.replace("{node}", node)


def _site(given: ProxmoxSettings, node: str, image: GuestImage, place: Workplace) -> Site:
    traffic = Traffic()
    on_node = _by_ssh(given, node)
    hypervisor = ProxmoxNode(
        connect(given, node, place.clock, traffic),
        place=_place(given, node),
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
    if on_node is not None:
        hypervisor.use_ssh(on_node)
    probe = NodeProbe(hypervisor, _counters(given, node, hypervisor, on_node))
    # Round trips go from the node, where pvebench is not: only what is declared is known.
    networks = {
        name: ServerLink(link_bits_per_second=entry.link_bits_per_second)
        for name, entry in given.storages.items()
        if entry.link_bits_per_second
    }
    api = connect(given, node, place.clock, traffic)
    guard = _guard(given, hypervisor, node, api, place.clock)
    guard.look_for_room(hypervisor.needs_bytes)
    return Site(
        node=node,
        hypervisor=hypervisor,
        probe=probe,
        clock=place.clock,
        poll_seconds=_POLL_SECONDS,
        networks=networks,
        upkeep=hypervisor.upkeep,
        guards=(guard, *_load_guards(given, probe, place.clock)),
        free=guard.free,
        used=guard.used,
        fill_notes=hypervisor if given.keep_volumes else None,
        traffic=traffic,
    )


def _by_ssh(given: ProxmoxSettings, node: str) -> NodeSsh | None:
    return NodeSsh(SshConnection(given.ssh.of_node(node))) if given.ssh is not None else None


def _counters(
    given: ProxmoxSettings, node: str, hypervisor: ProxmoxNode, on_node: NodeSsh | None
) -> HostProbe | None:
    """Return what counts on the node: ssh tells all that node_exporter does, and more."""
    if on_node is not None:
        return NodeCounters(on_node, lambda: hypervisor.vmid, lambda: hypervisor.device)
    url = _exporter_url(given, node)
    return NodeExporterProbe(url) if url else None


def _guard(
    given: ProxmoxSettings, hypervisor: ProxmoxNode, node: str, api: Connection, clock: Clock
) -> NodeGuard:
    return NodeGuard(
        api,
        node,
        storages=storages_of(given, node),
        shared=frozenset(name for name, entry in given.storages.items() if entry.is_shared),
        floors={name: entry.free_floor or 0 for name, entry in given.storages.items()},
        claims=Claims(api, node, lambda: hypervisor.vm, clock),
    )


def _load_guards(given: ProxmoxSettings, probe: HostProbe, clock: Clock) -> list[Guard]:
    limits = LoadLimits(cpu_ratio=given.limits.cpu, io_pressure_ratio=given.limits.io_pressure)
    return [] if limits == LoadLimits() else [LoadGuard(probe, clock, limits)]


def _check_node(
    settings: ClusterSettings, node: str, needs: Mapping[str, int]
) -> Iterator[Finding]:
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
            place=_place(given, node),
            storages=storages_of(given, node),
            iso_storage=given.iso_storage,
            major=given.version,
            needs=needs,
        )
    )
    yield from found
    if len(found) > 1:  # else the server does not even tell its version
        yield _image(settings, node, api, given.iso_storage)
        yield attempt("benchmark VMs", lambda: _made_here(api, given.pool, node))
    if (on_node := _by_ssh(given, node)) is not None:
        yield from check_node(on_node)
    else:
        yield _exporter(_exporter_url(given, node))


def _token_word(given: ProxmoxSettings) -> str:
    if TOKEN_VARIABLE in os.environ or given.token_file is None:
        return f"from {TOKEN_VARIABLE}"
    return f"{given.token_file}, mode {given.token_file.stat().st_mode & 0o777:04o}"


def _image(settings: ClusterSettings, node: str, api: Connection, storage: str) -> Finding:
    try:
        image = load_image(settings.image_directory)
        found = find_iso(api, node, storage, image)
    except PvebenchError as error:
        return "guest image", False, str(error)
    return "guest image", True, found or f"to be uploaded to {storage} by the first run"


def _made_here(api: Connection, pool: str, node: str) -> str:
    """Return what some pvebench made on the node; from here nobody can tell which one."""
    found = [one.text for one in find_strays(api, pool=pool, known={}) if one.node == node]
    advice = "; if no pvebench uses it now: pvebench sweep" if found else ""
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
