"""`pvebench pause`, `resume`, `abort`, `sweep`: stop for a while or at once, and clean up."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib import import_module
from typing import Any, Final

import click

from pvebench.cli.instance import kept, opened_store, undo_everything
from pvebench.cli.options import json_option, read_settings, settings_options
from pvebench.drivers.host import SystemClock
from pvebench.errors import AlreadyRunning, MachineError
from pvebench.store import StateDirectory

_ABORT_SECONDS: Final = 180.0
"""A VM is stopped and destroyed in that time, tasks of a slow node included."""


@click.command()
@click.option("--reason", default="paused by hand", show_default=True, help="Shown while it lasts.")
@settings_options
def pause(reason: str, scale: float, **options: Any) -> None:
    """Measure nothing more until `resume`; the present run is ended first."""
    del scale
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    state.pause(" ".join(reason.split()) or "paused by hand")
    who = state.holder()
    click.echo(f"process {who} pauses after its present run" if who else
               "no pvebench runs here now; the next one waits for resume")  # fmt: skip


@click.command()
@settings_options
def resume(scale: float, **options: Any) -> None:
    """End a pause."""
    del scale
    state = StateDirectory(read_settings(**options).state, exclusive=False)
    click.echo("it goes on" if state.resume() else "there was no pause")


@click.command()
@settings_options
def abort(scale: float, **options: Any) -> None:
    """End the instance that uses the state directory now, in mid-run, and leave nothing behind."""
    del scale
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    who = state.holder()
    if who:
        os.kill(who, signal.SIGTERM)
        click.echo(f"process {who} was told to end")
        _wait_for_end(state, who)
    with opened_store(settings) as (_, store):
        lines = [*undo_everything(settings, store.journal), *kept(settings, store.journal)]
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


@click.command()
@click.option("--remove", "vmids", type=int, multiple=True, help="VM to remove; may be repeated.")
@json_option
@settings_options
def sweep(vmids: tuple[int, ...], as_json: bool, scale: float, **options: Any) -> None:
    """List VMs on the cluster that some pvebench made and nobody looks after; remove those named.

    What a crash leaves is removed by the next start with the same state directory. This is for
    what is left when that directory is lost.
    """
    del scale
    settings = read_settings(**options)
    if settings.driver != "proxmox":
        raise MachineError(
            "sweep looks at a cluster, and the driver is not proxmox",
            next_step="in the lab, pvebench undo removes what a crash left",
        )
    cluster = import_module("pvebench.cli.cluster")
    with opened_store(settings) as (_, store):
        found = cluster.strays(settings, store.journal, SystemClock())
        if as_json:
            click.echo(json.dumps([entry.as_data() for entry in found], indent=2))
        for entry in [] if as_json else found:
            click.echo(entry.text)
        if not found and not as_json:
            click.echo("nothing is left on the cluster")
        for vmid in vmids:
            line = cluster.remove_stray(settings, store.journal, found, vmid, SystemClock())
            click.echo(line, err=as_json)
    if found and not vmids and not as_json:
        click.echo("to remove one: pvebench sweep --remove NUMBER (another instance's VM looks "
                   "the same: be sure that none uses it)")  # fmt: skip
