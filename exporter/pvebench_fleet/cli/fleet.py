"""`pvebench fleet`: the connection of this site to the hub of its fleet."""

from __future__ import annotations

import time
from typing import Any

import click

from pvebench.cli.options import columns, format_option, read_settings, settings_options, show
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.errors import MachineError
from pvebench.model.units import show_seconds
from pvebench.store.fleet_log import SOUND, FleetState
from pvebench.store.state import StateDirectory


@click.group()
def fleet() -> None:
    """Show or repair the connection to the hub of a fleet."""


@fleet.command()
@settings_options
@format_option()
def status(form: str, **options: Any) -> None:
    """Show what the hub has, and what waits."""
    settings = read_settings(**options)
    with results_of(settings) as store:
        state = store.fleet.state()
        lines = status_lines(settings, state, time.time())
    show(form, lambda: lines, lambda: columns(lines))
    if settings.fleet is not None and state is not None and state.state not in SOUND:
        raise MachineError(
            f"the connection to the hub fails: {state.state}",
            next_step='see docs/fleet.md, "Connect a site"',
        )


def status_lines(settings: Settings, state: FleetState | None, now: float) -> dict[str, str]:
    """Return name -> text of each line; `now` in UNIX seconds."""
    if settings.fleet is None:
        return {"hub": "none; set `site` and `fleet` in the settings"}
    lines = {"site": settings.site or "", "hub": settings.fleet.url}
    if state is None:
        return {**lines, "state": "not started; it starts with `pvebench serve`"}
    waiting = state.newest - state.acked
    contact = "never" if state.contact is None else f"{show_seconds(now - state.contact)} ago"
    return {
        **lines,
        "state": state.state,
        "contact": contact,
        "sent": f"{state.acked} of {state.newest} lines; {waiting} waiting",
        "process": state.process or "none yet",
    }


@fleet.command()
@settings_options
def resend(**options: Any) -> None:
    """Send all stored results again. The hub replaces what it has."""
    settings = read_settings(**options)
    with StateDirectory(settings.state.absolute(), exclusive=True), results_of(settings) as store:
        if store.fleet.state() is None:
            click.echo("nothing to do: this site has not sent anything yet")
            return
        store.fleet.renew()
        state = store.fleet.state()
    click.echo(f"{state.newest if state else 0} lines will be sent by `pvebench serve`")
