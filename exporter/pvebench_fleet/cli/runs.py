"""`pvebench export runs` and `pvebench import runs`: all runs as a file, for another machine."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import click

from pvebench.cli.options import (
    PATH,
    output_option,
    pairs_of,
    read_settings,
    settings_options,
    writing,
)
from pvebench.cli.selection import results_of
from pvebench.model.units import count_text
from pvebench.store.state_directory import StateDirectory
from pvebench.store.store import Store
from pvebench_fleet.fleet_log import FleetLog
from pvebench_fleet.imported import add_imported
from pvebench_fleet.run_files import Pseudonyms, opened, opened_for_writing, write_runs

_NODE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,98}[A-Za-z0-9])?")


@click.command(name="runs")
@settings_options
@click.option("--anonymous", is_flag=True, help="Replace names of nodes, storages and packs.")
@output_option("File to write, with gzip if it ends in .gz; default: standard output.")
def export_runs(output: Path | None, *, anonymous: bool, **options: Any) -> None:
    """Export all runs with environments and definitions, for `pvebench import runs`.

    One JSON object per line. Raw output is not included.
    """
    with results_of(read_settings(**options)) as store, ExitStack() as stack:
        simulated = store.simulated
        names = Pseudonyms(simulated=simulated)
        stack.enter_context(writing(output))
        file: IO[bytes] = (
            stack.enter_context(opened_for_writing(output)) if output else sys.stdout.buffer
        )
        lines = FleetLog(store.engine).stored()
        replaced = names.replaced if anonymous else None
        count = write_runs(file, lines, simulated=simulated, pseudonyms=replaced)
    if output is not None:
        click.echo(f"wrote {output}: {count_text(count, 'run')}")


@click.command(name="runs")
@settings_options
@click.argument("file", type=PATH)
@click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="NODE=NAME",
    help="Name of a node here, if another machine has its name; may be repeated.",
)
def import_runs(file: Path, renames: tuple[str, ...], **options: Any) -> None:
    """Import runs of `pvebench export runs` into a state directory of their own.

    pvebench never measures there. Runs that are there already stay as they are.
    """
    names = pairs_of("--rename", renames)
    for name in names.values():
        if not _NODE.fullmatch(name):
            raise click.UsageError(f"invalid name {name!r}; use letters, digits, - or _")
    settings = read_settings(**options)
    with opened(file, names) as runs_file, ExitStack() as stack:
        directory = stack.enter_context(StateDirectory(settings.state.absolute(), exclusive=True))
        store = Store(directory.database)
        stack.callback(store.close)
        count = add_imported(store, runs_file.runs(), simulated=runs_file.head.simulated)
    nodes = f" of {', '.join(sorted(count.nodes))}" if count.nodes else ""
    text = f"{count_text(count.added, 'run')}{nodes} imported; {count.known} were there already"
    older = f"; {count.older} left out, older than the stored ones of their node"
    click.echo(text + older * bool(count.older))
