"""`pvebench sweep`: what some pvebench left on the cluster and nobody looks after."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Final

import click

from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.drivers import engine_of
from pvebench.errors import AlreadyRunning, MachineError
from pvebench.service.selection import opened_store
from pvebench.store import StateDirectory

# --- `pvebench abort`: stop at once, and clean up.

_ABORT_SECONDS: Final = 180.0
"""A VM is stopped and destroyed in that time, tasks of a slow node included."""


@click.command()
@settings_options
def abort(**options: Any) -> None:
    """End the instance that uses the state directory now, in mid-run, and leave nothing behind."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    who = state.holder()
    if who:
        os.kill(who, signal.SIGTERM)
        click.echo(f"process {who} was told to end")
        _wait_for_end(state, who)
    with opened_store(settings) as (_, store):
        engine = engine_of(settings.driver)
        lines = [*engine.undo(settings, store.journal), *engine.kept(store.journal)]
    for line in lines or ["nothing is left"]:
        click.echo(line)


def _wait_for_end(state: StateDirectory, who: int) -> None:
    deadline = time.monotonic() + _ABORT_SECONDS
    while state.holder() == who:
        if time.monotonic() > deadline:
            raise AlreadyRunning(
                f"process {who} did not end within {_ABORT_SECONDS:.0f} s",
                cause="the cluster does not answer while the VM is being removed",
                next_step=f"kill -9 {who}, then pvebench undo; nothing is lost",
            )
        time.sleep(0.2)


# --- `pvebench pause`: measure nothing more for a while.


@click.command()
@click.option("--reason", default="paused by hand", show_default=True, help="Shown while it lasts.")
@settings_options
def pause(reason: str, **options: Any) -> None:
    """Measure nothing more until `resume`; the present run is ended first."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    state.pause(" ".join(reason.split()) or "paused by hand")
    who = state.holder()
    click.echo(
        f"process {who} pauses after its present run"
        if who
        else "no pvebench runs here now; the next one waits for resume"
    )


# --- `pvebench resume`: end a pause.


@click.command()
@settings_options
def resume(**options: Any) -> None:
    """End a pause."""
    state = StateDirectory(read_settings(**options).state, exclusive=False)
    click.echo("it goes on" if state.resume() else "there was no pause")


# --- `pvebench undo`: clean up after a process that was killed.


@click.command()
@settings_options
def undo(**options: Any) -> None:
    """Undo what a process left that was killed; nothing else. Every start does so by itself."""
    settings = read_settings(**options)
    with opened_store(settings) as (_, store):
        lines = engine_of(settings.driver).undo(settings, store.journal)
    for line in lines or ["nothing was left to undo"]:
        click.echo(line)


@click.command()
@click.option(
    "--remove", "vmids", type=int, multiple=True, help="VM or container to remove; may be repeated."
)
@json_option
@settings_options
def sweep(vmids: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """List VMs and containers that some pvebench made and nobody looks after; remove those named.

    What a crash leaves is removed by the next start with the same state directory. This is for
    what is left when that directory is lost.
    """
    settings = read_settings(**options)
    sweeper = engine_of(settings.driver).sweeper(settings)
    if sweeper is None:
        raise MachineError(
            f"sweep looks at a cluster, and driver {settings.driver} has none",
            next_step="name the cluster's settings (--config); what a crash left here, pvebench "
            "undo removes",
        )
    with opened_store(settings) as (_, store):
        found = sweeper.find(store.journal)
        if as_json:
            click.echo(json.dumps([entry.as_data() for entry in found], indent=2))
        for entry in [] if as_json else found:
            click.echo(entry.text)
        if not found and not as_json:
            click.echo("nothing was found that a pvebench left")
        for vmid in vmids:
            click.echo(sweeper.remove(store.journal, vmid), err=as_json)
    if found and not vmids and not as_json:
        click.echo(
            "to remove one: pvebench sweep --remove NUMBER (another instance's VM looks "
            "the same: be sure that none uses it)"
        )
