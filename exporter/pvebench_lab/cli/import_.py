"""`pvebench import`: runs of other machines, and external tables as reference series."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pvebench.cli.main import PluginGroup
from pvebench.cli.options import (
    format_option,
    make_console,
    pairs_of,
    read_settings,
    settings_options,
)
from pvebench.errors import ConfigError, Problem
from pvebench.fields import MAX_NAMED
from pvebench.model.reference_series import ReferenceSeries
from pvebench.model.units import count_text
from pvebench_lab.references.columns import ColumnMapping
from pvebench_lab.references.delimited import Decimal
from pvebench_lab.references.library import PUBLISHED, Library, published, read_file

decimal_option = click.option(
    "--decimal",
    type=click.Choice([str(mark) for mark in Decimal]),
    help="Decimal mark of the table's numbers; default: detected.",
)


class _Import(PluginGroup):
    """Group whose command `references` needs no name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args[:1] == ["--help"] or (args and args[0] in self.list_commands(ctx))
        return super().parse_args(ctx, args if named else ["references", *args])


@click.group(name="import", cls=_Import)
def import_() -> None:
    """Import reference results, or runs of other machines.

    `pvebench import FILE` means `pvebench import references FILE`.
    """


@import_.command()
@settings_options
@click.argument("sources", nargs=-1)
@click.option("--name", help="Name of the series; default: the file name.")
@click.option(
    "--date",
    help="Date of the measurement; default: from fio's JSON, else the file's modification date.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=HEADER",
    help="Meaning of a table column; may be repeated.",
)
@click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="FIELD=UNIT",
    help="Unit of a column, if its header does not contain it.",
)
@decimal_option
@format_option()
def references(
    sources: tuple[str, ...], name: str | None, date: str | None, form: str, **options: Any
) -> None:
    """Import reference results and check their consistency.

    SOURCES are CSV tables, fio JSON files, or names of published tables that come with pvebench
    (default: all of them). pvebench never mixes a series into results or baselines. It prints
    rows that contradict themselves.

    --column maps the columns of any CSV table, such as --column iops=IOPS --column rw=Pattern
    --column "bandwidth=Throughput (MB/s)".
    """
    mapping = _column_mapping(options.pop("columns"), options.pop("units"), options.pop("decimal"))
    if mapping is not None and not sources:
        raise click.UsageError("--column requires a file; pass the file")
    directory = read_settings(**options).state / "references"
    if name is not None and len(sources) != 1:
        raise click.UsageError("--name requires exactly one file")
    imported = [
        _read(directory, text, name=name, date=date, mapping=mapping)
        for text in sources or sorted(PUBLISHED)
    ]
    contradictions = [row for series in imported for row in series.contradictions()]
    if form == "json":
        click.echo(json.dumps(contradictions, indent=2))
        return
    for series in imported:
        _print(series)


def _column_mapping(
    columns: tuple[str, ...], units: tuple[str, ...], decimal: str | None
) -> ColumnMapping | None:
    """Return the column mapping of the options; None without any."""
    if not columns and (units or decimal):
        raise click.UsageError("--unit and --decimal require --column")
    if not columns:
        return None
    return ColumnMapping(
        columns=pairs_of("--column", columns),
        units=pairs_of("--unit", units),
        decimal=Decimal(decimal) if decimal else None,
    )


def _read(
    directory: Path, text: str, *, name: str | None, date: str | None, mapping: ColumnMapping | None
) -> ReferenceSeries:
    path = Path(text)
    if text in PUBLISHED and not path.exists():
        return published(text)
    if not path.is_file():
        message = f"no such file or published table; use a file or one of {', '.join(PUBLISHED)}"
        raise ConfigError([Problem(text, 0, 0, message)])
    series = read_file(path, name=name or path.stem, date=date or "", mapped=mapping)
    if not series.date:
        modified = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
        click.echo(
            f"{path} contains no date; using its modification date {modified} "
            "(set another with --date)",
            err=True,
        )
        series = replace(series, date=modified)
    Library().keep(directory, series)
    return series


def _unmatched(series: ReferenceSeries) -> dict[str, list[int]]:
    """Return reason -> rows that `results --reference` never shows."""
    reasons: dict[str, list[int]] = {}
    for row in series.rows:
        first = next(each for each in series.rows if each.match == row.match)
        twice = f"same workload as row {first.line}" if row.match and first is not row else ""
        reason = row.unmatched or twice or ("" if row.match else "it names no options")
        if reason:
            reasons.setdefault(reason, []).append(row.line)
    return reasons


def named(numbers: Sequence[int]) -> str:
    """Return the first lines or rows as text."""
    return ", ".join(map(str, numbers[:MAX_NAMED])) + " …" * (len(numbers) > MAX_NAMED)


def _print(series: ReferenceSeries) -> None:
    console = make_console()
    contradictions = series.contradictions()
    rows_text = count_text(len(series.rows), "row")
    console.print(
        Text(series.name, style="bold"),
        f"({series.date}): {rows_text}, {len(contradictions)} contradict themselves",
    )
    console.print(f"source: {series.source}")
    for reason, rows in _unmatched(series).items():
        text = f"not shown beside results: {reason} (row {named(rows)})"
        console.print(text, soft_wrap=True)
    if not contradictions:
        return
    table = Table("line", "row", "reason", box=None, padding=(0, 2, 0, 0))
    keys = ("table", "host_disk", "storage", "system", "bus", "format", "cache", "rw")
    for row in contradictions:
        place = " ".join(str(row[key]) for key in keys if row.get(key))
        table.add_row(str(row["line"]), place, "; ".join(row["reasons"]))
    console.print(table)
