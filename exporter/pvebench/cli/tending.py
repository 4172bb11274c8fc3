"""`pvebench undo` and `pvebench storage`: looking after what measuring needs and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pvebench.cli.instance import opened_store, undo_everything
from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.drivers.qemu.devices import claim as claim_device


@click.command()
@settings_options
def undo(scale: float, **options: Any) -> None:
    """Undo what a process left that was killed; nothing else. Every start does so by itself."""
    del scale  # an option of every command with settings; nothing is measured here
    settings = read_settings(**options)
    with opened_store(settings) as (_, store):
        lines = undo_everything(settings, store.journal)
    for line in lines or ["nothing was left to undo"]:
        click.echo(line)


@click.group()
def storage() -> None:
    """Storages of the lab."""


@storage.command()
@click.argument("device", type=PATH)
@click.option("--destroy-data", is_flag=True, help="Do so even if something is on the device.")
def claim(device: Path, destroy_data: bool) -> None:
    """Mark a block device as pvebench's own: everything on it may be destroyed from now on."""
    claim_device(device, destroy=destroy_data)
    click.echo(f"{device} is marked; use it as a storage with kind: block, path: {device}")
