"""`pvebench storage`: the storages that are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.drivers import engine_of
from pvebench.drivers.storages.identity import claim as claim_device
from pvebench.errors import ConfigError, Problem, VolumeError
from pvebench.model.volume import Identity, is_same, show
from pvebench.service.selection import opened_store
from pvebench.store import Store


@click.group()
def storage() -> None:
    """Storages that are measured."""


@storage.command()
@click.argument("device", type=PATH)
@click.option("--destroy-data", is_flag=True, help="Do so even if something is on the device.")
def claim(device: Path, destroy_data: bool) -> None:
    """Mark a block device as pvebench's own: everything on it may be destroyed from now on.

    One that is claimed already, and is as it was, stays as it is.
    """
    claim_device(device, destroy=destroy_data)
    click.echo(f"{device} is claimed; use it as a storage with kind: block, path: {device}")


@storage.command()
@click.argument("name")
@settings_options
def accept(name: str, **options: Any) -> None:
    """Accept that a storage is another device now: its results start a new history.

    The results so far are kept and are not compared with the new ones.
    """
    settings = read_settings(**options)
    looks = engine_of(settings.driver).identities(settings)
    found = {node: look() for (node, storage), look in looks.items() if storage == name}
    if not found:
        known = ", ".join(sorted({storage for _, storage in looks})) or "none"
        problem = f"no storage {name} can be identified; those that can: {known}"
        raise ConfigError([Problem("command line", 0, 0, problem)])
    with opened_store(settings) as (_, store):
        for node, now in found.items():
            click.echo(f"{node}: {_accept(store, node, name, now)}")


def _accept(store: Store, node: str, name: str, now: Identity) -> str:
    """Return what was done. Raises VolumeError: the storage cannot be identified."""
    was = store.identities.recorded(node, name)
    if not now:
        raise VolumeError(
            f"storage {name} cannot be identified",
            cause="neither the kernel nor the API shows what is below it",
        )
    if was is None:
        return f"nothing to accept: the first run records {name}"
    if is_same(was, now):
        return f"nothing to accept: {name} is as recorded ({show(was)})"
    store.identities.record(node, name, now)
    return f"{name} is now {show(now)}; its results start a new history"
