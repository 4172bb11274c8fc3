"""`pvebench abort`: stop at once, and clean up."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.drivers import engine_of
from pvebench.errors import AlreadyRunning
from pvebench.service.sites import opened_store
from pvebench.store import StateDirectory

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
