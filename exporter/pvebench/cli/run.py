"""`pvebench run`: measure once, now."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.measuring import measure_shown
from pvebench.cli.options import scale_option, selection_options, settings_options


@click.command()
@settings_options
@scale_option
@selection_options
@click.option(
    "--cycles", type=click.IntRange(min=1), default=1, show_default=True, help="How many cycles."
)
def run(cycles: int, **options: Any) -> None:
    """Measure some cycles now, without a server."""
    measure_shown(options, cycles=cycles, web=False)
