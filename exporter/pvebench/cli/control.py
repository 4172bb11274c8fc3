"""Commands for a running instance or the leftovers of a killed one: abort, pause, cleanup."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from pvebench.cli.options import format_option, read_settings, settings_options, show
from pvebench.config.settings import Settings
from pvebench.drivers import engine_of
from pvebench.errors import AlreadyRunning, DriverError, MachineError, NotOwned
from pvebench.model.ports import REMAINS
from pvebench.service.startup import locked_store
from pvebench.store.journal import StoredJournal
from pvebench.store.state_directory import StateDirectory, holder_of, stop_holder

# --- `pvebench abort`: immediate stop and cleanup.

_ABORT_SECONDS: Final = 180.0
"""Enough to stop and destroy a VM, including tasks of a slow node."""


@click.command()
@settings_options
def abort(**options: Any) -> None:
    """Stop the running instance immediately and clean up."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    if holder := stop_holder(state.path):
        click.echo(f"stopping process {holder}")
        _wait_for_end(state, holder)
    with locked_store(settings) as (_, store):
        engine = engine_of(settings.driver)
        lines, kept = engine.undo(settings, store.journal), engine.kept(store.journal)
        lines += _remains(store.journal)
        left = len(store.journal.pending()) - len(kept)
    _show([*lines, *kept], left=left)


def _remains(journal: StoredJournal) -> dict[str, int]:
    """Return a line about each thing that only a person can remove, and its number."""
    return {
        f"{details.get('text')}; then run `pvebench cleanup --confirm {number}`": number
        for number, kind, details in journal.pending()
        if kind == REMAINS
    }


def _show(lines: list[str], *, left: int) -> None:
    """Print the result of a cleanup. Raises DriverError if journal entries remain."""
    for line in lines or ["no leftovers"] * (not left):
        click.echo(line)
    if left:
        raise DriverError(
            f"{left} journal entries of leftovers remain",
            cause="the lines above, or entries of a driver or SSH host not in these settings, or "
            "of a plug-in that is not installed",
            next_step="fix the cause, then run `pvebench cleanup`",
        )


def _wait_for_end(state: StateDirectory, holder: int) -> None:
    deadline = time.monotonic() + _ABORT_SECONDS
    while holder_of(state.path) == holder:
        if time.monotonic() > deadline:
            raise AlreadyRunning(
                f"process {holder} did not exit within {_ABORT_SECONDS:.0f} s",
                cause="the cluster does not respond while pvebench removes the VM",
                next_step=f"run `kill -9 {holder}`, then `pvebench cleanup`; no results are lost",
            )
        time.sleep(0.2)


# --- `pvebench pause`: no further runs until `resume`.


@click.command()
@click.option(
    "--reason", default="paused by hand", show_default=True, help="Reason, shown during the pause."
)
@settings_options
def pause(reason: str, **options: Any) -> None:
    """Pause after the current run, until `resume`."""
    settings = read_settings(**options)
    state = StateDirectory(settings.state, exclusive=False)
    state.pause(" ".join(reason.split()) or "paused by hand")
    holder = holder_of(state.path)
    click.echo(
        f"process {holder} pauses after its current run"
        if holder
        else "no pvebench is running here; the next one waits for `pvebench resume`"
    )


# --- `pvebench resume`: end a pause.


@click.command()
@settings_options
def resume(**options: Any) -> None:
    """Resume after a pause."""
    state = StateDirectory(read_settings(**options).state, exclusive=False)
    click.echo("resumed" if state.resume() else "not paused")


# --- `pvebench cleanup`: leftovers of a killed process; orphans of a lost state directory.


@click.command()
@click.option("--orphans", is_flag=True, help="List VMs and containers without a journal instead.")
@click.option(
    "--remove",
    "vmids",
    type=int,
    multiple=True,
    help="Orphaned VM or container to remove; may be repeated.",
)
@click.option("--confirm", type=int, multiple=True, help="Entry that you removed manually.")
@click.option("--adopt", is_flag=True, help="Accept a state directory of another machine.")
@format_option()
@settings_options
def cleanup(orphans: bool, vmids: tuple[int, ...], adopt: bool, form: str, **options: Any) -> None:
    """Remove leftovers of a crash; --orphans lists orphaned VMs.

    Every start of pvebench removes the leftovers of its own state directory. Orphans remain only
    if that directory is lost. --orphans changes nothing without --remove.
    """
    done = options.pop("confirm")
    settings = read_settings(**options)
    with locked_store(settings, adopt=adopt) as (_, store):
        if orphans or vmids:
            _clean_orphans(settings, store.journal, vmids, form=form)
            return
        for number in done:
            if number not in _remains(store.journal).values():
                raise NotOwned(f"journal entry {number} is not one to confirm")
            store.journal.close(number)
        engine = engine_of(settings.driver)
        lines = [*engine.undo(settings, store.journal), *_remains(store.journal)]
        left = len(store.journal.pending()) - len(engine.kept(store.journal))
    _show(lines, left=left)


def _clean_orphans(
    settings: Settings, journal: StoredJournal, vmids: tuple[int, ...], *, form: str
) -> None:
    finder = engine_of(settings.driver).orphan_finder(settings)
    if finder is None:
        raise MachineError(
            f"--orphans requires driver proxmox, the settings have {settings.driver}",
            next_step="pass the settings of the cluster with --config",
        )
    orphans = finder.find(journal)
    lines = [entry.text for entry in orphans] or ["no orphans"]
    show(form, lambda: [entry.as_data() for entry in orphans], lambda: lines)
    for vmid in vmids:
        click.echo(finder.remove(journal, vmid), err=form == "json")
    if orphans and not vmids and form != "json":
        click.echo(
            "to remove one, run `pvebench cleanup --orphans --remove NUMBER`; check first that no "
            "other instance uses it, because VMs of all instances look the same"
        )
