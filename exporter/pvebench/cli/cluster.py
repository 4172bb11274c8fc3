"""A node of a Proxmox VE cluster, put together from the settings. Imported only when it is used."""

from __future__ import annotations

from collections.abc import Iterator

from pvebench.config import Settings
from pvebench.config.proxmox import ProxmoxSettings
from pvebench.drivers.host.exporter import NodeExporterProbe, fetch, read_counters
from pvebench.drivers.proxmox.connection import Connection, Server, read_token
from pvebench.drivers.proxmox.inspect import Finding, inspect
from pvebench.drivers.proxmox.iso import find_iso
from pvebench.drivers.proxmox.node import ProxmoxNode, VmOptions
from pvebench.drivers.proxmox.storages import ClusterStorage
from pvebench.drivers.proxmox.undo import undo_pending
from pvebench.drivers.proxmox.vm import Place
from pvebench.errors import ConfigError, Problem, PvebenchError
from pvebench.guest import GuestImage, default_directory, load_image
from pvebench.model.ports import Clock, Journal, Site


def section(settings: Settings) -> ProxmoxSettings:
    """Return the section `proxmox`.

    Raises:
        ConfigError: there is none.
    """
    if settings.proxmox is None:
        message = "driver proxmox wants a section `proxmox` in the settings; see docs/proxmox.md"
        raise ConfigError([Problem("settings", 0, 0, message)])
    return settings.proxmox


def server_of(given: ProxmoxSettings) -> Server:
    """Return where the API is and how it is trusted."""
    return Server(
        host=given.host, port=given.port, ca_file=given.tls.ca_file,
        fingerprint=given.tls.fingerprint,
    )  # fmt: skip


def connect(settings: Settings, clock: Clock) -> Connection:
    """Return a connection with the configured token; nothing is sent yet."""
    given = section(settings)
    return Connection(server_of(given), read_token(given.token_file), clock)


def place_of(settings: Settings) -> Place:
    """Return where VMs may be made."""
    given = section(settings)
    return Place(node=settings.node, pool=given.pool, vmids=given.vmids)


def storages_of(given: ProxmoxSettings) -> dict[str, ClusterStorage]:
    """Return name in packs -> storage of the cluster."""
    return {
        name: ClusterStorage(id=entry.id or name, type=entry.type)
        for name, entry in given.storages.items()
    }


def probe_of(settings: Settings) -> str:
    """Return the address of the node's node_exporter; empty: there is none."""
    return section(settings).node_exporter.replace("{node}", settings.node)


def cluster_site(settings: Settings, image: GuestImage, journal: Journal, clock: Clock) -> Site:
    """Return the node that the settings name."""
    given = section(settings)
    hypervisor = ProxmoxNode(
        connect(settings, clock), place=place_of(settings),
        options=VmOptions(
            iso_storage=given.iso_storage, cpu=given.cpu, machine=given.machine, kvm=given.kvm
        ),
        image=image, journal=journal, clock=clock, storages=storages_of(given),
    )  # fmt: skip
    probe = NodeExporterProbe(probe_of(settings))
    return Site(node=settings.node, hypervisor=hypervisor, probe=probe, clock=clock)


def undo_on_cluster(settings: Settings, journal: Journal, clock: Clock) -> list[str]:
    """Undo what is open in the journal; the cluster is asked only if something is."""
    if not journal.pending():
        return []
    return undo_pending(journal, connect(settings, clock), clock, node=settings.node)


def check_cluster(settings: Settings, clock: Clock) -> Iterator[Finding]:
    """Yield what is found on the cluster, and at its node_exporter."""
    given = section(settings)
    try:
        api = connect(settings, clock)
    except PvebenchError as error:
        yield "token", False, str(error)
        return
    yield from inspect(
        api, place=place_of(settings), storages=storages_of(given), iso_storage=given.iso_storage
    )
    yield _image(settings, api, given.iso_storage)
    yield _exporter(probe_of(settings))


def _image(settings: Settings, api: Connection, storage: str) -> Finding:
    try:
        image = load_image(settings.guest_image or default_directory())
        found = find_iso(api, settings.node, storage, image)
    except PvebenchError as error:
        return "guest image", False, str(error)
    return "guest image", True, found or f"to be uploaded to {storage} by the first run"


def _exporter(url: str) -> Finding:
    if not url:
        return "node_exporter", True, "none is configured: no host CPU beside the results"
    try:
        cpus = read_counters(fetch(url)).cpus
    except PvebenchError as error:
        return "node_exporter", False, str(error)
    return "node_exporter", bool(cpus), f"{cpus} CPUs at {url}"
