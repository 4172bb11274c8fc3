"""`pvebench undo`: clean up after a process that was killed."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.drivers import engine_of
from pvebench.service.sites import opened_store


@click.command()
@settings_options
def undo(**options: Any) -> None:
    """Undo what a process left that was killed; nothing else. Every start does so by itself."""
    settings = read_settings(**options)
    with opened_store(settings) as (_, store):
        lines = engine_of(settings.driver).undo(settings, store.journal)
    for line in lines or ["nothing was left to undo"]:
        click.echo(line)
