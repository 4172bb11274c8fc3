"""Queue notifications, deliver them and retry failures, in a separate thread."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Self
from zoneinfo import ZoneInfo

from pvebench.config import Settings
from pvebench.config.settings import NotifyTarget
from pvebench.errors import ConfigError, Problem, StoreError
from pvebench.files import read_secret
from pvebench.log import log
from pvebench.model.ports import Clock
from pvebench.model.units import back_off
from pvebench.notify.delivery import Sent, send
from pvebench.notify.planner import NodeActivity, change_messages, stop_messages, week_messages
from pvebench.sanitize import one_line
from pvebench.store.outbox import Message, QueueState, ReceiverCounts
from pvebench.store.store import Store
from pvebench.verdicts.node_verdicts import Verdicts

LOOK_SECONDS: Final = 30.0
FIRST_WAIT_SECONDS: Final = 60.0
MAX_WAIT_SECONDS: Final = 3600.0
"""Longest time between two attempts."""
PERMANENT_FAILURE_ATTEMPTS: Final = 5
"""Rejections after which a message is dropped."""
MAX_ATTEMPTS: Final = 170
"""Attempts after which a message is dropped: about a week."""
MAX_QUEUED: Final = 100
"""Queued messages per receiver. One that is down for weeks gets the newest."""
END_SECONDS: Final = 2.0
FINAL_SECONDS: Final = 20.0
"""How long shutdown waits for the message about it."""
MAX_TITLE: Final = 120


def address_of(target: NotifyTarget) -> str:
    """Return the address of a receiver.

    Raises:
        ConfigError, OSError: it cannot be read; the error does not contain it.
    """
    if target.url is not None:
        return target.url.get_secret_value()
    if target.url_file is not None:
        return read_secret(target.url_file)
    url = os.environ.get(target.url_env or "", "").strip()
    if not url:
        problem = Problem(f"notify target {target.name}", 0, 0, f"{target.url_env} is not set")
        raise ConfigError([problem], next_step="set it for the service or use url_file")
    return url


def text_of(message: Message, settings: Settings) -> tuple[str, str]:
    """Return title and text as receivers see them."""
    link = f"\n{settings.external_url}/" if settings.external_url else ""
    footer = f"pvebench on {one_line(socket.gethostname())}{link}"
    return one_line(f"pvebench: {message.title}", MAX_TITLE), f"{message.body}\n\n{footer}"


class NotificationSender:
    """Delivers notifications about changes, stops and the week.

    Args:
        activities: of all nodes and the service.
        send: (address, title, text) -> result.

    Attributes:
        counts: messages for every receiver in the settings.
    """

    def __init__(
        self,
        store: Store,
        settings: Callable[[], Settings],
        activities: Callable[[], Iterable[NodeActivity]],
        clock: Clock,
        *,
        send: Callable[[str, str, str], Sent] = send,
    ) -> None:
        self._changes, self._outbox = store.changes, store.outbox
        self._settings, self._activities = settings, activities
        self._clock, self._send = clock, send
        self._begun, self._verdicts, self._exit_reason = self._now(), Verdicts(), ""
        self._idle_since: dict[str, tuple[float, float]] = {}
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self.counts: Mapping[str, ReceiverCounts] = {}

    def judged(self, verdicts: Verdicts) -> None:
        """Let the thread queue notifications about new verdicts."""
        self._verdicts = verdicts
        self._woken.set()

    def report_exit(self, reason: str) -> None:
        """Let the thread send a message that the service ends with an error as its last one."""
        self._exit_reason = reason

    def step(self) -> None:
        """Queue what is new, and try the oldest due message of every receiver.

        Raises:
            StoreError: nothing is lost; an attempt that could not be recorded is repeated.
        """
        settings = self._settings()
        notify = settings.notify
        targets = {target.name: target for target in notify.to} if notify else {}
        if notify is not None:
            self._plan(settings, notify.weekly, targets)
        queue, failed = self._outbox.queued(), set[str]()
        newer = Counter(message.receiver for message in queue)
        for message in queue:
            if self._stopped.is_set() and not self._exit_reason:
                break
            receiver = message.receiver
            newer[receiver] -= 1
            if receiver not in targets:
                self._outbox.faults.pop(f"notify {receiver}", None)
                self._note(message, "dropped", "receiver not in the settings")
            elif newer[receiver] >= MAX_QUEUED:
                self._note(message, "dropped", f"more than {MAX_QUEUED} messages queued")
            elif receiver not in failed and not self._deliver(message, targets[receiver], settings):
                failed.add(receiver)  # later ones would fail too, and arrive out of order
        counts = self._outbox.counts()
        self.counts = {name: counts.get(name, ReceiverCounts()) for name in targets}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._woken.set()
        self._thread.join(FINAL_SECONDS if self._exit_reason else END_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._try_step()
            self._woken.wait(LOOK_SECONDS)
            self._woken.clear()
        if self._exit_reason:
            self._try_step()

    def _try_step(self) -> None:
        try:
            self.step()
        except StoreError as error:
            self._outbox.faults["notifications"] = error.reason
            log.warning("notifications delayed: database unavailable", reason=str(error))
        except Exception as error:
            # An internal error must not end delivery for good, nor affect measuring.
            self._outbox.faults["notifications"] = f"internal error: {type(error).__name__}"
            log.exception("notification step failed")
        else:
            self._outbox.faults.pop("notifications", None)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _plan(self, settings: Settings, weekly: str, receivers: Collection[str]) -> None:
        """Queue messages about everything that is new."""
        now, changes = self._now(), self._changes.all()
        new, notified = change_messages(self._verdicts.open_changes, changes, now)
        stops, weeks = self._outbox.newest("stopped", "resumed"), self._outbox.newest("weekly")
        for activity in self._activities():
            idle, before = self._idle(activity), stops.get(activity.node)
            new += stop_messages(activity, before, idle=idle, exit_reason=self._exit_reason)
        last = weeks[""].made if weeks else self._begun
        local = self._clock.now().astimezone(ZoneInfo(settings.time_zone))
        new += week_messages(self._verdicts, changes, weekly=weekly, now=local, last=last)
        if new:
            queue = [
                replace(message, receiver=to, made=now, due=now)
                for message in new
                for to in receivers
            ]
            self._outbox.put(queue, notified)

    def _idle(self, activity: NodeActivity) -> float:
        """Return for how many seconds a node could have measured without a successful run."""
        now, seen = self._clock.monotonic(), self._idle_since.get(activity.node)
        if seen is None or seen[0] != activity.last_run or activity.waiting:
            seen = activity.last_run, now
        self._idle_since[activity.node] = seen
        return now - seen[1]

    def _deliver(self, message: Message, target: NotifyTarget, settings: Settings) -> bool:
        """Try a due message; return whether the next one may be tried."""
        now = self._now()
        if now < message.due <= now + 2 * MAX_WAIT_SECONDS:  # the clock may have been set back
            return False
        attempts = message.attempts + 1
        wait = back_off(attempts, first=FIRST_WAIT_SECONDS, most=MAX_WAIT_SECONDS)
        message = replace(message, attempts=attempts, due=now + wait)
        # First: if its end cannot be stored, the message is repeated, but only after the wait.
        self._outbox.save(message)
        sent, fault = self._attempt(message, target, settings), f"notify {target.name}"
        limit = PERMANENT_FAILURE_ATTEMPTS if sent.permanent else MAX_ATTEMPTS
        if sent.reason:
            self._outbox.faults[fault] = sent.reason
            self._note(message, "dropped" if message.attempts >= limit else "queued", sent.reason)
        else:
            self._outbox.faults.pop(fault, None)
            self._note(message, "sent")
        return not sent.reason or message.attempts >= limit

    def _attempt(self, message: Message, target: NotifyTarget, settings: Settings) -> Sent:
        try:
            address = address_of(target)
        except (ConfigError, OSError) as error:
            return Sent(reason=f"reading the address failed: {error}")
        return self._send(address, *text_of(message, settings))

    def _note(self, message: Message, state: QueueState, reason: str = "") -> None:
        """Store and log the state of a message; `reason`: why it is not sent."""
        done = None if state == "queued" else self._now()
        self._outbox.save(replace(message, state=state, reason=reason, done=done))
        fields = {"target": message.receiver, "kind": message.kind, "attempts": message.attempts}
        if reason:
            log.warning("notification failed", **fields, state=state, reason=reason)
        else:
            log.info("notification sent", **fields)
