"""`pvebench proxmox`: minimum rights of the token, and the SSH script for nodes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from pvebench.cli.options import PATH
from pvebench.config import load_settings
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.api.connection import (
    Api,
    Password,
    Server,
    read_token,
    version_number,
)
from pvebench.drivers.proxmox.api.privileges import TOKEN_NAME, RequiredGrants, missing_rights
from pvebench.drivers.proxmox.cluster_access import server_of
from pvebench.drivers.proxmox.node.node_ssh import script_of_node
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings, section
from pvebench.drivers.proxmox.setup.permissions import (
    ExistingGrants,
    apply_steps,
    find_granted,
    shell_script,
    surplus_steps,
)
from pvebench.errors import AccessDenied, NotWritable
from pvebench.files import read_text

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
    names = {entry.id or name for name, entry in configured.storages.items()}
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
    _show_surplus(grants, needed)
    words = ("pvebench", "proxmox", "init", "--config", str(config), "--apply", "--new-token")
    _verify(server, needed, token_file, f"create a new token: {shlex.join(words)}")


def _show_surplus(grants: ExistingGrants, needed: RequiredGrants) -> None:
    for step in surplus_steps(grants, needed):
        click.echo(
            f"Not needed by these settings, remove unless another pvebench needs it: {step.text}"
        )


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
