"""`pvebench restore`: put a copy of the database in its place."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pvebench.cli.options import PATH, read_settings, settings_options
from pvebench.model.units import format_size
from pvebench.store import StateDirectory, Store, backups_of
from pvebench.store import restore as put_back


@click.command()
@click.argument("copy", type=PATH, required=False)
@settings_options
def restore(copy: Path | None, **options: Any) -> None:
    """List the copies of the database; put COPY in its place. What was there is kept."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state.absolute(), exclusive=False)
    if copy is None:
        click.echo(_listed(state.database))
        return
    with StateDirectory(state.path, exclusive=True):
        kept = put_back(state.database, copy, datetime.now(UTC))
        store = Store(state.database)
        runs = store.totals().runs
        store.close()
    click.echo(f"{state.database} is the copy {copy} now: {runs} runs")
    if kept is not None:
        click.echo(f"what was there before: {kept}")


def _listed(database: Path) -> str:
    backups = backups_of(database)
    lines = [
        f"{one.path}  {one.made:%Y-%m-%d %H:%M} UTC  {format_size(one.size_bytes)}"
        for one in backups
    ]
    others = sorted(database.parent.glob(f"{database.name}.before-*"))
    lines += [f"{path}  from before an upgrade" for path in others]
    if not lines:
        return "there is no copy; `pvebench serve` makes one a day (keep_backups)"
    return "\n".join([*lines, f"put one in its place: pvebench restore {lines[0].split()[0]}"])
