"""`pvebench results`: stored runs, tables and comparisons with reference series."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.table import Table

from pvebench.cli.console import make_console
from pvebench.cli.options import format_option, output_option, settings_options, write_output
from pvebench.cli.progress import result_text
from pvebench.cli.selection import (
    reference_option,
    reference_series_of,
    relative_option,
    results_of,
    runs_of,
    selection_settings,
)
from pvebench.errors import ConfigError, Problem, StoreError
from pvebench.model.run import Outcome
from pvebench.model.units import show_bytes
from pvebench.report.table import ResultRow, csv_text, of_pass, result_rows, xlsx_bytes
from pvebench.store.records import StoredRun
from pvebench.store.store import Store
from pvebench.verdicts.fastest_text import operation_lines
from pvebench.verdicts.ranking import emulated_in


@click.command()
@settings_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--not-ok", is_flag=True, help="Only runs with another outcome than ok.")
@click.option(
    "--pass", "pass_number", type=click.IntRange(min=1), help="Only this pass of a cycle."
)
@click.option("--run", "number", type=int, help="One run with its evidence.")
@output_option("Write a table of all cases to FILE.csv, FILE.json or FILE.xlsx (with charts).")
@reference_option
@relative_option
@format_option("csv")
def results(number: int | None, **options: Any) -> None:
    """Show stored results, newest first, or a table of all cases."""
    view = _View(*(options.pop(name) for name in _View.__dataclass_fields__))
    settings, pack = selection_settings(**options)
    with results_of(settings) as store:
        devices = {place: text for place, text in store.identities.devices().items() if text}
        if number is not None:
            _show_run(store, number)
            return
        if view.as_table:
            series = reference_series_of(settings, pack, view.reference)
            runs = view.chosen(runs_of(store, pack))
            relative = view.relative_to or pack.relative_to
            rows = result_rows(runs, series, relative, store.durability())
            _show_table(rows, view)
            return
        if pack.name or view.pass_number:
            runs = view.chosen(runs_of(store, pack))
            runs = [run for run in runs if not (view.not_ok and run.outcome is Outcome.OK)]
            runs = runs[: view.limit]
        else:
            runs = store.runs(limit=view.limit, not_ok=view.not_ok)
        good = (run for run in runs if run.outcome.good)
        operations = operation_lines(good, emulated_in(store.periods()))
    if view.form == "json":
        from pvebench.web.api import run_data  # noqa: PLC0415 # slow import, unneeded for other output

        click.echo(json.dumps([run_data(run) for run in runs], indent=2))
    else:
        _print_results(runs)
        for line in (*operations, *(f"{place}: {text}" for place, text in devices.items())):
            click.echo(line)


@dataclass(frozen=True, slots=True)
class _View:
    """Options that select what to show, by their names."""

    limit: int
    not_ok: bool
    form: str
    output: Path | None
    reference: str | None
    pass_number: int | None
    relative_to: str | None

    @property
    def as_table(self) -> bool:
        return bool(self.form == "csv" or self.output or self.reference or self.relative_to)

    def chosen(self, runs: list[StoredRun]) -> list[StoredRun]:
        """Return the runs of the selected pass; without one, those of every pass."""
        return runs if self.pass_number is None else of_pass(runs, self.pass_number)


def _show_table(rows: list[ResultRow], view: _View) -> None:
    """Print a table in the chosen format, or write it in the one of the file's name."""
    forms: dict[str, Callable[[], str]] = {
        "csv": lambda: csv_text(rows),
        "json": lambda: json.dumps([dict(row.cells) for row in rows], indent=2) + "\n",
    }
    if view.reference and not any(row["published"] is not None for row in rows):
        # On stderr: the table may go to a program.
        click.echo(f"no result has the workload and options of a row of {view.reference}", err=True)
    if view.output is None and view.form == "text":
        _print_reference([row for row in rows if row.current], view.reference or "")
    elif view.output is None:
        click.echo(forms[view.form](), nl=False)
    elif (form := view.output.suffix[1:].lower()) == "xlsx":
        write_output(view.output, xlsx_bytes(rows), f"{len(rows)} rows")
    elif form in forms:
        write_output(view.output, forms[form]().encode(), f"{len(rows)} rows")
    else:
        message = f"--output {view.output}: unknown file type; use .csv, .json or .xlsx"
        raise ConfigError([Problem("command line", 0, 0, message)])


def _print_results(runs: list[StoredRun]) -> None:
    columns = ["run", "finished (UTC)", "scenario", "workload", "outcome", "result"]
    # Most cycles have one pass only, and a column of ones is useless.
    passes = any(run.pass_number > 1 for run in runs)
    table = Table(*columns[:4], *(["pass"] if passes else []), *columns[4:], box=None)
    for run in runs:
        table.add_row(
            str(run.number),
            f"{run.finished:%Y-%m-%d %H:%M:%S}",
            run.scenario,
            run.workload,
            *([str(run.pass_number or "-")] if passes else []),
            str(run.outcome),
            result_text(run),
        )
    make_console().print(table)


def _print_reference(rows: list[ResultRow], series: str) -> None:
    """Print own values with their references and ratios; a dash means no value.

    Columns without values are omitted.
    """
    optional = [
        (title.format(series=series), [show(row) for row in rows])
        for title, column, show in _OPTIONAL_COLUMNS
        if any(row[column] is not None for row in rows)
    ]
    table = Table(
        "workload", "", "scenario", "outcome", "own", *(title for title, _ in optional), box=None
    )
    for place, row in enumerate(rows):
        metric = str(row["published_metric"] or row["best_metric"])
        column = "iops" if metric == "iops" else "bandwidth_bytes_per_second"
        table.add_row(
            *(str(row[key]) for key in ("workload", "direction", "scenario", "outcome")),
            _show(row[column], metric),
            *(texts[place] for _, texts in optional),
        )
    console = make_console()
    console.print(table)
    divisors = {str(row["relative_to"]) for row in rows if row["ratio_to_relative"] is not None}
    for scenario in sorted(divisors):
        console.print(f"relative: divided by {scenario} with the same workload")


def _published(row: ResultRow) -> str:
    note = " (contradicts itself)" if row["published_doubt"] else ""
    return _show(row["published"], str(row["published_metric"])) + note


def _ratio(column: str) -> Callable[[ResultRow], str]:
    def show(row: ResultRow) -> str:
        value = row[column]
        return f"{value:.2f}" if isinstance(value, float) else "-"

    return show


def _round_trip(row: ResultRow) -> str:
    value = row["network_round_trip_seconds"]
    return f"{value * 1e3:.3f} ms" if isinstance(value, float) else "-"


_OPTIONAL_COLUMNS: Final = (
    ("{series}", "published", _published),
    ("own ÷ {series}", "ratio_to_published", _ratio("ratio_to_published")),
    ("relative", "ratio_to_relative", _ratio("ratio_to_relative")),
    ("÷ link", "network_share_ratio", _ratio("network_share_ratio")),
    ("round trip", "network_round_trip_seconds", _round_trip),
)
"""Title with the name after --reference, required column, text of a row."""


def _show(value: str | float | None, metric: str) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:,.0f} IOPS" if metric == "iops" else f"{show_bytes(value)}/s"


def _show_run(store: Store, number: int) -> None:
    run = store.run(number)
    if run is None:
        raise StoreError(
            f"run {number} does not exist", next_step="list the runs with `pvebench results`"
        )
    from pvebench.web.api import run_data  # noqa: PLC0415 # slow import, unneeded for other output

    click.echo(json.dumps({**run_data(run), "evidence": store.evidence(number)}, indent=2))
