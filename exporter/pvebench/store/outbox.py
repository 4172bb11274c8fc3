"""Queue of messages: each once per receiver, until it is delivered or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, Engine, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.store.changes import KnownChange, note_notified
from pvebench.store.engine import reading, writing
from pvebench.store.tables import messages

State = Literal["queued", "sent", "dropped"]
MAX_QUEUED: Final = 100
"""Queued messages per receiver. One that is down for weeks gets the newest."""
MAX_WAIT_SECONDS: Final = 3600.0
"""Longest time between two attempts."""
KEPT_SECONDS: Final = 400 * 86400.0
"""How long finished messages are kept: until then none is queued again."""
_ENDS: Final = {"sent": "last", "dropped": "given_up"}
"""State -> field of `ReceiverCounts` with the newest time of that state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notification about one event.

    Attributes:
        about: ID of the event; no receiver gets two messages about it.
        kind: `changed`, `ended`, `stopped`, `going` or `weekly`.
    """

    about: str
    kind: str
    title: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message for one receiver.

    Attributes:
        made, due: UNIX seconds; it is not sent before `due`.
        attempts: started attempts.
        doubtful: an attempt was interrupted, so the message may have been delivered.
        reason: why the last attempt failed.
    """

    number: int
    receiver: str
    message: Message
    made: float
    due: float
    attempts: int
    doubtful: bool
    reason: str

    def is_due(self, now: float) -> bool:
        """Return whether it may be sent at `now`; a clock that was set back delays nothing."""
        return not now < self.due <= now + 2 * MAX_WAIT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverCounts:
    """Messages for one receiver by state.

    Attributes:
        last, given_up: when one was last delivered, and last dropped, UNIX seconds; None: never.
    """

    queued: int = 0
    sent: int = 0
    dropped: int = 0
    last: float | None = None
    given_up: float | None = None


class Outbox:
    """Message queue in the database. `Store.outbox` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.faults: dict[str, str] = {}

    def put(
        self,
        new: Sequence[Message],
        receivers: Sequence[str],
        *,
        now: float,
        notified: Iterable[KnownChange] = (),
    ) -> None:
        """Queue messages for every receiver, and note the changes they are about; both or nothing.

        A message that is or was queued is not queued again.
        """
        with writing(self._engine) as connection:
            for message in new:
                for receiver in receivers:
                    row = upsert(messages).values(**_row(message, receiver, now))
                    connection.execute(row.on_conflict_do_nothing())
            for receiver in receivers:
                _drop_beyond(connection, receiver, now)
            old = messages.c.done < now - KEPT_SECONDS
            connection.execute(delete(messages).where(old))
            note_notified(connection, notified)

    def queued(self) -> list[QueuedMessage]:
        """Return the messages to send, oldest first."""
        query = select(messages).where(messages.c.state == "queued").order_by(messages.c.id)
        with reading(self._engine) as connection:
            return [_queued(row) for row in connection.execute(query).all()]

    def begin(self, number: int, now: float) -> bool:
        """Note the start of an attempt; False: the message is no longer queued."""
        row = (
            update(messages)
            .where(messages.c.id == number, messages.c.state == "queued")
            .values(begun=now, attempts=messages.c.attempts + 1)
        )
        with writing(self._engine) as connection:
            return connection.execute(row).rowcount == 1

    def arrived(self, number: int, now: float) -> None:
        """Note that a message was delivered."""
        self._set(number, state="sent", done=now, begun=None, reason="")

    def failed(self, number: int, *, due: float, reason: str, doubtful: bool) -> None:
        """Note a failed attempt, and when to retry."""
        values: dict[str, Any] = {"due": due, "reason": reason}
        if not doubtful:
            values["begun"] = None
        self._set(number, **values)

    def drop(self, number: int, now: float, reason: str) -> None:
        """Drop a message."""
        self._set(number, state="dropped", done=now, reason=reason)

    def counts(self) -> dict[str, ReceiverCounts]:
        """Return receiver -> its messages by state."""
        query = select(
            messages.c.receiver, messages.c.state, func.count(), func.max(messages.c.done)
        ).group_by(messages.c.receiver, messages.c.state)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        by_receiver: dict[str, dict[str, Any]] = {}
        for receiver, state, count, last in rows:
            values = by_receiver.setdefault(receiver, {})
            values[state] = int(count)
            if state in _ENDS:
                values[_ENDS[state]] = last
        return {receiver: ReceiverCounts(**values) for receiver, values in by_receiver.items()}

    def newest(self, *kinds: str, about: str = "") -> str | None:
        """Return the event ID of the newest message of these kinds, or None.

        Args:
            about: start of the ID.
        """
        query = (
            select(messages.c.about)
            .where(messages.c.kind.in_(kinds), messages.c.about.startswith(about, autoescape=True))
            .order_by(messages.c.id.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            return connection.scalar(query)

    def _set(self, number: int, **values: Any) -> None:
        with writing(self._engine) as connection:
            connection.execute(update(messages).where(messages.c.id == number).values(**values))


def _drop_beyond(connection: Connection, receiver: str, now: float) -> None:
    """Drop the oldest queued messages beyond MAX_QUEUED."""
    of_receiver = (messages.c.receiver == receiver, messages.c.state == "queued")
    kept = (
        select(messages.c.id).where(*of_receiver).order_by(messages.c.id.desc()).limit(MAX_QUEUED)
    )
    beyond = update(messages).where(*of_receiver, messages.c.id.not_in(kept))
    reason = f"more than {MAX_QUEUED} messages queued"
    connection.execute(beyond.values(state="dropped", done=now, reason=reason))


def _row(message: Message, receiver: str, now: float) -> dict[str, Any]:
    return {
        "about": message.about,
        "receiver": receiver,
        "kind": message.kind,
        "title": message.title,
        "body": message.body,
        "made": now,
        "due": now,
        "attempts": 0,
        "reason": "",
        "state": "queued",
    }


def _queued(row: Any) -> QueuedMessage:
    message = Message(about=row.about, kind=row.kind, title=row.title, body=row.body)
    return QueuedMessage(
        number=int(row.id),
        receiver=row.receiver,
        message=message,
        made=float(row.made),
        due=float(row.due),
        attempts=int(row.attempts),
        doubtful=row.begun is not None,
        reason=row.reason,
    )
