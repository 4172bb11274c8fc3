"""`pvebench plan`, `packs`, `results`: looking without touching."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from pvebench.cli.console import make_console
from pvebench.cli.instance import assignments
from pvebench.cli.options import (
    PATH,
    json_option,
    read_settings,
    selection_options,
    settings_options,
)
from pvebench.cli.progress import numbers
from pvebench.config import load_pack
from pvebench.errors import ConfigError, Problem, StoreError
from pvebench.model.units import format_size, show_bytes, show_seconds
from pvebench.plan import Plan, make_plan
from pvebench.scheduler.worker import Assignment
from pvebench.store import Store, StoredRun


@click.command()
@settings_options
@selection_options
@json_option
def plan(
    as_json: bool, scale: float, only: tuple[str, ...], skip: tuple[str, ...], **options: Any
) -> None:
    """Show what a cycle would run, what it leaves out and why, its time and its bytes."""
    settings = read_settings(**options)
    given = assignments(settings, scale=scale, only=only, skip=skip)
    plans = [(entry, _plan(entry)) for entry in given]
    if as_json:
        click.echo(json.dumps([_plan_data(entry, made) for entry, made in plans], indent=2))
        return
    console = make_console()
    for entry, made in plans:
        _print_plan(console, entry, made)


def _plan(entry: Assignment) -> Plan:
    pack = entry.pack
    return make_plan(entry.matrix, seed=pack.seed, conduct=pack.conduct)


def _plan_data(entry: Assignment, made: Plan) -> dict[str, Any]:
    return {
        "pack": entry.pack.name,
        "cases": [case.slug for case in made.cases],
        "left_out": [{"slug": left.slug, "reason": left.reason} for left in made.left_out],
        "restarts": made.restarts,
        "switches": made.switches,
        "fills": made.fills,
        "seconds": round(made.seconds, 1),
        "bytes_written": made.bytes_written,
    }


def _print_plan(console: Console, entry: Assignment, made: Plan) -> None:
    pack = entry.pack
    console.print(f"[bold]{pack.name}[/bold]: {pack.title}")
    console.print(
        f"{len(made.cases)} cases, {made.restarts} boots, {made.switches} switches, "
        f"{made.fills} fills; about {show_seconds(made.seconds)}, "
        f"at most {show_bytes(made.bytes_written)} written",
    )
    table = Table("#", "scenario", "workload", box=None, padding=(0, 2, 0, 0))
    for number, case in enumerate(made.cases, start=1):
        table.add_row(str(number), case.scenario.slug, case.workload.slug)
    console.print(table)
    if made.left_out:
        console.print("left out:")
        reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for left in made.left_out:
            reasons.add_row(left.slug, left.reason)
        console.print(reasons)


@click.command()
@click.argument("directory", type=PATH, default=Path("scenarios"))
@json_option
def packs(directory: Path, as_json: bool) -> None:
    """List the packs in a directory."""
    found = [load_pack(path) for path in sorted(directory.glob("*.yaml"))]
    if not found:
        message = "there are no packs (*.yaml) here; name another directory"
        raise ConfigError([Problem(str(directory), 0, 0, message)])
    rows = [
        {
            "pack": pack.name, "title": pack.title, "tier": pack.tier, "file": str(pack.path),
            "every_seconds": pack.every_seconds, "volume_bytes": pack.volume_bytes,
            "workloads": [workload.slug for workload in pack.workloads],
        }
        for pack in found
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("pack", "tier", "every", "volume", "workloads", "title", box=None)
    for pack in found:
        table.add_row(
            pack.name, pack.tier, show_seconds(pack.every_seconds), format_size(pack.volume_bytes),
            str(len(pack.workloads)), pack.title,
        )  # fmt: skip
    make_console().print(table)


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


def run_data(run: StoredRun) -> dict[str, Any]:
    """Return a run as plain data."""
    return {
        "run": run.number, "uid": run.uid, "cycle": run.cycle, "environment": run.environment,
        "node": run.node, "scenario": run.scenario, "workload": run.workload,
        "started": run.started.isoformat(), "finished": run.finished.isoformat(),
        "outcome": str(run.outcome), "reason": run.reason,
        "samples": [
            {
                "metric": sample.metric, "direction": str(sample.direction or ""),
                "part": sample.part, "value": sample.value, "unit": str(sample.unit),
            }
            for sample in run.samples
        ],
    }  # fmt: skip


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
