"""A node of a Proxmox VE cluster, put together from the settings. Imported only when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pvebench.cli.choice import section, volume_bytes
from pvebench.config import Settings
from pvebench.config.proxmox import ProxmoxSettings
from pvebench.drivers.host.exporter import NodeExporterProbe, fetch, read_counters
from pvebench.drivers.host.load import LoadGuard, LoadLimits
from pvebench.drivers.host.network import ServerLink
from pvebench.drivers.proxmox.connection import Connection, Server
from pvebench.drivers.proxmox.inspect import Finding, inspect
from pvebench.drivers.proxmox.iso import find_iso
from pvebench.drivers.proxmox.keeping import KEPT
from pvebench.drivers.proxmox.login import read_token
from pvebench.drivers.proxmox.manners import NodeGuard
from pvebench.drivers.proxmox.node import ProxmoxNode
from pvebench.drivers.proxmox.probe import NodeProbe
from pvebench.drivers.proxmox.shape import VmOptions
from pvebench.drivers.proxmox.storages import ClusterStorage
from pvebench.drivers.proxmox.stray import Stray, choose, find_strays
from pvebench.drivers.proxmox.stray import remove_stray as remove_found
from pvebench.drivers.proxmox.undo import undo_pending
from pvebench.drivers.proxmox.vm import KIND, Place
from pvebench.errors import PvebenchError
from pvebench.guest import GuestImage, default_directory, load_image
from pvebench.model.guard import Guard
from pvebench.model.ports import Clock, Journal, Site
from pvebench.model.traffic import Traffic
from pvebench.plan import Assignment

_POLL_SECONDS: Final = 0.3
"""Each call holds one of the few workers of the node's API; the job's start is seen soon enough."""


def server_of(given: ProxmoxSettings, node: str) -> Server:
    """Return where the API is and how it is trusted, for the worker of `node`."""
    return Server(
        host=given.host.replace("{node}", node), port=given.port, ca_file=given.tls.ca_file,
        fingerprint=given.tls.fingerprint,
    )  # fmt: skip


def connect(
    settings: Settings, node: str, clock: Clock, traffic: Traffic | None = None
) -> Connection:
    """Return a connection with the configured token; nothing is sent yet."""
    given = section(settings)
    return Connection(server_of(given, node), read_token(given.token_file), clock, traffic)


def place_of(settings: Settings, node: str) -> Place:
    """Return where VMs may be made."""
    given = section(settings)
    return Place(node=node, pool=given.pool, vmids=given.vmids)


def storages_of(given: ProxmoxSettings, node: str) -> dict[str, ClusterStorage]:
    """Return name in packs -> storage of the cluster, for those that `node` has."""
    return {
        name: ClusterStorage(id=entry.id or name, type=entry.type)
        for name, entry in given.storages.items()
        if not entry.nodes or node in entry.nodes
    }


def probe_of(settings: Settings, node: str) -> str:
    """Return the address of the node's node_exporter; empty: there is none."""
    return section(settings).node_exporter.replace("{node}", node)


def cluster_site(
    settings: Settings, node: str, image: GuestImage, journal: Journal, clock: Clock
) -> Site:
    """Return one node of those that the settings name; nothing is asked of it yet."""
    given, traffic = section(settings), Traffic()
    hypervisor = ProxmoxNode(
        connect(settings, node, clock, traffic), place=place_of(settings, node),
        options=VmOptions(
            iso_storage=given.iso_storage, cpu=given.cpu, machine=given.machine, kvm=given.kvm,
            keep=given.keep_volumes,
        ),
        image=image, journal=journal, clock=clock, storages=storages_of(given, node),
    )  # fmt: skip
    url = probe_of(settings, node)
    probe = NodeProbe(hypervisor, NodeExporterProbe(url) if url else None)
    # Round trips go from the node, where pvebench is not: only what is declared is known.
    networks = {
        name: ServerLink(link_bits_per_second=entry.link_bits_per_second)
        for name, entry in given.storages.items()
        if entry.link_bits_per_second
    }
    return Site(
        node=node, hypervisor=hypervisor, probe=probe, clock=clock, poll_seconds=_POLL_SECONDS,
        networks=networks, keeper=hypervisor if given.keep_volumes else None, traffic=traffic,
    )  # fmt: skip


def cluster_guards(
    settings: Settings, site: Site, clock: Clock
) -> tuple[list[Guard], Mapping[str, int]]:
    """Return what asks the node itself, and where free space is noted."""
    given, node = section(settings), site.node
    guard = NodeGuard(
        connect(settings, node, clock, site.traffic), node, storages=storages_of(given, node),
        shared=frozenset(name for name, entry in given.storages.items() if entry.is_shared),
        floors={name: entry.free_floor or 0 for name, entry in given.storages.items()},
    )  # fmt: skip
    limits = LoadLimits(cpu_ratio=given.limits.cpu, io_pressure_ratio=given.limits.io_pressure)
    if limits == LoadLimits():
        return [guard], guard.free
    return [guard, LoadGuard(site.probe, clock, limits)], guard.free


def strays(settings: Settings, journal: Journal, clock: Clock) -> list[Stray]:
    """Return the VMs in our pool that some pvebench made, and this one's journal does not know."""
    pending = journal.pending()
    known = {details["mark"] for _, kind, details in pending if kind == KIND}
    kept = {details["mark"] for _, kind, details in pending if kind == KEPT}
    api = connect(settings, settings.nodes_in_force()[0], clock)
    return find_strays(api, pool=section(settings).pool, known=known, kept=kept)


def remove_stray(
    settings: Settings, journal: Journal, found: list[Stray], vmid: int, clock: Clock
) -> str:
    """Remove one of those that were found; return a line about it."""
    api = connect(settings, settings.nodes_in_force()[0], clock)
    pool = section(settings).pool
    return remove_found(api, choose(found, vmid), pool=pool, clock=clock, journal=journal)


def kept_lines(journal: Journal) -> list[str]:
    """Return a line about each VM that was set aside with its volumes."""
    return [
        f"VM {details['vmid']} on {details['node']} is kept by choice, with its filled volumes; "
        "pvebench sweep shows and removes it"
        for _, kind, details in journal.pending()
        if kind == KEPT
    ]


def undo_on_cluster(settings: Settings, journal: Journal, clock: Clock) -> list[str]:
    """Undo what is open in the journal, on whatever node; only those nodes are asked."""
    nodes = {details["node"] for _, kind, details in journal.pending() if kind == KIND}
    keep = section(settings).keep_volumes
    lines: list[str] = []
    for node in sorted(nodes):
        api = connect(settings, node, clock)
        lines += undo_pending(journal, api, clock, node=node, keep=keep)
    return lines


def check_cluster(
    settings: Settings, given: Sequence[Assignment], clock: Clock
) -> Iterator[Finding]:
    """Yield what is found on each node of the cluster, and at its node_exporter."""
    nodes = settings.nodes_in_force()
    for node in nodes:
        mine = [entry for entry in given if entry.node == node]
        for name, good, text in _check_node(settings, node, volume_bytes(mine), clock):
            yield (f"{node}: {name}" if len(nodes) > 1 else name), good, text


def _check_node(
    settings: Settings, node: str, needs: Mapping[str, int], clock: Clock
) -> Iterator[Finding]:
    given = section(settings)
    try:
        api = connect(settings, node, clock)
    except PvebenchError as error:
        yield "token", False, str(error)
        return
    yield from inspect(
        api, place=place_of(settings, node), storages=storages_of(given, node),
        iso_storage=given.iso_storage, major=given.version, needs=needs,
    )  # fmt: skip
    yield _image(settings, node, api, given.iso_storage)
    yield _exporter(probe_of(settings, node))


def _image(settings: Settings, node: str, api: Connection, storage: str) -> Finding:
    try:
        image = load_image(settings.guest_image or default_directory())
        found = find_iso(api, node, storage, image)
    except PvebenchError as error:
        return "guest image", False, str(error)
    return "guest image", True, found or f"to be uploaded to {storage} by the first run"


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
