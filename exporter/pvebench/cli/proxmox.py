"""`pvebench proxmox init`: the least rights that a token needs, as commands or applied."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pvebench.cli.choice import section
from pvebench.cli.cluster import server_of
from pvebench.cli.options import PATH
from pvebench.config import load_settings
from pvebench.drivers.host import SystemClock
from pvebench.drivers.proxmox.connection import Connection
from pvebench.drivers.proxmox.environment import version_number
from pvebench.drivers.proxmox.granting import apply_steps, grant_steps, is_ours
from pvebench.drivers.proxmox.login import Password, read_token
from pvebench.errors import AccessDenied, NotWritable

PASSWORD_VARIABLE = "PVEBENCH_PROXMOX_PASSWORD"  # noqa: S105 # the variable's name, not a secret


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
@click.option("--user", default="root@pam", show_default=True, help="Admin for --apply.")
def init(config: Path, apply_now: bool, scrub_guard: bool, user: str) -> None:
    """Print the commands that make role, user, token, pool and ACLs; with --apply, make them."""
    settings = load_settings(config)
    given = section(settings)
    names = [entry.id or name for name, entry in given.storages.items()]
    storages = [*names, given.iso_storage]
    if not apply_now:
        click.echo("# as root on any node of the cluster; the token's secret is shown once:")
        click.echo(
            f"# put it into {given.token_file or 'the token_file'} as USER@REALM!NAME=SECRET"
        )
        click.echo("# (where a role is there already: role modify in place of role add)")
        for step in grant_steps(
            major=given.version, pool=given.pool, storages=storages, scrub_guard=scrub_guard
        ):
            click.echo(step.text)
        return
    password = os.environ.get(PASSWORD_VARIABLE) or click.prompt(
        f"Password of {user}", hide_input=True
    )
    node = settings.nodes_in_force()[0]
    api = Connection(server_of(given, node), Password(user, password), SystemClock())
    steps = grant_steps(
        major=version_number(api)[0], pool=given.pool, storages=storages, scrub_guard=scrub_guard
    )
    for step, done, token in apply_steps(api, steps, has_token=_has_token(given.token_file)):
        click.echo(f"{done}: {step.text}")
        if token:
            _keep(token, given.token_file)


def _has_token(path: Path | None) -> bool:
    try:
        return is_ours(read_token(path))
    except AccessDenied:
        return False


def _keep(token: str, path: Path | None) -> None:
    """Write the token where only its owner reads it; the server shows it once only."""
    if path is None:
        click.echo(f"the token, shown once only: {token}")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(descriptor, 0o600)  # the mode above is not given to a file that was there
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
    except OSError as error:
        click.echo(f"the token, shown once only: {token}")
        raise NotWritable(f"token file {path}: {error.strerror}") from error
    click.echo(f"the token is in {path}")
