"""Commands that act on a running instance, or on what a killed one left: abort, pause, cleanup."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Final

import click

from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.config.settings import Settings
from pvebench.drivers import engine_of
from pvebench.errors import AlreadyRunning, MachineError
from pvebench.service.selection import opened_store
from pvebench.store import StateDirectory, StoredJournal

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
                next_step=f"kill -9 {who}, then pvebench cleanup; nothing is lost",
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


# --- `pvebench cleanup`: remove leftovers of a killed process; orphans of a lost state directory.


@click.command()
@click.option("--orphans", is_flag=True, help="List VMs and containers without a journal instead.")
@click.option(
    "--remove",
    "vmids",
    type=int,
    multiple=True,
    help="Orphaned VM or container to remove; may be repeated.",
)
@json_option
@settings_options
def cleanup(orphans: bool, vmids: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """Remove leftovers of a crash; with --orphans, list VMs and containers of a lost state.

    Every start of pvebench removes the leftovers of its own state directory. Orphans remain only
    if that directory is lost; --orphans changes nothing unless --remove names one.
    """
    settings = read_settings(**options)
    with opened_store(settings) as (_, store):
        if orphans or vmids:
            _clean_orphans(settings, store.journal, vmids, as_json=as_json)
            return
        lines = engine_of(settings.driver).undo(settings, store.journal)
    for line in lines or ["no leftovers"]:
        click.echo(line)


def _clean_orphans(
    settings: Settings, journal: StoredJournal, vmids: tuple[int, ...], *, as_json: bool
) -> None:
    sweeper = engine_of(settings.driver).sweeper(settings)
    if sweeper is None:
        raise MachineError(
            f"--orphans requires driver proxmox, the settings have {settings.driver}",
            next_step="name the settings of the cluster with --config",
        )
    found = sweeper.find(journal)
    if as_json:
        click.echo(json.dumps([entry.as_data() for entry in found], indent=2))
    for entry in [] if as_json else found:
        click.echo(entry.text)
    if not found and not as_json:
        click.echo("no orphans")
    for vmid in vmids:
        click.echo(sweeper.remove(journal, vmid), err=as_json)
    if found and not vmids and not as_json:
        click.echo(
            "to remove one: pvebench cleanup --orphans --remove NUMBER (make sure that no other "
            "instance uses it; its VMs look the same)"
        )
