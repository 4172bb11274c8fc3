"""`pvebench resume`: end a pause."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.store import StateDirectory


@click.command()
@settings_options
def resume(**options: Any) -> None:
    """End a pause."""
    state = StateDirectory(read_settings(**options).state, exclusive=False)
    click.echo("it goes on" if state.resume() else "there was no pause")
