"""`pvebench setup`: from an address and a login to settings, a token and the next command.

Everything that is asked can be given as an option, so that a script can answer: with --yes nothing
is asked. It can be run again: what is there already stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import DEFAULT_PACK, PATH
from pvebench.cli.proxmox import ask_password, grant
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.host.exporter import fetch, read_counters
from pvebench.drivers.proxmox.connection import Connection, Server
from pvebench.drivers.proxmox.faults import spoken
from pvebench.drivers.proxmox.granting import Wanted
from pvebench.drivers.proxmox.settings import bare_host
from pvebench.drivers.proxmox.survey import (
    ClusterChoice,
    ClusterFound,
    StorageFound,
    certificate_fingerprint,
    settings_text,
    survey,
)
from pvebench.errors import MachineError, NotWritable
from pvebench.model.units import show_bytes

NODE_EXPORTER = "http://{node}:9100/metrics"


@click.command()
@click.argument("what", type=click.Choice(["proxmox"]), default="proxmox")
@click.option("--config", type=PATH, default=Path("pvebench.yaml"), show_default=True)
@click.option("--host", help="Address of any node of the cluster.")
@click.option("--port", default=8006, show_default=True)
@click.option("--fingerprint", default="", help="SHA-256 of the certificate: pvenode cert info.")
@click.option("--ca-file", type=PATH, help="Authority instead: /etc/pve/pve-root-ca.pem of a node.")
@click.option("--user", default="root@pam", show_default=True, help="Admin; the password is asked.")
@click.option("--node", "nodes", multiple=True, help="Node to measure; may be repeated.")
@click.option("--storage", "storages", multiple=True, help="Storage to measure; may be repeated.")
@click.option("--iso-storage", help="Storage for the guest's image, some 50 MB.")
@click.option("--pool", default="pvebench", show_default=True, help="Pool that VMs are made in.")
@click.option("--token-file", default="token", show_default=True, help="Beside the settings.")
@click.option("--node-exporter", help=f"Such as {NODE_EXPORTER}; empty: there is none.")
@click.option("--with-scrub-guard", "scrub_guard", is_flag=True, help="See proxmox init.")
@click.option("--new-token", is_flag=True, help="Make the token anew; the old one ends.")
@click.option("--replace", is_flag=True, help="Write over settings that say something else.")
@click.option("--yes", is_flag=True, help="Ask nothing: take what is found.")
def setup(what: str, **given: Any) -> None:  # noqa: ARG001 # one answer today
    """Ask for a cluster once, show what it has, write settings and token, say what comes next."""
    told = _Told(**given)
    ask = _Questions(told.yes)
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
    _write(told.config, settings_text(choice), replace=told.replace)
    grant(api, server, wanted, told.config.parent / told.token_file, new_token=told.new_token)
    click.echo(f"\nnext: pvebench check --config {told.config}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
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
    replace: bool
    yes: bool


def _server(told: _Told, ask: _Questions) -> Server:
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


def _choice(told: _Told, ask: _Questions, server: Server, found: ClusterFound) -> ClusterChoice:
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
    return ClusterChoice(
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
        packs=[DEFAULT_PACK],
    )


class _Questions:
    """Asks, or takes what it was given; with `yes` a question is a mistake of the caller."""

    def __init__(self, yes: bool) -> None:
        self._yes = yes

    def text(self, question: str, default: str, option: str) -> str:
        if not self._yes:
            return str(click.prompt(question, default=default or None))
        if not default:
            raise click.UsageError(f"with --yes, {option} must be given")
        return default

    def names(self, question: str, default: Sequence[str], option: str) -> list[str]:
        answer = self.text(f"{question}, with commas between", ",".join(default), option)
        return [name.strip() for name in answer.split(",") if name.strip()]

    def agree(self, question: str) -> None:
        if not self._yes:
            click.confirm(question, default=True, abort=True)


def _trusted(host: str, port: int, ask: _Questions) -> str:
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


def _show(found: ClusterFound) -> None:
    click.echo(f"Proxmox VE {'.'.join(map(str, found.version))}")
    for name, online in sorted(found.nodes.items()):
        line = f"node     {name:16} {'online' if online else 'not online: left out'}"
        click.echo(f"  {spoken(line)}")
    for one in found.storages:
        space = f"{show_bytes(one.free_bytes)} of {show_bytes(one.total_bytes)} free"
        line = f"storage  {one.id:16} {one.type:10} {space:28} {_use(one)}"
        click.echo(f"  {spoken(line)}")


def _use(one: StorageFound) -> str:
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


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write the settings; those that are there already and say the same stay as they are."""
    try:
        if path.exists() and not replace:
            if path.read_text("utf-8") == text:
                click.echo(f"{path} says so already")
                return
            raise NotWritable(
                f"{path} is there and says something else",
                cause="it was changed by hand, or the cluster was",
                next_step="write over it with --replace, or give another file as --config",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise NotWritable(
            f"settings file {path}: {error.strerror}",
            cause=f"{path.parent} cannot be written",
            next_step="give another place as --config",
        ) from error
    click.echo(f"the settings are in {path}")
