"""`pvebench import`: tables of others as reference series, and whether they hold together."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.cli.selection import make_console
from pvebench.errors import ConfigError, Problem
from pvebench.references.columns import ColumnMapping
from pvebench.references.delimited import Decimal
from pvebench.references.library import PUBLISHED, ReferenceLibrary, published, read_file
from pvebench.references.reference_series import ReferenceSeries


@click.command(name="import")
@settings_options
@click.argument("what", nargs=-1)
@click.option("--name", help="Name of the series; default: the file's.")
@click.option(
    "--date",
    help="When it was measured; default: as fio's JSON says, else when the file was changed.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=HEADER",
    help="What a column of the table means; may be repeated.",
)
@click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="FIELD=UNIT",
    help="Unit of a column whose header does not name it.",
)
@click.option(
    "--decimal",
    type=click.Choice([str(mark) for mark in Decimal]),
    help="Decimal mark of the table's numbers; default: as they show.",
)
@json_option
def import_(
    what: tuple[str, ...], name: str | None, date: str | None, as_json: bool, **options: Any
) -> None:
    """Bring tables of others as reference series, and print the rows that contradict themselves.

    WHAT is a CSV table, fio's JSON, or the name of a published table that comes with pvebench
    (default: all of them). A series is never mixed into results or baselines.

    A CSV table of any form is read with --column, such as --column iops=IOPS --column rw=Pattern
    --column "bandwidth=Throughput (MB/s)".
    """
    mapped = _mapped(options.pop("columns"), options.pop("units"), options.pop("decimal"))
    if mapped is not None and not what:
        raise click.UsageError("--column says what the columns of a file mean; name the file")
    library = ReferenceLibrary(read_settings(**options).state / "references")
    if name is not None and len(what) != 1:
        raise click.UsageError("--name names one file; give exactly one")
    wanted = what or sorted(PUBLISHED)
    found = [_read(library, text, name=name, date=date, mapped=mapped) for text in wanted]
    contradictions = [row for series in found for row in series.contradictions()]
    if as_json:
        click.echo(json.dumps(contradictions, indent=2))
        return
    for series in found:
        _print(series)


def _mapped(
    columns: tuple[str, ...], units: tuple[str, ...], decimal: str | None
) -> ColumnMapping | None:
    """Return what the options say of the columns; None if they say nothing."""
    if not columns and (units or decimal):
        raise click.UsageError("--unit and --decimal go with --column")
    if not columns:
        return None
    return ColumnMapping(
        columns=_pairs("--column", columns),
        units=_pairs("--unit", units),
        decimal=Decimal(decimal) if decimal else None,
    )


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        field, mark, value = (part.strip() for part in text.partition("="))
        if not (field and mark and value):
            raise click.UsageError(f"{option} {text!r}: write it as FIELD=…")
        if field in found:
            raise click.UsageError(f"{option} names {field} twice")
        found[field] = value
    return found


def _read(
    library: ReferenceLibrary,
    text: str,
    *,
    name: str | None,
    date: str | None,
    mapped: ColumnMapping | None,
) -> ReferenceSeries:
    path = Path(text)
    if text in PUBLISHED and not path.exists():
        return published(text)
    if not path.is_file():
        message = f"no such file, and no published table; these are: {', '.join(PUBLISHED)}"
        raise ConfigError([Problem(text, 0, 0, message)])
    known = PUBLISHED.get(path.stem)
    if known is not None and name is None and mapped is None:
        return read_file(path, name=path.stem, date=date or known[0])
    series = read_file(path, name=name or path.stem, date=date or "", mapped=mapped)
    if not series.date:
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
        said = f"{path} does not say when it was measured; taken: {changed}, when it was changed"
        click.echo(f"{said} (--date says another)", err=True)
        series = replace(series, date=changed)
    library.keep(series)
    return series


def _print(series: ReferenceSeries) -> None:
    console = make_console()
    found = series.contradictions()
    console.print(
        Text(series.name, style="bold"),
        f"({series.date}): {len(series.rows)} rows, {len(found)} contradict themselves",
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
