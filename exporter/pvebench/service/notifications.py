"""Notifications of an instance: its policy, its sender and the activity of its nodes."""

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
from pvebench.notify.planner import NotificationPlanner, NotificationPolicy, Sender, WorkerActivity
from pvebench.notify.sender import NotificationSender, addresses_of
from pvebench.report.text import without_secrets
from pvebench.store.current import Results, View


def make_sender(
    results: Results, settings: Callable[[], Settings], statuses: Statuses, clock: StopClock
) -> tuple[NotificationPlanner, NotificationSender]:
    """Return the planner and the sender of an instance's notifications."""

    def now() -> datetime:
        return clock.now().astimezone(ZoneInfo(settings().time_zone))

    planner = NotificationPlanner(
        results.store,
        lambda: policy_of(settings()),
        lambda: pulses_of(results.now, statuses()),
        now=now,
        monotonic=clock.monotonic,
    )
    sender = NotificationSender(
        planner,
        results.store.outbox,
        lambda: addresses_of(settings()),
        send,
        now=lambda: clock.now().timestamp(),
    )
    return planner, sender


def policy_of(settings: Settings) -> NotificationPolicy:
    """Return the notification policy of the settings."""
    notify = settings.notify
    weekly = None if notify is None or notify.weekly == "off" else parse_weekly(notify.weekly)
    targets = [target.name for target in notify.to] if notify else []
    return NotificationPolicy(targets=targets, sender=sender_of(settings), weekly=weekly)


def sender_of(settings: Settings) -> Sender:
    """Return this machine as sender, with the address of its web UI."""
    return Sender(socket.gethostname(), settings.external_url or "")


def pulses_of(view: View, statuses: Sequence[WorkerStatus]) -> list[WorkerActivity]:
    """Return the current activity of each node."""
    activities = []
    for status in statuses:
        cases = {
            key: one for key, one in view.planned.items() if one.definition.node == status.node
        }
        if not cases:
            continue
        good = [view.cases[key].good for key in cases if key in view.cases]
        ends = [run.finished.timestamp() for run in good if run is not None]
        hold = status.hold
        activities.append(
            WorkerActivity(
                node=status.node,
                newest=max(ends, default=None),
                interval=min(case.every_seconds for case in cases.values()),
                waiting=hold is not None and hold.kind is HoldKind.QUIET,
                doing=_doing(status),
            )
        )
    return activities


def _doing(status: WorkerStatus) -> str:
    """Return the state of a worker in words."""
    if status.hold is not None:
        return f"waiting: {without_secrets(status.hold.reason)}"
    if status.fault:
        return f"error: {without_secrets(status.fault)}"
    return str(status.state)
