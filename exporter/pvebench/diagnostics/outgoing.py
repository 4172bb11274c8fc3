"""Observations, and those about the notifications of an instance.

Nothing is sent to find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pvebench.config import Settings
from pvebench.config.settings import NotifyTarget
from pvebench.errors import ConfigError
from pvebench.files import is_open
from pvebench.model.units import count_text, show_time
from pvebench.notify.delivery import send
from pvebench.notify.sender import address_of
from pvebench.store.outbox import Message, ReceiverCounts
from pvebench.store.state_directory import stored_at, summarize_store


class Severity(StrEnum):
    """Severity of an observation, the most urgent first."""

    CRITICAL = "critical"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation; `text` includes the action, if one is known."""

    about: str
    severity: Severity
    text: str


# --- Notifications, without sending one.

_TRY = "test it with `pvebench notify --test`"


def check_notifications(settings: Settings, *, seconds: float) -> Iterator[Observation]:
    """Yield observations about each receiver of `notify`: its address and its queue.

    Args:
        seconds: limit for the check of one address.

    Raises StoreError: the queue cannot be read.
    """
    receivers = settings.notify.to if settings.notify else ()
    for receiver in receivers:
        problem = _address_problem(receiver, seconds)
        if problem is not None:
            yield Observation(f"notify {receiver.name}", *problem)
    path = settings.database
    summary = summarize_store(path, most_bytes=0)
    if summary is not None and not summary.current:
        text = "queue not checked: the database has the schema of another version"
        yield Observation("notifications", Severity.UNKNOWN, text)
        return
    with stored_at(path) as stored:
        counts, queued = (stored.outbox.counts(), stored.outbox.queued()) if stored else ({}, [])
    for receiver in receivers:
        waiting = [entry for entry in queued if entry.receiver == receiver.name]
        sent = counts.get(receiver.name, ReceiverCounts())
        state = _queue_state(waiting) if waiting else _sent_state(sent)
        yield Observation(f"notify {receiver.name}", *state)


def _address_problem(receiver: NotifyTarget, seconds: float) -> tuple[Severity, str] | None:
    """Return the problem of an address; None: none is visible."""
    try:
        address = address_of(receiver)
    except ConfigError as error:
        # The environment is this command's own, not the service's.
        severity = Severity.UNKNOWN if receiver.url_env else Severity.CRITICAL
        return severity, str(error)
    except OSError as error:
        return Severity.CRITICAL, f"{receiver.url_file} cannot be read: {error.strerror}"
    checked = send(address, seconds=seconds)
    if checked.reason:
        return Severity.CRITICAL if checked.permanent else Severity.UNKNOWN, checked.reason
    if receiver.url_file is not None and is_open(receiver.url_file):
        text = f"the address file is world-readable; run `chmod o= {receiver.url_file}`"
        return Severity.CRITICAL, text
    return None


def _queue_state(waiting: Sequence[Message]) -> tuple[Severity, str]:
    oldest = waiting[0]
    text = f"{count_text(len(waiting), 'notification')} queued, oldest {show_time(oldest.made)}, "
    if not oldest.attempts:
        return Severity.WARNING, f"{text}not tried yet; a running `pvebench serve` sends them"
    reason = oldest.reason or "last attempt interrupted"
    attempts = count_text(oldest.attempts, "attempt")
    return Severity.CRITICAL, f"{text}after {attempts}: {reason}; {_TRY}"


def _sent_state(counts: ReceiverCounts) -> tuple[Severity, str]:
    if counts.given_up is not None and counts.given_up > (counts.last or 0.0):
        text = f"latest notification dropped, {show_time(counts.given_up)}; {_TRY}"
        return Severity.CRITICAL, text
    if counts.last is None:
        return Severity.OK, f"no notification yet; {_TRY}"
    return Severity.OK, f"{counts.sent} sent, last {show_time(counts.last)}"
