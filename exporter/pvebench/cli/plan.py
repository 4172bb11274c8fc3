"""`pvebench plan`: looking ahead. Imports no more than that needs: it is waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pvebench.cli.console import make_console
from pvebench.cli.options import (
    json_option,
    read_settings,
    scale_option,
    selection_options,
    settings_options,
)
from pvebench.drivers import driver_of
from pvebench.model.units import show_bytes, show_seconds
from pvebench.plan import Assignment, LeftOut, Plan, make_plan, wander_seconds
from pvebench.service.choice import assignments

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
        "left_out": [{"slug": left.slug, "reason": left.reason} for left in made.left_out],
        "restarts": made.restarts,
        "switches": made.switches,
        "fills": made.fills,
        "every_seconds": entry.pack.every_seconds,
        "wander_seconds": wander_seconds(entry.pack.every_seconds)[0],
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
    if made.left_out:
        console.print("left out:")
        reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        for slug, reason in _grouped(made.left_out):
            reasons.add_row(slug, reason)
        console.print(reasons)


def _interval_text(every_seconds: float) -> str:
    """Return how often a case comes back, and at which hours."""
    text = f"each case every {show_seconds(every_seconds)}"
    later, _ = wander_seconds(every_seconds)
    if not later:
        return text
    return f"{text}, up to {show_seconds(later)} later or earlier: it comes to all hours of the day"


def _grouped(left_out: Sequence[LeftOut]) -> Iterator[tuple[str, str]]:
    """Yield (slug, reason); of many with one reason the first few and how many more there are."""
    by_reason: dict[str, list[str]] = {}
    for left in left_out:
        by_reason.setdefault(left.reason, []).append(left.slug)
    for reason, slugs in by_reason.items():
        for slug in slugs[:SHOWN_OF_A_REASON]:
            yield slug, reason
        if len(slugs) > SHOWN_OF_A_REASON:
            yield f"and {len(slugs) - SHOWN_OF_A_REASON} more (all: --json)", reason
