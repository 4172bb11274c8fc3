"""`pvebench report`: one HTML file to keep, to send, to open without network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.cli.looking import (
    looking_settings,
    relative_option,
    results_of,
    runs_of,
    series_beside,
)
from pvebench.cli.options import PATH, settings_options
from pvebench.errors import NotWritable
from pvebench.report.html import Subject, report_html


@click.command()
@settings_options
@click.option(
    "--output",
    type=PATH,
    default=Path("pvebench-report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--beside",
    metavar="SERIES",
    help="Show a reference series beside: 'published', or the name of an imported one.",
)
@relative_option
def report(output: Path, beside: str | None, relative_to: str | None, **options: Any) -> None:
    """Write all results, or those of one --pack, as one self-contained HTML file."""
    settings, pack = looking_settings(**options)
    series = series_beside(settings, pack, beside)
    with results_of(settings) as store:
        runs = runs_of(store, pack)
        subject = Subject(
            title=pack.title or (f"Pack {pack.name}" if pack.name else "All results"),
            source=pack.source,
            node=settings.node,
            now=datetime.now(UTC),
            simulated=store.simulated,
            environments=tuple(store.environments()),
        )
    try:
        over = relative_to or pack.relative_to
        output.write_text(report_html(subject, runs, series, over), "utf-8")
    except OSError as error:
        raise NotWritable(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {output}: {len(runs)} runs")
