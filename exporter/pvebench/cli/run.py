"""`pvebench run`, `serve` and `view`; only a started command imports what it needs."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.options import (
    listen_options,
    read_settings,
    scale_option,
    selection_options,
    settings_options,
    together,
    verbose_option,
    web_options,
)

_measuring_options = together(selection_options, scale_option, settings_options, verbose_option)


@click.command()
@_measuring_options
@click.option(
    "--cycles", type=click.IntRange(min=1), default=1, show_default=True, help="Number of cycles."
)
def run(cycles: int, **options: Any) -> None:
    """Run cycles now, without a server."""
    from pvebench.cli.progress import measure_shown  # noqa: PLC0415 # see above

    measure_shown(options, cycles=cycles, web=False)


@click.command()
@_measuring_options
@web_options
@listen_options()
@click.option("--cycles", type=click.IntRange(min=1), help="Exit after this number of cycles.")
def serve(cycles: int | None, **options: Any) -> None:
    """Run continuously and serve the web UI and /metrics.

    pvebench applies changed settings and packs between two runs, automatically or on SIGHUP.
    """
    from pvebench.cli.progress import measure_shown  # noqa: PLC0415 # see above

    measure_shown(options, cycles=cycles, web=True)


@click.command()
@settings_options
@web_options
@click.option("--listen", help="Listen address, such as 127.0.0.1:10620.")
def view(**options: Any) -> None:
    """Show stored results in the web UI; nothing is measured."""
    from pvebench.cli.selection import results_of  # noqa: PLC0415 # see above
    from pvebench.service.publisher import show_stored  # noqa: PLC0415 # see above
    from pvebench.store.live_results import LiveResults  # noqa: PLC0415 # see above

    settings = read_settings(**options)
    with results_of(settings) as store:
        show_stored(LiveResults(store), settings, click.echo)
