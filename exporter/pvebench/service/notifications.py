"""What the room `notify` is told of an instance: its settings, and how its measuring goes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from pvebench.config import Settings
from pvebench.drivers.driver import StopClock
from pvebench.model.ports import HoldKind
from pvebench.model.status import Statuses, WorkerStatus
from pvebench.model.week import parse_weekly
from pvebench.notify.delivery import send
from pvebench.notify.messages import Sender
from pvebench.notify.planner import NotificationPlanner, NotificationPolicy, Pulse
from pvebench.notify.sender import NotificationSender, addresses_of
from pvebench.report.text import without_secrets
from pvebench.store.current import Results, View


def make_courier(
    results: Results, settings: Callable[[], Settings], statuses: Statuses, clock: StopClock
) -> tuple[NotificationPlanner, NotificationSender]:
    """Return who decides what is told of an instance, and who takes it there."""

    def now() -> datetime:
        return clock.now().astimezone(ZoneInfo(settings().time_zone))

    teller = NotificationPlanner(
        results.store,
        lambda: wishes_of(settings()),
        lambda: pulses_of(results.now, statuses()),
        now=now,
        monotonic=clock.monotonic,
    )
    courier = NotificationSender(
        teller,
        results.store.outbox,
        lambda: addresses_of(settings()),
        send,
        now=lambda: clock.now().timestamp(),
    )
    return teller, courier


def wishes_of(settings: Settings) -> NotificationPolicy:
    """Return what the settings ask to be told."""
    notify = settings.notify
    weekly = None if notify is None or notify.weekly == "off" else parse_weekly(notify.weekly)
    targets = [one.name for one in notify.to] if notify else []
    return NotificationPolicy(targets=targets, sender=sender_of(settings), weekly=weekly)


def sender_of(settings: Settings) -> Sender:
    """Return who tells it: this machine, with the address of its page."""
    return Sender(socket.gethostname(), settings.external_url or "")


def pulses_of(view: View, statuses: Sequence[WorkerStatus]) -> list[Pulse]:
    """Return what the measuring of each node looks like."""
    found = []
    for status in statuses:
        mine = {key: one for key, one in view.planned.items() if one.definition.node == status.node}
        if not mine:
            continue
        good = [view.cases[key].good for key in mine if key in view.cases]
        ends = [run.finished.timestamp() for run in good if run is not None]
        hold = status.hold
        found.append(
            Pulse(
                node=status.node,
                newest=max(ends, default=None),
                interval=min(one.every_seconds for one in mine.values()),
                waiting=hold is not None and hold.kind is HoldKind.QUIET,
                doing=_doing(status),
            )
        )
    return found


def _doing(status: WorkerStatus) -> str:
    """Return in words what a worker does that has not measured for long."""
    if status.hold is not None:
        return f"waiting: {without_secrets(status.hold.reason)}"
    if status.fault:
        return f"in trouble: {without_secrets(status.fault)}"
    return str(status.state)
