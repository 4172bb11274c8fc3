"""`pvebench proxmox`: the least rights that a token needs, and what answers on a node by ssh."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from pvebench.cli.options import PATH
from pvebench.config import load_settings
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.proxmox.api.connection import Api, Connection, Password, Server, read_token
from pvebench.drivers.proxmox.api.privileges import FULL_TOKEN, TOKEN_NAME, USER, missing_rights
from pvebench.drivers.proxmox.api.pve_version import version_number
from pvebench.drivers.proxmox.cluster_access import server_of
from pvebench.drivers.proxmox.node.node_ssh import NODE_SCRIPT
from pvebench.drivers.proxmox.settings import ProxmoxSettings, section
from pvebench.drivers.proxmox.setup.permissions import (
    ExistingGrants,
    Wanted,
    apply_steps,
    find_granted,
    leftovers,
    other_pools,
    shell_script,
)
from pvebench.errors import AccessDenied, NotWritable

PASSWORD_VARIABLE = "PVEBENCH_PROXMOX_PASSWORD"  # noqa: S105 # the variable's name, not a secret
CODE_VARIABLE = "PVEBENCH_PROXMOX_CODE"


@click.group()
def proxmox() -> None:
    """Proxmox VE clusters."""


@proxmox.command()
@click.option("--config", type=PATH, envvar="PVEBENCH_CONFIG", required=True, help="Settings file.")
@click.option("--apply", "apply_now", is_flag=True, help="Make it all, with an admin's login.")
@click.option(
    "--with-scrub-guard",
    "scrub_guard",
    is_flag=True,
    help="Also let the token see that a ZFS pool is being scrubbed.",
)
@click.option("--clean", is_flag=True, help="With --apply: remove what an earlier version left.")
@click.option(
    "--new-token", is_flag=True, help="With --apply: make the token anew; the old one ends."
)
@click.option("--user", default="root@pam", show_default=True, help="Admin for --apply.")
def init(
    config: Path, apply_now: bool, scrub_guard: bool, clean: bool, new_token: bool, user: str
) -> None:
    """Print the commands that make role, user, token, pool and ACLs; with --apply, make them.

    Both can be done again: what is there stays, what differs is mended.
    """
    if not apply_now and (clean or new_token):
        raise click.UsageError("--clean and --new-token want --apply beside them")
    settings = load_settings(config)
    given = section(settings)
    wanted = wanted_of(given, given.version, scrub_guard=scrub_guard)
    if not apply_now:
        click.echo("# as root on any node of the cluster; the token's secret is shown once:")
        file = given.token_file or "the token_file"
        click.echo(f"# put it into {file} as USER@REALM!NAME=SECRET, and chmod 600 {file}")
        click.echo("\n".join(shell_script(wanted)))
        return
    server = server_of(given, settings.nodes_in_force()[0])
    api = Connection(server, ask_password(user), SystemClock())
    wanted = wanted_of(given, version_number(api)[0], scrub_guard=scrub_guard)
    grant(api, server, wanted, given.token_file, config=config, clean=clean, new_token=new_token)


@proxmox.command()
def node_script() -> None:
    """Print the script that answers on a node by ssh: /usr/local/sbin/pvebench-node."""
    click.echo(NODE_SCRIPT, nl=False)


def wanted_of(given: ProxmoxSettings, major: int, *, scrub_guard: bool) -> Wanted:
    """Return what these settings want to be there, on a server of that major version."""
    names = [entry.id or name for name, entry in given.storages.items()]
    return Wanted(
        major=major,
        pool=given.pool,
        storages=tuple(sorted({*names, given.iso_storage})),
        scrub_guard=scrub_guard,
    )


def ask_password(user: str) -> Password:
    """Return an admin's login: the password from the environment, or asked for."""
    given = os.environ.get(PASSWORD_VARIABLE)
    secret = given or str(click.prompt(f"Password of {user}", hide_input=True))
    return Password(user, secret, _ask_second_factor)


def _ask_second_factor() -> str:
    code = os.environ.get(CODE_VARIABLE) or str(
        click.prompt("Code of the second factor (recovery:KEY for a recovery key)", hide_input=True)
    )
    return code if ":" in code else f"totp:{code}"


def grant(
    api: Api,
    server: Server,
    wanted: Wanted,
    token_file: Path | None,
    *,
    config: Path,
    clean: bool = False,
    new_token: bool = False,
) -> None:
    """Make what is missing, tell each step, keep the token, and prove that it has its rights.

    Raises:
        AccessDenied: the token's secret is not known here, or does not reach what it must.
    """
    found = find_granted(api, wanted)
    changed = False
    for step, secret in apply_steps(api, wanted, found, clean=clean, new_token=new_token):
        changed = True
        click.echo(f"done: {step.text}")
        if secret:
            _keep(secret, token_file)
    if not changed:
        click.echo("all of it is there already: nothing was changed")
    found = find_granted(api, wanted)
    _tell_leftovers(found, wanted)
    _prove(server, wanted, token_file, _renewal(config, other_pools(found, wanted)))


def _renewal(config: Path, others: list[str]) -> str:
    """Return the advice for a token whose secret is lost; it may be in use for other pools."""
    words = ("pvebench", "proxmox", "init", "--config", str(config), "--apply", "--new-token")
    command = f"create a new token: {shlex.join(words)}"
    if not others:
        return command
    return (
        f"copy the token file of the pvebench with pool {', '.join(others)}, or {command} "
        "(this ends the token there, too)"
    )


def _tell_leftovers(found: ExistingGrants, wanted: Wanted) -> None:
    sure, perhaps = leftovers(found, wanted)
    for step in sure:
        click.echo(f"left by an earlier version, removed by --clean: {step.text}")
    for step in perhaps:
        click.echo(f"not of these settings; if no other pvebench needs it: {step.text}")


def _prove(server: Server, wanted: Wanted, token_file: Path | None, renewal: str) -> None:
    """Log in with the token that is kept, and ask what it may do.

    Args:
        renewal: advice for a token whose secret is lost.
    """
    if not _holds_ours(token_file):
        raise AccessDenied(
            f"token {FULL_TOKEN} is there, but its secret is not in "
            f"{token_file or 'a token_file of the settings'}",
            cause="the server shows the secret once only, when the token is made",
            next_step=f"write it there, or {renewal}",
        )
    api = Connection(server, read_token(token_file), SystemClock())
    try:
        table = api.get("/access/permissions")
    except AccessDenied as error:
        raise AccessDenied(
            f"the secret in {token_file} is not that of {FULL_TOKEN}",
            cause="the token was made anew since it was written there",
            next_step=renewal,
        ) from error
    if missing := missing_rights(table, pool=wanted.pool, major=wanted.major):
        raise AccessDenied(
            f"the token still lacks {'; '.join(missing)}",
            cause="an ACL further down, such as NoAccess, takes them away again",
            next_step=f"see what holds there: pveum acl list; pveum user token permissions {USER} "
            f"{TOKEN_NAME}",
        )
    click.echo(f"{FULL_TOKEN} has all the rights that it needs")


def _holds_ours(path: Path | None) -> bool:
    try:
        token = read_token(path)
    except AccessDenied:
        return False
    return f"{token.user}!{token.name}" == FULL_TOKEN


def _holds_another(path: Path) -> bool:
    text = path.read_text("utf-8", "replace").strip() if path.exists() else ""
    return bool(text) and f"{FULL_TOKEN}=" not in text


def _keep(token: str, path: Path | None) -> None:
    """Write the token where only its owner reads it; the server shows it once only."""
    if path is None or _holds_another(path):
        held = f"{path} holds another token and is left as it is; " if path else ""
        click.echo(f"{held}the token, shown once only: {token}")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(descriptor, 0o600)  # the mode above is not given to a file that was there
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
    except OSError as error:
        click.echo(f"the token, shown once only: {token}")
        raise NotWritable(
            f"token file {path}: {error.strerror}",
            cause="its directory is missing, or belongs to somebody else",
            next_step="write the token above there by hand, readable by its owner only",
        ) from error
    click.echo(f"the token is in {path}")
