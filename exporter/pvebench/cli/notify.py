"""`pvebench notify`: whether messages arrive, and which ones wait."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.errors import ConfigError, NotificationError, Problem
from pvebench.notify.delivery import send
from pvebench.notify.messages import show_time, trial
from pvebench.notify.sender import address_of
from pvebench.service.notifications import sender_of
from pvebench.store import TargetCounts


@click.command()
@settings_options
@click.option("--test", is_flag=True, help="Send a message to every target now.")
def notify(*, test: bool, **options: Any) -> None:
    """Show what waits for the targets of `notify` in the settings, or try them."""
    settings = read_settings(**options)
    if settings.notify is None:
        problem = Problem("settings", 0, 0, "there is no notify, so nobody is told anything")
        raise ConfigError([problem], next_step="see docs/notifications.md")
    if test:
        _try(settings)
    else:
        _show(settings)


def _try(settings: Settings) -> None:
    """Send a message to every target, past the queue. Raises NotTold if one did not take it."""
    message, failed = trial(sender_of(settings)), []
    for target in settings.notify.to if settings.notify else ():
        sent = send(address_of(target), message.title, message.body)
        click.echo(f"{target.name}: {sent.reason or 'taken'}")
        failed += [target.name] if sent.reason else []
    if failed:
        raise NotificationError(f"no message to {', '.join(failed)}")


def _show(settings: Settings) -> None:
    with results_of(settings) as store:
        counts, queued = store.outbox.counts(), store.outbox.queued()
    for target in settings.notify.to if settings.notify else ():
        of_target = counts.get(target.name, TargetCounts())
        last = "" if of_target.last is None else f", the last one {show_time(of_target.last)}"
        click.echo(
            f"{target.name}: {of_target.queued} waiting, {of_target.sent} sent{last}, "
            f"{of_target.dropped} given up"
        )
    for one in queued:
        why = f", {one.attempts} attempts in vain: {one.reason}" if one.reason else ""
        click.echo(f"  {one.target}  since {show_time(one.made)}  {one.message.title}{why}")
