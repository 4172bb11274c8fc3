"""`pvebench import`: tables of others as reference series, and whether they hold together."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from pvebench.cli.console import make_console
from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.errors import ConfigError, Problem
from pvebench.report.library import Library
from pvebench.report.reading import PUBLISHED, published, read_file
from pvebench.report.series import Series


@click.command(name="import")
@settings_options
@click.argument("what", nargs=-1)
@click.option("--name", help="Name of the series; default: the file's.")
@click.option("--date", help="When it was measured; default: when the file was changed.")
@json_option
def import_series(
    what: tuple[str, ...], name: str | None, date: str | None, as_json: bool, scale: float,
    **options: Any,
) -> None:  # fmt: skip
    """Bring tables of others as reference series, and print the rows that contradict themselves.

    WHAT is a CSV table, fio's JSON, or the name of a published table that comes with pvebench
    (default: all of them). A series is never mixed into results or baselines.
    """
    del scale  # an option of every command with settings
    library = Library(read_settings(**options).state / "references")
    if name is not None and len(what) != 1:
        raise click.UsageError("--name names one file; give exactly one")
    found = [_read(library, text, name=name, date=date) for text in what or sorted(PUBLISHED)]
    contradictions = [row for series in found for row in series.contradictions()]
    if as_json:
        click.echo(json.dumps(contradictions, indent=2))
        return
    for series in found:
        _print(series)


def _read(library: Library, text: str, *, name: str | None, date: str | None) -> Series:
    path = Path(text)
    if text in PUBLISHED and not path.exists():
        return published(text)
    if not path.is_file():
        message = f"no such file, and no published table; these are: {', '.join(PUBLISHED)}"
        raise ConfigError([Problem(text, 0, 0, message)])
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    known = PUBLISHED.get(path.stem)
    if known is not None and name is None:
        return read_file(path, name=path.stem, date=date or known[0])
    series = read_file(path, name=name or path.stem, date=date or changed)
    library.keep(series)
    return series


def _print(series: Series) -> None:
    console = make_console()
    found = series.contradictions()
    console.print(
        f"[bold]{series.name}[/bold] ({series.date}): {len(series.rows)} rows, "
        f"{len(found)} contradict themselves"
    )
    console.print(f"from {series.source}")
    if not found:
        return
    table = Table("line", "row", "why", box=None, padding=(0, 2, 0, 0))
    keys = ("table", "host_disk", "storage", "system", "bus", "format", "cache", "rw")
    for row in found:
        place = " ".join(str(row[key]) for key in keys if row.get(key))
        table.add_row(str(row["line"]), place, "; ".join(row["reasons"]))
    console.print(table)
