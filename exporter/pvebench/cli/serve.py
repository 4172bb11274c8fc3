"""`pvebench serve`: measure for ever, with pages and metrics."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.measuring import measure_shown
from pvebench.cli.options import scale_option, selection_options, settings_options, web_options


@click.command()
@settings_options
@scale_option
@selection_options
@web_options
@click.option("--listen", help="Address of /metrics, as 127.0.0.1:9620.")
@click.option("--cycles", type=click.IntRange(min=1), help="End after so many cycles.")
def serve(cycles: int | None, **options: Any) -> None:
    """Measure for ever and serve the results: pages at /, Prometheus metrics at /metrics.

    Changed settings and packs are taken over between two runs, by themselves or on SIGHUP.
    """
    measure_shown(options, cycles=cycles, web=True)
