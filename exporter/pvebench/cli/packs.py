"""`pvebench packs`, `plan` and `schema`, with few imports so that they start quickly."""

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
    format_option,
    make_console,
    pack_file,
    read_settings,
    scale_option,
    selection_options,
    settings_options,
    writing,
)
from pvebench.config import Pack, load_pack, shipped_packs
from pvebench.config.document import read_document
from pvebench.config.pack import pack_of_fio
from pvebench.config.settings import MODELS, schema_text
from pvebench.drivers import driver_of
from pvebench.errors import ConfigError, Problem
from pvebench.files import read_text
from pvebench.model.storage_use import AT_MOST, cost_lines
from pvebench.model.units import count_text, format_size, show_bytes, show_interval, show_seconds
from pvebench.scheduler.due_cases import jitter_seconds
from pvebench.scheduler.plan import Assignment, Plan, make_plan, why_canceled
from pvebench.service.startup import FittingCases, assignments, fitting, paced

# --- `pvebench schema`: JSON schemas of packs and settings, for editors.


@click.command()
@click.argument("name", type=click.Choice(MODELS))
def schema(name: str) -> None:
    """Print a JSON schema: of packs or of settings."""
    click.echo(schema_text(name), nl=False)


# --- `pvebench packs`: available packs.


@click.command()
@click.argument("directory", type=PATH, required=False)
@click.option(
    "--copy",
    "name",
    metavar="NAME",
    shell_complete=complete_pack,
    help="Copy a pack that comes with pvebench to the working directory, to edit it.",
)
@click.option(
    "--show",
    "shown",
    type=PATH,
    metavar="NAME",
    shell_complete=complete_pack,
    help="Show one pack.",
)
@click.option(
    "--from-fio",
    "command",
    metavar="COMMAND",
    help="Print a pack with the jobs of a command line of fio, in quotes, or of a job file.",
)
@format_option()
def packs(
    directory: Path | None, name: str | None, shown: Path | None, command: str | None, form: str
) -> None:
    """List the packs of pvebench or of a directory."""
    if command is not None:
        file = Path(command) if command.endswith(".fio") else None
        click.echo(pack_of_fio(read_text(file) if file else command), nl=False)
        return
    if name is not None:
        _copy(name)
        return
    if shown is not None:
        _show(load_pack(pack_file(shown)))
        return
    available = [load_pack(path) for path in _files(directory)]
    if form == "json":
        click.echo(json.dumps([_row(pack) for pack in available], indent=2))
        return
    _print(available)


def _files(directory: Path | None) -> list[Path]:
    """Return the files of a directory; without one, the file of each shipped name here."""
    if directory is None:
        return [pack_file(Path(name)) for name in shipped_packs()]
    files = []
    for path in sorted(directory.glob("*.yaml")):
        if read_document(path).has(("pack",)):
            files.append(path)
        else:  # such as settings
            click.echo(f"{path}: left out, it has no key 'pack'", err=True)
    if not files:
        message = "contains no packs (*.yaml); use another directory"
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


def _print(available: list[Pack]) -> None:
    """Print one line per pack; a terminal cuts titles, which are the last column."""
    console, width = make_console(), max(len(pack.name) for pack in available)
    included = set(shipped_packs().values())
    for pack in available:
        title = pack.title if pack.path in included else f"{pack.path}: {pack.title}"
        line = f"{pack.name:{width}}  {show_interval(pack.every_seconds):>7}  {title}"
        console.print(line, no_wrap=True, overflow="ellipsis")
    click.echo("details: `pvebench packs --show NAME`, `pvebench plan --pack NAME`")


def _show(pack: Pack) -> None:
    """Print the details of a pack."""
    click.echo(f"{pack.name}: {pack.title}")
    facts = {
        "source": pack.source,
        "file": str(pack.path),
        "tier": pack.tier,
        "every": show_interval(pack.every_seconds),
        "volume": format_size(pack.volume_bytes),
        "guest": f"{pack.machine.os}, {pack.machine.details}",
        **{name: ", ".join(map(str, values)) for name, values in pack.axes.items()},
        "workloads": ", ".join(workload.slug for workload in pack.workloads),
    }
    for name, text in facts.items():
        if text:
            click.echo(f"  {name}: {text}")


def _copy(name: str) -> None:
    """Copy a shipped pack to the working directory; never overwrite a file."""
    paths = shipped_packs()
    if name not in paths:
        raise ConfigError.of_options(
            f"--copy: unknown pack {name!r}; use one of {', '.join(paths)}"
        )
    target = Path(f"{name}.yaml")
    # The schema is not copied, so the editors' reference to it would be dead.
    lines = paths[name].read_text("utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("# yaml-language-server:"))
    with writing(target), target.open("x", encoding="utf-8") as file:
        file.write(text)
    click.echo(f"wrote {target}; it overrides the shipped pack: pvebench plan --pack {name}")


# --- `pvebench plan`: the cases of a cycle.

SHOWN_OF_A_REASON: Final = 5
"""Excluded cases named per reason."""


@click.command()
@settings_options
@scale_option
@selection_options
@format_option()
def plan(
    form: str, scale: float, only: tuple[str, ...], skip: tuple[str, ...], **options: Any
) -> None:
    """Show cases, exclusions, duration, space and writes of a cycle."""
    settings = read_settings(**options)
    driver_of(settings.driver).require(settings)
    selected = assignments(settings, scale=scale, only=only, skip=skip)
    plans, unknown = fitting(settings, selected)
    if form == "json":
        rows = [_plan_data(each) for each in plans]
        click.echo(json.dumps(rows, indent=2))
        return
    console = make_console()
    for each in plans:
        _print_plan(console, each)
    if unknown:
        console.print(f"free space not checked: {unknown}", highlight=False, soft_wrap=True)
    for line in cost_lines(paced(settings, [each.assignment for each in plans]).costs):
        console.print(line, highlight=False, soft_wrap=True)


def _cycle(assignment: Assignment) -> Plan:
    pack = assignment.pack
    return make_plan(assignment.matrix, seed=pack.seed, conduct=pack.conduct)


def _plan_data(fit: FittingCases) -> dict[str, Any]:
    assignment, cycle = fit.assignment, _cycle(fit.assignment)
    return {
        "pack": assignment.pack.name,
        "node": assignment.node,
        "cases": [case.slug for case in cycle.cases],
        "excluded": [{"slug": case.slug, "reason": case.reason} for case in cycle.excluded],
        "notes": [{"slug": slug, "note": note} for slug, note in _notes(cycle)],
        "restarts": cycle.restarts,
        "switches": cycle.switches,
        "fills": cycle.fills,
        "every_seconds": assignment.pack.every_seconds,
        "jitter_seconds": jitter_seconds(assignment.pack.every_seconds)[0],
        "seconds": round(cycle.seconds, 1),
        "bytes_written": cycle.bytes_written,
        "space_bytes": dict(fit.need),
    }


def _print_plan(console: Console, fit: FittingCases) -> None:
    assignment, cycle = fit.assignment, _cycle(fit.assignment)
    pack = assignment.pack
    console.print(Text(pack.name, style="bold"), f"on {assignment.node}: {pack.title}")
    if pack.source:
        console.print(f"source: {pack.source}")
    console.print(
        f"{count_text(len(cycle.cases), 'case')}, {count_text(cycle.restarts, 'boot')}, "
        f"{count_text(cycle.switches, 'switch')}, {count_text(cycle.fills, 'fill')}; "
        f"about {show_seconds(cycle.seconds)}, "
        f"{AT_MOST} {show_bytes(cycle.bytes_written)} written"
    )
    console.print(f"space needed: at most {fit.text}", highlight=False, soft_wrap=True)
    console.print(_interval_text(pack.every_seconds))
    table = Table("#", "scenario", "workload", box=None, padding=(0, 2, 0, 0))
    for number, case in enumerate(cycle.cases, start=1):
        table.add_row(str(number), case.scenario.slug, case.workload.slug)
    console.print(table)
    _print_reasons(console, "notes:", _notes(cycle))
    excluded = [(case.slug, case.reason) for case in cycle.excluded]
    _print_reasons(console, "excluded:", excluded)


def _notes(cycle: Plan) -> list[tuple[str, str]]:
    """Return slug and note of each case with a note, and a note on each template."""
    notes = {case.slug: why_canceled(case) for case in cycle.cases}
    templates = {case.scenario.machine.template for case in cycle.cases} - {0}
    clone = "its clone is not included: seconds if linked, else a copy; see `pvebench check`"
    notes |= {f"template {vmid}": clone for vmid in templates}
    images = {case.scenario.machine.image for case in cycle.cases} - {""}
    missing = "no such file; correct guest.image in the pack"
    notes |= {name: missing for name in sorted(images) if not Path(name).exists()}
    return [(slug, note) for slug, note in notes.items() if note]


def _print_reasons(console: Console, title: str, reasons: Sequence[tuple[str, str]]) -> None:
    if not reasons:
        return
    console.print(title)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for slug, reason in _group_reasons(reasons):
        table.add_row(slug, reason)
    console.print(table)


def _interval_text(every_seconds: float) -> str:
    """Return the interval of a case and its jitter."""
    text = f"each case every {show_interval(every_seconds)}"
    jitter, _ = jitter_seconds(every_seconds)
    if not jitter:
        return text
    return f"{text} ± {show_interval(jitter)}, so that runs cover all hours of the day"


def _group_reasons(reasons: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (slug, reason); per reason the first few, then the number of others."""
    by_reason: dict[str, list[str]] = {}
    for slug, reason in reasons:
        by_reason.setdefault(reason, []).append(slug)
    for reason, slugs in by_reason.items():
        for slug in slugs[:SHOWN_OF_A_REASON]:
            yield slug, reason
        if len(slugs) > SHOWN_OF_A_REASON:
            yield f"and {len(slugs) - SHOWN_OF_A_REASON} more (use --format json for all)", reason
