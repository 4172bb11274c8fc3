"""`pvebench fleet`: the connection of this site to the hub of its fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import click

from pvebench.cli.options import columns, format_option, read_settings, settings_options, show
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.diagnostics.outgoing import Observation, Severity
from pvebench.errors import MachineError
from pvebench.model.units import count_text, show_seconds
from pvebench.store.state_directory import StateDirectory, engine_at, summarize_store
from pvebench_fleet.fleet_log import CONNECTED, IDLE_SECONDS, SOUND, FleetLog, FleetState


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
        state = FleetLog(store.engine).state()
        lines = status_lines(settings, state, time.time())
    show(form, lambda: lines, lambda: columns(lines.items()))
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
        fleet_log = FleetLog(store.engine)
        if fleet_log.state() is None:
            click.echo("nothing to do: this site has not sent anything yet")
            return
        fleet_log.renew()
        state = fleet_log.state()
    click.echo(f"{state.newest if state else 0} lines will be sent by `pvebench serve`")


# --- For `pvebench doctor`.


def observe(settings: Settings) -> Iterator[Observation]:
    """Yield the state of the connection to the hub. Raises StoreError: it cannot be read."""
    if settings.fleet is None:
        return
    path = settings.database
    summary = summarize_store(path, most_bytes=0)
    if summary is not None and not summary.current:
        text = "not checked: the database has the schema of another version"
        yield Observation("fleet", Severity.UNKNOWN, text)
        return
    with engine_at(path) if summary else nullcontext() as engine:
        state = FleetLog(engine).state() if engine else None
    yield Observation("fleet", *_connection_state(state, time.time()))


def _connection_state(state: FleetState | None, now: float) -> tuple[Severity, str]:
    if state is None:
        return Severity.WARNING, "not connected to the hub yet; `pvebench serve` connects"
    waiting = f"{count_text(state.newest - state.acked, 'line')} waiting"
    silent = "never" if state.contact is None else f"{show_seconds(now - state.contact)} ago"
    text = f"hub: {state.state}, last contact {silent}, {waiting}"
    if state.state not in SOUND:
        return Severity.CRITICAL, f'{text}; see docs/fleet.md, "Connect a site"'
    if (
        state.state != CONNECTED
        or state.contact is None
        or not 0 <= now - state.contact < 2 * IDLE_SECONDS
    ):
        return Severity.WARNING, f"{text}; a running `pvebench serve` sends them"
    return Severity.OK, text
