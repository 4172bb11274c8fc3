"""Deliver queued notifications and retry failures, in a separate thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Self

from pvebench.config import Settings
from pvebench.config.settings import NotifyTarget
from pvebench.errors import ConfigError, Problem, StoreError
from pvebench.files import read_secret
from pvebench.log import log
from pvebench.metrics.live import TargetState
from pvebench.notify.delivery import Sent
from pvebench.notify.planner import NotificationPlanner
from pvebench.store import Outbox, QueuedMessage
from pvebench.store.outbox import MAX_WAIT_SECONDS

# --- Addresses of receivers: from a file, the environment, or the settings.

Address = Callable[[], str]
"""Read an address at each call. Raises ConfigError, OSError."""


def addresses_of(settings: Settings) -> dict[str, Address]:
    """Return receiver -> function that reads its address."""
    targets = settings.notify.to if settings.notify else ()
    return {target.name: partial(address_of, target) for target in targets}


def address_of(target: NotifyTarget) -> str:
    """Return the address of a receiver.

    Raises:
        ConfigError, OSError: it cannot be read; the error does not contain it.
    """
    if target.url is not None:
        return target.url.get_secret_value()
    if target.url_file is not None:
        return read_secret(target.url_file)
    name = target.url_env or ""
    url = os.environ.get(name, "").strip()
    if not url:
        problem = Problem(f"notify target {target.name}", 0, 0, f"{name} is not set")
        raise ConfigError([problem], next_step="set it for the service or use url_file")
    return url


# --- Delivery.


LOOK_SECONDS: Final = 30.0
FIRST_WAIT_SECONDS: Final = 60.0
PERMANENT_FAILURE_ATTEMPTS: Final = 5
"""Rejections after which a message is dropped."""
MAX_ATTEMPTS: Final = 170
"""Attempts after which a message is dropped: about a week."""
END_SECONDS: Final = 2.0
FINAL_SECONDS: Final = 20.0
"""How long shutdown waits for the message about it."""

Send = Callable[[str, str, str], Sent]
"""(address, title, text) -> result."""


class NotificationSender:
    """Deliver notifications, and let the planner check what depends on time.

    Args:
        planner: plans notifications.
        addresses: of the receivers in the current settings.
        now: Unix seconds.
        rest: waits so many seconds, or until it is woken; None: until `wake`.
    """

    def __init__(
        self,
        planner: NotificationPlanner,
        outbox: Outbox,
        addresses: Callable[[], Mapping[str, Address]],
        send: Send,
        *,
        now: Callable[[], float],
        rest: Callable[[float], object] | None = None,
    ) -> None:
        self._planner, self._outbox = planner, outbox
        self._addresses, self._send, self._now = addresses, send, now
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._rest = rest or self._woken.wait
        self._final = False
        self._failures: dict[str, int] = {}
        self._states: tuple[TargetState, ...] = ()
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)

    @property
    def states(self) -> tuple[TargetState, ...]:
        """Delivery counts of every receiver."""
        return self._states

    def wake(self) -> None:
        """Wake the thread: there may be new messages."""
        self._woken.set()

    def report_exit(self, why: str) -> None:
        """Queue and send a message that the service ends with an error, within a time limit."""
        try:
            self._planner.report_exit(why)
            self._final = True
        except StoreError as error:
            log.warning("queueing the exit notification failed", reason=str(error))

    def step(self) -> None:
        """Check what depends on time, and try the oldest due message of every receiver.

        Raises:
            StoreError: nothing is lost; an attempt that could not be recorded is repeated.
        """
        self._planner.plan()
        targets = self._addresses()
        waiting: set[str] = set()
        for entry in self._outbox.queued():
            if self._stopped.is_set() and not self._final:
                break
            if entry.receiver not in targets:
                self._outbox.drop(entry.number, self._now(), "receiver not in the settings")
                self._outbox.faults.pop(f"notify {entry.receiver}", None)
            elif entry.receiver not in waiting and not self._deliver(
                entry, targets[entry.receiver]
            ):
                # Later ones wait: they would fail too, and arrive out of order.
                waiting.add(entry.receiver)
        counts = self._outbox.counts()
        self._states = tuple(
            TargetState(target=name, failures=self._failures.get(name, 0), counts=counts.get(name))
            for name in targets
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._woken.set()
        # An interrupted attempt is recorded as one that may have arrived.
        self._thread.join(FINAL_SECONDS if self._final else END_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.clear()
            self._try_step()
            if not self._stopped.is_set():
                self._rest(LOOK_SECONDS)
        if self._final:
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

    def _deliver(self, entry: QueuedMessage, address: Address) -> bool:
        """Try a due message; return whether the next one may be tried."""
        if not entry.is_due(self._now()):
            return False
        if not self._outbox.begin(entry.number, self._now()):
            return True
        sent = self._sent(entry, address)
        if sent.reason:
            return self._failed(entry, sent)
        self._outbox.arrived(entry.number, self._now())
        self._outbox.faults.pop(f"notify {entry.receiver}", None)
        log.info("notification sent", target=entry.receiver, about=entry.message.about)
        return True

    def _failed(self, entry: QueuedMessage, sent: Sent) -> bool:
        """Record a failed attempt; return whether the message was dropped."""
        attempts = entry.attempts + 1
        self._outbox.faults[f"notify {entry.receiver}"] = sent.reason
        self._failures[entry.receiver] = self._failures.get(entry.receiver, 0) + 1
        dropped = attempts >= (PERMANENT_FAILURE_ATTEMPTS if sent.permanent else MAX_ATTEMPTS)
        log.warning(
            "notification failed",
            target=entry.receiver,
            about=entry.message.about,
            attempts=attempts,
            reason=sent.reason,
            next_step="none: it is dropped"
            if dropped
            else "pvebench retries; run pvebench notify --test",
        )
        if dropped:
            self._outbox.drop(entry.number, self._now(), sent.reason)
            return True
        wait = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(attempts - 1, 10))
        due, doubtful = self._now() + wait, sent.doubtful
        self._outbox.failed(entry.number, due=due, reason=sent.reason, doubtful=doubtful)
        return False

    def _sent(self, entry: QueuedMessage, address: Address) -> Sent:
        text = entry.message.body
        if entry.doubtful:
            text = f"(Possible duplicate: an earlier attempt was interrupted.)\n\n{text}"
        try:
            where = address()
        except (ConfigError, OSError) as error:
            return Sent(reason=f"reading the address failed: {error}")
        return self._send(where, entry.message.title, text)
