"""`pvebench storage`: the storages of the lab."""

from __future__ import annotations

from pathlib import Path

import click

from pvebench.cli.options import PATH
from pvebench.drivers.storages.claim import claim as claim_device


@click.group()
def storage() -> None:
    """Storages of the lab."""


@storage.command()
@click.argument("device", type=PATH)
@click.option("--destroy-data", is_flag=True, help="Do so even if something is on the device.")
def claim(device: Path, destroy_data: bool) -> None:
    """Mark a block device as pvebench's own: everything on it may be destroyed from now on.

    One that is claimed already, and is as it was, stays as it is.
    """
    claim_device(device, destroy=destroy_data)
    click.echo(f"{device} is claimed; use it as a storage with kind: block, path: {device}")
