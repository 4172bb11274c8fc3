"""`pvebench baseline`: saying that a change is right, or that history begins anew."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.cli.selection import results_of
from pvebench.errors import StoreError
from pvebench.store import Decision, DecisionKind


@click.group()
def baseline() -> None:
    """What the present level is compared with. An upgrade does not move it; this does."""


_only = click.option(
    "--only",
    "cases",
    default="*",
    show_default=True,
    metavar="GLOB",
    help="Cases whose scenario, workload or scenario/workload matches.",
)
_reason = click.option("--reason", required=True, help="Why; kept and shown with the change.")


@baseline.command()
@settings_options
@_only
@_reason
def accept(cases: str, reason: str, **options: Any) -> None:
    """Take the present level for right: known changes stop alarming and stay visible."""
    _decide("accept", cases, reason, options)


@baseline.command()
@settings_options
@_only
@_reason
def reset(cases: str, reason: str, **options: Any) -> None:
    """Begin the history anew: what was measured until now does not count any more."""
    _decide("reset", cases, reason, options)


@baseline.command(name="list")
@settings_options
def show(**options: Any) -> None:
    """List what was decided."""
    with results_of(read_settings(**options)) as store:
        decisions = store.decisions.all()
    for one in decisions:
        click.echo(
            f"{one.made:%Y-%m-%d %H:%M} UTC  {one.kind} {one.cases} "
            f"(runs until {one.until:%Y-%m-%d %H:%M} UTC): {one.reason}"
        )
    if not decisions:
        click.echo("nothing was decided")


def _decide(kind: DecisionKind, cases: str, reason: str, options: dict[str, Any]) -> None:
    """Keep a decision about the runs so far.

    Raises:
        StoreError: no run, or no case, is concerned.
    """
    with results_of(read_settings(**options)) as store:
        newest = store.runs(limit=1)
        if not newest:
            raise StoreError("there is no run yet", next_step="measure first: pvebench run")
        decision = Decision(
            made=datetime.now(UTC), kind=kind, cases=cases, until=newest[0].finished, reason=reason
        )
        definitions = [record.definition for record in store.cases().values()]
        count = sum(decision.concerns(one.scenario, one.workload) for one in definitions)
        if not count:
            raise StoreError(f"no case matches {cases!r}", next_step="list them: pvebench verdict")
        store.decisions.add(decision)
    done = {"accept": "the present level is the baseline", "reset": "the history begins anew"}
    click.echo(f"{done[kind]} of {count} case{'s' if count > 1 else ''}")
