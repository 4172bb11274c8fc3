"""The part of `pvebench setup` that asks for a Proxmox VE cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from pvebench.cli.proxmox import ask_password, grant
from pvebench.cli.setup.questions import Questions, write_settings
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.node_exporter import fetch, read_counters
from pvebench.drivers.proxmox.api.connection import Connection, Server
from pvebench.drivers.proxmox.api.faults import spoken
from pvebench.drivers.proxmox.settings import bare_host
from pvebench.drivers.proxmox.setup.permissions import Wanted
from pvebench.drivers.proxmox.setup.survey import (
    ClusterInfo,
    ClusterOptions,
    StorageInfo,
    certificate_fingerprint,
    settings_text,
    survey,
)
from pvebench.errors import MachineError
from pvebench.model.units import show_bytes

NODE_EXPORTER = "http://{node}:9100/metrics"


def set_up_cluster(told: ClusterAnswers, ask: Questions) -> None:
    """Show what the cluster has, write settings and token, make what it must grant."""
    server = _server(told, ask)
    api = Connection(server, ask_password(told.user), SystemClock())
    found = survey(api)
    _show(found)
    choice = _choice(told, ask, server, found)
    wanted = Wanted(
        major=choice.major,
        pool=choice.pool,
        storages=sorted({*(one.id for one in choice.storages), choice.iso_storage}),
        scrub_guard=told.scrub_guard,
    )
    pool = f"pool {choice.pool}"
    ask.agree(f"Write {told.config}, and make role, user, token and {pool} on the cluster?")
    write_settings(told.config, settings_text(choice), replace=told.replace)
    token_file = told.config.parent / told.token_file
    grant(api, server, wanted, token_file, config=told.config, new_token=told.new_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAnswers:
    """The options, by their names."""

    config: Path
    host: str | None
    port: int
    fingerprint: str
    ca_file: Path | None
    user: str
    nodes: tuple[str, ...]
    storages: tuple[str, ...]
    iso_storage: str | None
    pool: str
    token_file: str
    node_exporter: str | None
    scrub_guard: bool
    new_token: bool
    packs: tuple[str, ...]
    replace: bool
    yes: bool


def _server(told: ClusterAnswers, ask: Questions) -> Server:
    host = told.host or ask.text("Address of any node of the cluster", "", "--host")
    try:
        bare_host(host)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    fingerprint = told.fingerprint
    if not (fingerprint or told.ca_file):
        fingerprint = _trusted(host, told.port, ask)
    ca_file = told.ca_file.absolute() if told.ca_file else None
    return Server(host=host, port=told.port, ca_file=ca_file, fingerprint=fingerprint)


def _choice(
    told: ClusterAnswers, ask: Questions, server: Server, found: ClusterInfo
) -> ClusterOptions:
    online = sorted(name for name, is_online in found.nodes.items() if is_online)
    usable = [one.id for one in found.storages if one.holds_disks]
    images = [one.id for one in found.storages if "iso" in one.content and one.nodes]
    nodes = told.nodes or ask.names("Nodes to measure", online, "--node")
    storages = told.storages or ask.names("Storages to measure", usable, "--storage")
    iso = told.iso_storage or ask.text(
        "Storage for the guest's image", next(iter(images), ""), "--iso-storage"
    )
    _refuse_unknown(nodes, online, "node online")
    _refuse_unknown(storages, usable, "storage for disks")
    _refuse_unknown([iso], images, "storage with content iso")
    return ClusterOptions(
        host=server.host,
        port=server.port,
        fingerprint=server.fingerprint,
        ca_file=server.ca_file,
        nodes=nodes,
        storages=[one for one in found.storages if one.id in storages],
        iso_storage=iso,
        pool=told.pool,
        major=found.version[0],
        node_exporter=_exporter(told.node_exporter, nodes, server.host),
        token_file=told.token_file,
        packs=told.packs,
    )


def _trusted(host: str, port: int, ask: Questions) -> str:
    """Return the fingerprint that somebody has compared."""
    seen = certificate_fingerprint(host, port)
    click.echo(f"the certificate of {host}:{port} has the SHA-256 fingerprint\n  {seen}")
    compare = "Is it what `pvenode cert info` says on the node?"
    if ask.text(f"{compare} (yes/no)", "", "--fingerprint or --ca-file").lower() not in (
        "y",
        "yes",
    ):
        raise click.Abort
    return seen


def _show(found: ClusterInfo) -> None:
    click.echo(f"Proxmox VE {'.'.join(map(str, found.version))}")
    for name, online in sorted(found.nodes.items()):
        line = f"node     {name:16} {'online' if online else 'not online: left out'}"
        click.echo(f"  {spoken(line)}")
    for one in found.storages:
        space = f"{show_bytes(one.free_bytes)} of {show_bytes(one.total_bytes)} free"
        line = f"storage  {one.id:16} {one.type:10} {space:28} {_use(one)}"
        click.echo(f"  {spoken(line)}")


def _use(one: StorageInfo) -> str:
    if not one.nodes:
        return "not active"
    use = [
        text
        for text, holds in (("disks", one.holds_disks), ("ISO images", "iso" in one.content))
        if holds
    ]
    return ", ".join(use) or "neither disks nor ISO images"


def _refuse_unknown(names: Sequence[str], known: Sequence[str], kind: str) -> None:
    for name in names:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise click.UsageError(f"there is no {kind} called {name}; there is {there}")


def _exporter(given: str | None, nodes: Sequence[str], host: str) -> str:
    """Return the address of node_exporter at which every node answers; empty: there is none."""
    candidates = [NODE_EXPORTER] if given is None else [given]
    if given is None and len(nodes) == 1:
        candidates.append(f"http://{host}:9100/metrics")
    troubles = []
    for url in filter(None, candidates):
        try:
            cpus = [read_counters(fetch(url.replace("{node}", node))).cpus for node in nodes]
        except MachineError as error:
            troubles.append(error.happened)
            continue
        if not all(cpus):
            troubles.append(f"what answers at {url} is not node_exporter")
            continue
        click.echo(f"  node_exporter at {url}: {', '.join(f'{n} CPUs' for n in cpus)}")
        return url
    for trouble in troubles:
        click.echo(f"  {trouble}")
    click.echo(
        "  no node_exporter is used: host CPU and device bytes are not measured; to have them, on "
        "each node: apt install prometheus-node-exporter, then this again with --replace"
    )
    return ""
