"""`pvebench baseline`: decisions to accept a level or to ignore earlier runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.cli.selection import results_of
from pvebench.errors import StoreError
from pvebench.store.changes import Decision, DecisionKind


@click.group()
def baseline() -> None:
    """Manage baselines. An upgrade does not change a baseline; these commands do."""


_only = click.option(
    "--only",
    "cases",
    metavar="GLOB",
    help="Cases with a matching scenario, workload or scenario/workload.",
)
_all = click.option("--all", "every", is_flag=True, help="All cases.")
_reason = click.option("--reason", required=True, help="Reason, stored and shown with the change.")


@baseline.command()
@settings_options
@_only
@_all
@_reason
def accept(**options: Any) -> None:
    """Accept the current level. Known changes stop alerting and stay visible."""
    _decide("accept", **options)


@baseline.command()
@settings_options
@_only
@_all
@_reason
def reset(**options: Any) -> None:
    """Ignore earlier runs. The history of the cases starts again with the next run."""
    _decide("reset", **options)


@baseline.command(name="list")
@settings_options
def show(**options: Any) -> None:
    """List decisions."""
    with results_of(read_settings(**options)) as store:
        decisions = store.decisions.all()
    for decision in decisions:
        click.echo(
            f"{decision.made:%Y-%m-%d %H:%M} UTC  {decision.kind} {decision.cases} "
            f"(runs until {decision.until:%Y-%m-%d %H:%M} UTC): {decision.reason}"
        )
    if not decisions:
        click.echo("no decisions")


def _decide(
    kind: DecisionKind, *, cases: str | None, every: bool, reason: str, **options: Any
) -> None:
    """Store a decision about the runs so far.

    Raises:
        UsageError: neither some cases nor all are chosen, or both.
        StoreError: there is no run, or no case matches.
    """
    if every is (cases is not None):
        raise click.UsageError("choose cases with --only GLOB, or all cases with --all")
    cases = cases or "*"
    with results_of(read_settings(**options)) as store:
        newest = store.runs(limit=1)
        if not newest:
            raise StoreError("no runs yet", next_step="run `pvebench run` first")
        decision = Decision(
            made=datetime.now(UTC), kind=kind, cases=cases, until=newest[0].finished, reason=reason
        )
        definitions = [record.definition for record in store.cases().values()]
        count = sum(decision.concerns(entry.scenario, entry.workload) for entry in definitions)
        if not count:
            raise StoreError(
                f"no case matches {cases!r}", next_step="list the cases with `pvebench verdict`"
            )
        store.decisions.add(decision)
    effects = {"accept": "accepted the current level", "reset": "ignoring earlier runs"}
    click.echo(f"{effects[kind]} of {count} case{'s' if count > 1 else ''}")
