"""`pvebench storage`: claims and identities of measured storages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.drivers import engine_of
from pvebench.drivers.storages.identity import claim as claim_device
from pvebench.errors import ConfigError, PvebenchError, VolumeError
from pvebench.model.volume import Identity, is_same, show
from pvebench.service.startup import locked_store
from pvebench.store.store import Store


@click.group()
def storage() -> None:
    """Manage local storage."""


@storage.command()
@click.argument("device", type=PATH)
@click.option("--destroy-data", is_flag=True, help="Claim the device even if it contains data.")
def claim(device: Path, destroy_data: bool) -> None:
    """Claim a block device. Its data will be lost.

    An existing valid claim stays unchanged.
    """
    claim_device(device, destroy=destroy_data)
    click.echo(f"claimed {device}; use it as a storage with kind: block, path: {device}")


@storage.command()
@click.argument("name")
@settings_options
def accept(name: str, **options: Any) -> None:
    """Accept the new device of a storage, and start a new history.

    pvebench keeps the earlier results, but does not compare them with new ones.
    """
    settings = read_settings(**options)
    readers = engine_of(settings.driver).identities(settings)
    own = {node: read for (node, storage), read in readers.items() if storage == name}
    if not own:
        known = ", ".join(sorted({storage for _, storage in readers})) or "none"
        raise ConfigError.of_options(f"storage {name} cannot be identified; use one of: {known}")
    with locked_store(settings) as (_, store):
        failed: PvebenchError | None = None
        for node, read in own.items():
            try:
                click.echo(f"{node}: {_accept(store, node, name, read())}")
            except PvebenchError as error:
                click.echo(f"{node}: not accepted: {error.reason}")
                failed = error
    if failed:
        raise failed


def _accept(store: Store, node: str, name: str, identity: Identity) -> str:
    """Accept the identity; return a report. Raises VolumeError: it is unknown."""
    recorded = store.identities.recorded(node, name)
    if not identity:
        raise VolumeError(
            f"storage {name} cannot be identified",
            cause="neither the kernel nor the API reports the device below it",
        )
    if recorded is None:
        return f"nothing to accept: the first run records {name}"
    if is_same(recorded, identity):
        return f"nothing to accept: {name} is unchanged ({show(recorded)})"
    store.identities.record(node, name, identity)
    return f"{name} is now {show(identity)}; its results start a new history"
