"""`pvebench notify`: queued notifications, and a test of the receivers."""

from __future__ import annotations

from typing import Any

import click

from pvebench.cli.options import read_settings, settings_options
from pvebench.cli.selection import results_of
from pvebench.config import Settings
from pvebench.errors import ConfigError, NotificationError, Problem
from pvebench.model.units import show_time
from pvebench.notify.delivery import send
from pvebench.notify.planner import TRIAL
from pvebench.notify.sender import address_of, text_of
from pvebench.store.outbox import ReceiverCounts


@click.command()
@settings_options
@click.option("--test", is_flag=True, help="Send a test notification to every receiver.")
def notify(*, test: bool, **options: Any) -> None:
    """Show queued notifications or send a test."""
    settings = read_settings(**options)
    if settings.notify is None:
        problem = Problem("settings", 0, 0, "notify is not set, so pvebench sends no notifications")
        raise ConfigError([problem], next_step="add receivers, see docs/notifications.md")
    if test:
        _send_test(settings)
    else:
        _show(settings)


def _send_test(settings: Settings) -> None:
    """Send a test notification to every receiver, without the queue.

    Raises:
        NotificationError: a receiver did not accept it.
    """
    text, failed = text_of(TRIAL, settings), []
    for receiver in settings.notify.to if settings.notify else ():
        delivery = send(address_of(receiver), *text)
        click.echo(f"{receiver.name}: {delivery.reason or 'sent'}")
        failed += [receiver.name] if delivery.reason else []
    if failed:
        raise NotificationError(f"sending to {', '.join(failed)} failed")


def _show(settings: Settings) -> None:
    with results_of(settings) as store:
        counts, queued = store.outbox.counts(), store.outbox.queued()
    for receiver in settings.notify.to if settings.notify else ():
        count = counts.get(receiver.name, ReceiverCounts())
        last = "" if count.last is None else f" (last {show_time(count.last)})"
        click.echo(
            f"{receiver.name}: {count.queued} queued, {count.sent} sent{last}, "
            f"{count.dropped} dropped"
        )
    for entry in queued:
        reason = f", {entry.attempts} failed attempts: {entry.reason}" if entry.reason else ""
        click.echo(f"  {entry.receiver}  since {show_time(entry.made)}  {entry.title}{reason}")
