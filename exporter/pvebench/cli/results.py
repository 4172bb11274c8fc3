"""`pvebench results`: looking back."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from pvebench.cli.console import make_console
from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.cli.progress import numbers
from pvebench.errors import StoreError
from pvebench.store import Store, StoredRun
from pvebench.web.api import run_data


@click.command()
@settings_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--not-ok", is_flag=True, help="Only runs that are not ok.")
@click.option("--run", "number", type=int, help="One run with its raw evidence.")
@json_option
def results(
    limit: int, not_ok: bool, number: int | None, as_json: bool, scale: float, **options: Any
) -> None:
    """Show stored results, newest first."""
    del scale  # of the packs, which results do not depend on
    database = read_settings(**options).state / "pvebench.db"
    if not database.exists():
        raise StoreError(
            f"there are no results yet: {database} does not exist",
            next_step="measure first: pvebench run, or name the state directory with --state",
        )
    store = Store(database)
    try:
        if number is not None:
            _show_run(store, number)
            return
        found = store.recent(limit=limit, not_ok=not_ok)
    finally:
        store.close()
    if as_json:
        click.echo(json.dumps([run_data(run) for run in found], indent=2))
    else:
        _print_results(found)


def _print_results(found: list[StoredRun]) -> None:
    table = Table("run", "finished (UTC)", "scenario", "workload", "outcome", "result", box=None)
    for run in found:
        table.add_row(
            str(run.number), f"{run.finished:%Y-%m-%d %H:%M:%S}", run.scenario, run.workload,
            str(run.outcome), numbers(run.samples) if run.samples else run.reason,
        )  # fmt: skip
    make_console().print(table)


def _show_run(store: Store, number: int) -> None:
    run = store.run(number)
    if run is None:
        raise StoreError(f"there is no run {number}", next_step="list them: pvebench results")
    click.echo(json.dumps({**run_data(run), "evidence": store.evidence(number)}, indent=2))
