"""`pvebench pause`: measure nothing more for a while."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.store import StateDirectory


@click.command()
@click.option("--reason", default="paused by hand", show_default=True, help="Shown while it lasts.")
@settings_options
def pause(reason: str, **options: Any) -> None:
    """Measure nothing more until `resume`; the present run is ended first."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    state.pause(" ".join(reason.split()) or "paused by hand")
    who = state.holder()
    click.echo(
        f"process {who} pauses after its present run"
        if who
        else "no pvebench runs here now; the next one waits for resume"
    )
