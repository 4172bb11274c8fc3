"""`pvebench sweep`: what some pvebench left on the cluster and nobody looks after."""

from __future__ import annotations

import json
from typing import Any

import click

from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.drivers import engine_of
from pvebench.errors import MachineError
from pvebench.service.sites import opened_store


@click.command()
@click.option(
    "--remove", "vmids", type=int, multiple=True, help="VM or container to remove; may be repeated."
)
@json_option
@settings_options
def sweep(vmids: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """List VMs and containers that some pvebench made and nobody looks after; remove those named.

    What a crash leaves is removed by the next start with the same state directory. This is for
    what is left when that directory is lost.
    """
    settings = read_settings(**options)
    sweeper = engine_of(settings.driver).sweeper(settings)
    if sweeper is None:
        raise MachineError(
            f"sweep looks at a cluster, and driver {settings.driver} has none",
            next_step="name the cluster's settings (--config); what a crash left here, pvebench "
            "undo removes",
        )
    with opened_store(settings) as (_, store):
        found = sweeper.find(store.journal)
        if as_json:
            click.echo(json.dumps([entry.as_data() for entry in found], indent=2))
        for entry in [] if as_json else found:
            click.echo(entry.text)
        if not found and not as_json:
            click.echo("nothing was found that a pvebench left")
        for vmid in vmids:
            click.echo(sweeper.remove(store.journal, vmid), err=as_json)
    if found and not vmids and not as_json:
        click.echo(
            "to remove one: pvebench sweep --remove NUMBER (another instance's VM looks "
            "the same: be sure that none uses it)"
        )
