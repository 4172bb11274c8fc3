"""`pvebench setup proxmox`: questions and settings for a Proxmox VE cluster."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import click

from pvebench.cli.proxmox import ask_password, grant
from pvebench.cli.setup.questions import Questions, write_settings
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.node_exporter import fetch, read_counters
from pvebench.drivers.proxmox.api.connection import Api, Server
from pvebench.drivers.proxmox.api.faults import readable
from pvebench.drivers.proxmox.api.privileges import RequiredGrants
from pvebench.drivers.proxmox.node.node_activity import UNKNOWN_NODE
from pvebench.drivers.proxmox.proxmox_settings import bare_host
from pvebench.drivers.proxmox.setup.survey import (
    ClusterInfo,
    StorageInfo,
    certificate_fingerprint,
    settings_values,
    survey,
)
from pvebench.errors import MachineError
from pvebench.model.units import show_bytes

NODE_EXPORTER = "http://{node}:9100/metrics"


def set_up_cluster(answers: SimpleNamespace, ask: Questions) -> None:
    """Show the cluster, write settings and token, and create the required rights.

    Args:
        answers: options of `pvebench setup` by name; missing ones are asked for.
    """
    server = _server(answers, ask)
    api = Api(server, ask_password(answers.user), SystemClock())
    cluster = survey(api)
    _show(cluster)
    nodes, storages, iso = _choice(answers, ask, cluster)
    major, pool = cluster.version[0], answers.pool
    values = settings_values(
        *(server, nodes, storages, answers.packs),
        version=major,
        token_file=answers.token_file,
        pool=pool,
        iso_storage=iso,
        node_exporter=_exporter(answers.node_exporter, nodes, server.host),
    )
    needed = RequiredGrants(
        major=major,
        pool=pool,
        storages=sorted({*(storage.id for storage in storages), iso}),
        scrub_guard=answers.scrub_guard,
    )
    ask.agree(
        f"Write {answers.config} and create role, user, token and pool {pool} on the cluster?"
    )
    write_settings(answers.config, values, replace=answers.replace)
    token_file = answers.config.parent / answers.token_file
    grant(api, server, needed, token_file, config=answers.config, new_token=answers.new_token)


def _server(answers: SimpleNamespace, ask: Questions) -> Server:
    host = answers.host or ask.text("Address of any cluster node", "", "--host")
    try:
        host = bare_host(host)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    fingerprint = answers.fingerprint
    if not (fingerprint or answers.ca_file):
        fingerprint = _trusted(host, answers.port, ask)
    ca_file = answers.ca_file.absolute() if answers.ca_file else None
    return Server(host=host, port=answers.port, ca_file=ca_file, fingerprint=fingerprint)


def _choice(
    answers: SimpleNamespace, ask: Questions, cluster: ClusterInfo
) -> tuple[Sequence[str], list[StorageInfo], str]:
    """Return nodes and storages to measure, and the storage for the guest image."""
    online = sorted(name for name, status in cluster.nodes.items() if status == "online")
    usable = {storage.id: storage for storage in cluster.storages if storage.holds_disks}
    images = [
        storage.id for storage in cluster.storages if "iso" in storage.content and storage.nodes
    ]
    nodes = answers.nodes or ask.names("Nodes to measure", online, "--node")
    storages = answers.storages or ask.names("Storages to measure", list(usable), "--storage")
    iso = answers.iso_storage or ask.text(
        "Storage for the guest image", next(iter(images), ""), "--iso-storage"
    )
    _refuse_unknown(nodes, online, "online node")
    _refuse_unknown(storages, list(usable), "disk storage")
    _refuse_unknown([iso], images, "storage with content type iso")
    return nodes, [usable[name] for name in dict.fromkeys(storages)], iso


def _trusted(host: str, port: int, ask: Questions) -> str:
    """Return the server's fingerprint after the user confirmed it."""
    seen = certificate_fingerprint(host, port)
    click.echo(f"SHA-256 fingerprint of the certificate of {host}:{port}:\n  {seen}")
    compare = "Does `pvenode cert info` on the node show the same?"
    if ask.text(f"{compare} (yes/no)", "", "--fingerprint or --ca-file").lower() not in (
        "y",
        "yes",
    ):
        raise click.Abort
    return seen


def _show(cluster: ClusterInfo) -> None:
    click.echo(f"Proxmox VE {'.'.join(map(str, cluster.version))}")
    for name, status in sorted(cluster.nodes.items()):
        line = f"node     {name:16} {status}{', not used' * (status != 'online')}"
        line += UNKNOWN_NODE * (status == "unknown")
        click.echo(f"  {readable(line)}")
    for storage in cluster.storages:
        space = f"{show_bytes(storage.free_bytes)} of {show_bytes(storage.total_bytes)} free"
        line = f"storage  {storage.id:16} {storage.type:10} {space:28} {_use(storage)}"
        click.echo(f"  {readable(line)}")


def _use(storage: StorageInfo) -> str:
    if not storage.nodes:
        return "inactive"
    uses = {"disks": storage.holds_disks, "ISO images": "iso" in storage.content}
    return ", ".join(name for name, has in uses.items() if has) or "no disks or ISO images"


def _refuse_unknown(names: Sequence[str], known: Sequence[str], kind: str) -> None:
    for name in names:
        if name not in known:
            choices = ", ".join(sorted(known)) or "none"
            raise click.UsageError(f"no {kind} {name}; available: {choices}")


def _exporter(configured: str | None, nodes: Sequence[str], host: str) -> str:
    """Return the node_exporter URL at which every node responds; empty: none."""
    candidates = [NODE_EXPORTER] if configured is None else [configured]
    if configured is None and len(nodes) == 1:
        candidates.append(f"http://{host}:9100/metrics")
    problems = []
    for url in filter(None, candidates):
        try:
            cpus = [read_counters(fetch(url.replace("{node}", node))).cpus for node in nodes]
        except MachineError as error:
            problems.append(error.happened)
            continue
        if not all(cpus):
            problems.append(f"{url} is not a node_exporter")
            continue
        click.echo(f"  node_exporter at {url}: {', '.join(f'{n} CPUs' for n in cpus)}")
        return url
    for problem in problems:
        click.echo(f"  {problem}")
    click.echo(
        "  No node_exporter: host CPU and device bytes are not measured. To measure them, run "
        "`apt install prometheus-node-exporter` on each node, then this command with --replace."
    )
    return ""
