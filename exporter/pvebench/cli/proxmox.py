"""`pvebench proxmox`: rights of the token, and the SSH script. Set-up of a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click

from pvebench.cli.options import PATH
from pvebench.cli.questions import Questions, write_settings
from pvebench.config import load_settings
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.node_exporter import fetch, read_counters
from pvebench.drivers.proxmox.api.connection import (
    Api,
    Password,
    Server,
    read_token,
    version_number,
)
from pvebench.drivers.proxmox.api.faults import readable
from pvebench.drivers.proxmox.api.privileges import TOKEN_NAME, RequiredGrants, missing_rights
from pvebench.drivers.proxmox.cluster_access import server_of
from pvebench.drivers.proxmox.node.node_activity import UNKNOWN_NODE
from pvebench.drivers.proxmox.node.node_ssh import script_of_node
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings, bare_host, section
from pvebench.drivers.proxmox.setup.permissions import (
    apply_steps,
    find_granted,
    shell_script,
    surplus_steps,
)
from pvebench.drivers.proxmox.setup.survey import (
    ClusterInfo,
    StorageInfo,
    certificate_fingerprint,
    settings_values,
    survey,
)
from pvebench.errors import AccessDenied, MachineError, NotWritable
from pvebench.files import read_text
from pvebench.model.units import show_bytes

PASSWORD_VARIABLE = "PVEBENCH_PROXMOX_PASSWORD"  # noqa: S105 # the variable's name, not a secret
CODE_VARIABLE = "PVEBENCH_PROXMOX_CODE"


@click.group()
def proxmox() -> None:
    """Prepare a cluster."""


@proxmox.command()
@click.option("--config", type=PATH, envvar="PVEBENCH_CONFIG", required=True, help="Settings file.")
@click.option(
    "--apply", "apply_now", is_flag=True, help="Create everything with an administrator's login."
)
@click.option(
    "--with-scrub-guard",
    "scrub_guard",
    is_flag=True,
    help="Also let the token detect scrubs of ZFS pools.",
)
@click.option(
    "--with-operations",
    "operations",
    is_flag=True,
    help="Also let the token back up and snapshot benchmark VMs. Default: if the settings have "
    "proxmox.operations.",
)
@click.option(
    "--with-advice",
    "advice",
    is_flag=True,
    help="Also let the token read all VMs, for `pvebench advise --vms`.",
)
@click.option(
    "--template",
    "templates",
    type=click.IntRange(100, 999_999_999),
    multiple=True,
    help="Also let the token read and clone this VM; repeatable.",
)
@click.option(
    "--new-token",
    is_flag=True,
    help="With --apply: create a new token; the old one becomes invalid.",
)
@click.option("--user", default="root@pam", show_default=True, help="Administrator for --apply.")
def init(
    config: Path,
    *,
    apply_now: bool,
    templates: tuple[int, ...],
    new_token: bool,
    user: str,
    **more: bool,
) -> None:
    """Create role, user, token and pool.

    Without --apply, print the commands. Both are repeatable: matching objects stay, different ones
    are corrected.
    """
    if not apply_now and new_token:
        raise click.UsageError("--new-token requires --apply")
    settings = load_settings(config)
    configured = section(settings)
    needed = required_grants(configured, configured.version, templates=templates, **more)
    if not apply_now:
        click.echo(
            "# Run as root on any node of the cluster. The token's secret is shown only once."
        )
        file = configured.token_file or "the token_file"
        click.echo(f"# Write it to {file} as USER@REALM!NAME=SECRET, then run chmod 600 {file}.")
        click.echo("\n".join(shell_script(needed)))
        return
    server = server_of(configured, settings.measured_nodes()[0])
    api = Api(server, ask_password(user), SystemClock())
    needed = replace(needed, major=version_number(api)[0])
    grant(api, server, needed, configured.token_file, config=config, new_token=new_token)


@proxmox.command()
def node_script() -> None:
    """Print the SSH script.

    Install it on nodes as /usr/local/sbin/pvebench-node.
    """
    click.echo(script_of_node(), nl=False)


def required_grants(
    configured: ProxmoxSettings,
    major: int,
    *,
    scrub_guard: bool,
    operations: bool = False,
    advice: bool = False,
    templates: Sequence[int] = (),
) -> RequiredGrants:
    """Return the objects that these settings require on a server of that major version."""
    names = {entry.id for entry in configured.storages.values()}
    if configured.operations is not None:
        names |= configured.operations.storages
    return RequiredGrants(
        major=major,
        pool=configured.pool,
        storages=tuple(sorted({*names, configured.iso_storage})),
        scrub_guard=scrub_guard,
        operations=operations or configured.operations is not None,
        advice=advice,
        templates=templates,
    )


def ask_password(user: str) -> Password:
    """Return an administrator's login, with the password from the environment or a prompt."""
    password = os.environ.get(PASSWORD_VARIABLE)
    secret = password or str(click.prompt(f"Password of {user}", hide_input=True))
    return Password(user, secret, _ask_second_factor)


def _ask_second_factor() -> str:
    code = os.environ.get(CODE_VARIABLE) or str(
        click.prompt("Code of the second factor (recovery:KEY for a recovery key)", hide_input=True)
    )
    return code if ":" in code else f"totp:{code}"


def grant(
    api: Api,
    server: Server,
    needed: RequiredGrants,
    token_file: Path | None,
    *,
    config: Path,
    new_token: bool = False,
) -> None:
    """Create missing objects, report each step, store the token, and verify its rights.

    Raises:
        AccessDenied: the token's secret is unknown, or rights are missing.
    """
    grants = find_granted(api, needed)
    changed, replaced = False, new_token and grants.separated is not None
    for step, secret in apply_steps(api, needed, grants, new_token=new_token):
        changed = True
        click.echo(f"Done: {step.text}")
        if secret:
            _store(secret, needed.token, token_file)
        if secret and replaced:
            click.echo(f"Other instances with pool {needed.pool} need the new secret")
    if not changed:
        click.echo("Everything exists already; nothing changed")
    grants = find_granted(api, needed)
    for step in surplus_steps(grants, needed):
        click.echo(
            f"Not needed by these settings, remove unless another pvebench needs it: {step.text}"
        )
    words = ("pvebench", "proxmox", "init", "--config", str(config), "--apply", "--new-token")
    _verify(server, needed, token_file, f"create a new token: {shlex.join(words)}")


def _verify(server: Server, needed: RequiredGrants, token_file: Path | None, renewal: str) -> None:
    """Log in with the stored token and check its rights.

    Args:
        renewal: action for a lost token secret.
    """
    if not _holds_token(token_file, needed.token):
        raise AccessDenied(
            f"{token_file or 'pvebench'} lacks the secret of token {needed.token}",
            cause=f"the server shows the secret only once; an instance with pool {needed.pool} may "
            "have it",
            next_step=f"copy the token_file of that instance; if there is none, {renewal}",
        )
    api = Api(server, read_token(token_file), SystemClock())
    try:
        table = api.get("/access/permissions")
    except AccessDenied as error:
        raise AccessDenied(
            f"wrong secret of {needed.token} in {token_file}",
            cause="the token was replaced after the file was written",
            next_step=renewal,
        ) from error
    if missing := missing_rights(table, needed):
        raise AccessDenied(
            f"the token still lacks {'; '.join(missing)}",
            cause="an ACL on a lower path, such as NoAccess, overrides them",
            next_step=f"run pveum acl list and pveum user token permissions {needed.user} "
            f"{TOKEN_NAME}",
        )
    click.echo(f"{needed.token} has all required rights")


def _holds_token(path: Path | None, name: str) -> bool:
    try:
        token = read_token(path)
    except AccessDenied:
        return False
    return f"{token.user}!{token.name}" == name


def _holds_another(path: Path, name: str) -> bool:
    text = read_text(path, encoding="latin-1").strip() if path.exists() else ""
    return bool(text) and f"{name}=" not in text


def _store(token: str, name: str, path: Path | None) -> None:
    """Write the token to a file that only its owner can read; the server shows it only once."""
    if path is None or _holds_another(path, name):
        held = f"{path} contains another token and is not changed; " if path else ""
        click.echo(f"{held}the token, shown only once: {token}")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(descriptor, 0o600)  # the mode above does not apply to an existing file
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
    except OSError as error:
        click.echo(f"the token, shown only once: {token}")
        raise NotWritable(
            f"token file {path}: {error.strerror}",
            cause="its directory is missing or belongs to another user",
            next_step="write the token above to the file, readable by its owner only",
        ) from error
    click.echo(f"Token written to {path}")


# --- `pvebench setup proxmox`: questions and settings for a cluster.

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
