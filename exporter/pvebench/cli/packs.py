"""`pvebench plan`: looking ahead. Imports no more than that needs: it is waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pvebench.cli.options import (
    PATH,
    complete_pack,
    json_option,
    pack_file,
    read_settings,
    scale_option,
    selection_options,
    settings_options,
)
from pvebench.cli.selection import make_console
from pvebench.config import Pack, load_pack, shipped_packs
from pvebench.config.settings import MODELS, schema_text
from pvebench.drivers import driver_of
from pvebench.errors import ConfigError, NotWritable, Problem
from pvebench.model.units import format_size, show_bytes, show_seconds
from pvebench.scheduler.case_matrix import Assignment, ExcludedCase
from pvebench.scheduler.due_cases import jitter_seconds
from pvebench.scheduler.order import Plan, make_plan
from pvebench.service.selection import assignments

# --- `pvebench schema`: the JSON schemas of packs and settings, for editors.


@click.command()
@click.argument("name", type=click.Choice(sorted(MODELS)))
def schema(name: str) -> None:
    """Print the JSON schema of packs or settings."""
    click.echo(schema_text(name), nl=False)


# --- `pvebench packs`: what can be measured. Imports no more than that needs: it is waited for.


@click.command()
@click.argument("directory", type=PATH, required=False)
@click.option(
    "--copy",
    "name",
    metavar="NAME",
    shell_complete=complete_pack,
    help="Write a pack that comes with pvebench into the working directory, to change it.",
)
@json_option
def packs(directory: Path | None, name: str | None, as_json: bool) -> None:
    """List the packs that come with pvebench, or those in a directory."""
    if name is not None:
        _copy(name)
        return
    found = [load_pack(path) for path in _files(directory)]
    if as_json:
        click.echo(json.dumps([_row(pack) for pack in found], indent=2))
        return
    _print(found)


def _files(directory: Path | None) -> list[Path]:
    """Return the files of a directory; without one, what each name of ours means here."""
    if directory is None:
        return [pack_file(Path(name)) for name in shipped_packs()]
    files = sorted(directory.glob("*.yaml"))
    if not files:
        message = "there are no packs (*.yaml) here; name another directory"
        raise ConfigError([Problem(str(directory), 0, 0, message)])
    return files


def _row(pack: Pack) -> dict[str, object]:
    return {
        "pack": pack.name,
        "title": pack.title,
        "tier": pack.tier,
        "file": str(pack.path),
        "source": pack.source,
        "published": pack.published,
        "every_seconds": pack.every_seconds,
        "volume_bytes": pack.volume_bytes,
        "workloads": [workload.slug for workload in pack.workloads],
    }


def _print(found: list[Pack]) -> None:
    ours = set(shipped_packs().values())
    table = Table("pack", "tier", "every", "volume", "workloads", "title and source", box=None)
    for pack in found:
        words = Text(pack.title)
        if pack.source:
            words.append(f"\n{pack.source}", style="dim")
        if pack.path not in ours:
            words.append(f"\n{pack.path}", style="dim")
        table.add_row(
            pack.name,
            pack.tier,
            show_seconds(pack.every_seconds),
            format_size(pack.volume_bytes),
            str(len(pack.workloads)),
            words,
        )
    make_console().print(table)


def _copy(name: str) -> None:
    """Write a pack of ours beside the others of this directory; nothing is written over."""
    known = shipped_packs()
    if name not in known:
        message = f"--copy: no pack called {name!r} comes with pvebench; they are "
        raise ConfigError([Problem("command line", 0, 0, message + ", ".join(known))])
    target = Path(f"{name}.yaml")
    # Its schema does not come along: its first line would lead editors nowhere.
    lines = known[name].read_text("utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("# yaml-language-server:"))
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise NotWritable(
            f"{target} is there already, and is not written over",
            next_step="change that one, or remove it first",
        ) from error
    except OSError as error:
        raise NotWritable(f"{target} cannot be written: {error.strerror}") from error
    click.echo(f"{target} goes before the pack of that name: pvebench plan --pack {name}")


SHOWN_OF_A_REASON: Final = 5
"""Of what is left out for one reason, so many are named."""


@click.command()
@settings_options
@scale_option
@selection_options
@json_option
def plan(
    as_json: bool, scale: float, only: tuple[str, ...], skip: tuple[str, ...], **options: Any
) -> None:
    """Show what a cycle would run, what it leaves out and why, its time and its bytes."""
    settings = read_settings(**options)
    driver_of(settings.driver).require(settings)
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
        "node": entry.node,
        "cases": [case.slug for case in made.cases],
        "excluded": [{"slug": left.slug, "reason": left.reason} for left in made.excluded],
        "restarts": made.restarts,
        "switches": made.switches,
        "fills": made.fills,
        "every_seconds": entry.pack.every_seconds,
        "wander_seconds": jitter_seconds(entry.pack.every_seconds)[0],
        "seconds": round(made.seconds, 1),
        "bytes_written": made.bytes_written,
    }


def _print_plan(console: Console, entry: Assignment, made: Plan) -> None:
    pack = entry.pack
    console.print(Text(pack.name, style="bold"), f"on {entry.node}: {pack.title}")
    if pack.source:
        console.print(f"after: {pack.source}")
    console.print(
        f"{len(made.cases)} cases, {made.restarts} boots, {made.switches} switches, "
        f"{made.fills} fills; about {show_seconds(made.seconds)}, "
        f"at most {show_bytes(made.bytes_written)} written"
    )
    console.print(_interval_text(pack.every_seconds))
    table = Table("#", "scenario", "workload", box=None, padding=(0, 2, 0, 0))
    for number, case in enumerate(made.cases, start=1):
        table.add_row(str(number), case.scenario.slug, case.workload.slug)
    console.print(table)
    if made.excluded:
        console.print("left out:")
        reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for slug, reason in _grouped(made.excluded):
            reasons.add_row(slug, reason)
        console.print(reasons)


def _interval_text(every_seconds: float) -> str:
    """Return how often a case comes back, and at which hours."""
    text = f"each case every {show_seconds(every_seconds)}"
    later, _ = jitter_seconds(every_seconds)
    if not later:
        return text
    return f"{text}, up to {show_seconds(later)} later or earlier: it comes to all hours of the day"


def _grouped(excluded: Sequence[ExcludedCase]) -> Iterator[tuple[str, str]]:
    """Yield (slug, reason); of many with one reason the first few and how many more there are."""
    by_reason: dict[str, list[str]] = {}
    for left in excluded:
        by_reason.setdefault(left.reason, []).append(left.slug)
    for reason, slugs in by_reason.items():
        for slug in slugs[:SHOWN_OF_A_REASON]:
            yield slug, reason
        if len(slugs) > SHOWN_OF_A_REASON:
            yield f"and {len(slugs) - SHOWN_OF_A_REASON} more (all: --json)", reason
