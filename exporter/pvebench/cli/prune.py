"""`pvebench prune`: what of the history is too old, and removing it."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import click

from pvebench.cli.looking import results_of
from pvebench.cli.options import read_settings, settings_options
from pvebench.store import Removal, StateDirectory


@click.command()
@settings_options
@click.option("--apply", "write", is_flag=True, help="Remove it; else only say what would go.")
def prune(write: bool, **options: Any) -> None:
    """Tell what is older than keep_evidence and keep_runs allow; remove it with --apply.

    A running instance does so by itself once a day, unless it would be a large part of the
    history at once.
    """
    settings = read_settings(**options)
    ages = {"evidence_seconds": settings.keep_evidence, "runs_seconds": settings.keep_runs}
    with ExitStack() as stack:
        if write:
            stack.enter_context(StateDirectory(settings.state.absolute(), exclusive=True))
        store = stack.enter_context(results_of(settings))
        now = datetime.now(UTC)
        if write:
            removal, _ = store.prune(now, certain=True, **ages)
        else:
            removal = store.removable(now, **ages)
    click.echo(_told(removal, written=write))


def _told(removal: Removal, *, written: bool) -> str:
    if removal.before is None:
        return "there are too few runs to tell what is old; nothing is removed"
    verb = "removed" if written else "would be removed"
    counted = datetime.fromtimestamp(removal.before, UTC)
    lines = [
        f"ages are counted from {counted:%Y-%m-%d %H:%M} UTC",
        f"{removal.runs} of {removal.of_runs} runs {verb}",
        f"the raw output of {removal.stripped} of {removal.of_evidence} runs {verb}",
    ]
    if not written and (removal.runs or removal.stripped):
        lines.append("nothing was removed: add --apply")
    return "\n".join(lines)
