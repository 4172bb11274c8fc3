"""Messages on their way to people: each once for every target, until it arrived or is too old."""

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
MOST_QUEUED: Final = 100
"""For one target. A target that takes nothing for weeks gets the newest."""
MOST_WAIT_SECONDS: Final = 3600.0
"""Between two attempts."""
KEPT_SECONDS: Final = 400 * 86400.0
"""How long is known what was told."""
_ENDS: Final = {"sent": "last", "dropped": "given_up"}
"""State -> what `TargetCounts` calls the newest moment of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is to be told.

    Attributes:
        about: what it is of; never told twice.
        kind: `changed`, `ended`, `stopped`, `going` or `weekly`.
    """

    about: str
    kind: str
    title: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMessage:
    """A message for one target.

    Attributes:
        made, due: UNIX seconds; it is not sent before `due`.
        attempts: that have begun.
        doubtful: an attempt was cut off, so it may have arrived.
        reason: why the last attempt was in vain.
    """

    number: int
    target: str
    message: Message
    made: float
    due: float
    attempts: int
    doubtful: bool
    reason: str

    def is_due(self, now: float) -> bool:
        """Tell whether it may be sent; a clock that was set lets nothing wait."""
        return not now < self.due <= now + 2 * MOST_WAIT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCounts:
    """What became of the messages for one target.

    Attributes:
        last, given_up: when one last arrived, and when one was last given up; None: never.
    """

    queued: int = 0
    sent: int = 0
    dropped: int = 0
    last: float | None = None
    given_up: float | None = None


class Outbox:
    """Keeps messages. `Store.outbox` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(
        self,
        found: Sequence[Message],
        targets: Sequence[str],
        *,
        now: float,
        told: Iterable[KnownChange] = (),
    ) -> None:
        """Queue messages for every target, and note what is told by them; both or nothing.

        What is or was queued already is not queued again.
        """
        with writing(self._engine) as connection:
            for message in found:
                for target in targets:
                    row = upsert(messages).values(**_row(message, target, now))
                    connection.execute(row.on_conflict_do_nothing())
            for target in targets:
                _drop_beyond(connection, target, now)
            old = messages.c.done < now - KEPT_SECONDS
            connection.execute(delete(messages).where(old))
            note_notified(connection, told)

    def queued(self) -> list[QueuedMessage]:
        """Return what is to be sent, the oldest first."""
        query = select(messages).where(messages.c.state == "queued").order_by(messages.c.id)
        with reading(self._engine) as connection:
            return [_queued(row) for row in connection.execute(query).all()]

    def begin(self, number: int, now: float) -> bool:
        """Note that an attempt begins; False: there is nothing to send any more."""
        row = (
            update(messages)
            .where(messages.c.id == number, messages.c.state == "queued")
            .values(begun=now, attempts=messages.c.attempts + 1)
        )
        with writing(self._engine) as connection:
            return connection.execute(row).rowcount == 1

    def arrived(self, number: int, now: float) -> None:
        """Note that a message was taken."""
        self._set(number, state="sent", done=now, begun=None, reason="")

    def failed(self, number: int, *, due: float, reason: str, doubtful: bool) -> None:
        """Note that an attempt was in vain, and when to try again."""
        values: dict[str, Any] = {"due": due, "reason": reason}
        if not doubtful:
            values["begun"] = None
        self._set(number, **values)

    def drop(self, number: int, now: float, reason: str) -> None:
        """Give a message up."""
        self._set(number, state="dropped", done=now, reason=reason)

    def counts(self) -> dict[str, TargetCounts]:
        """Return target -> what became of its messages."""
        query = select(
            messages.c.receiver, messages.c.state, func.count(), func.max(messages.c.done)
        ).group_by(messages.c.receiver, messages.c.state)
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        found: dict[str, dict[str, Any]] = {}
        for target, state, count, last in rows:
            of_target = found.setdefault(target, {})
            of_target[state] = int(count)
            if state in _ENDS:
                of_target[_ENDS[state]] = last
        return {target: TargetCounts(**values) for target, values in found.items()}

    def newest(self, *kinds: str, about: str = "") -> str | None:
        """Return what the newest message of these kinds is about, or None.

        Args:
            about: how that begins.
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


def _drop_beyond(connection: Connection, target: str, now: float) -> None:
    """Give up the oldest messages beyond those that may wait."""
    of_target = (messages.c.receiver == target, messages.c.state == "queued")
    kept = select(messages.c.id).where(*of_target).order_by(messages.c.id.desc()).limit(MOST_QUEUED)
    beyond = update(messages).where(*of_target, messages.c.id.not_in(kept))
    reason = f"more than {MOST_QUEUED} messages wait"
    connection.execute(beyond.values(state="dropped", done=now, reason=reason))


def _row(message: Message, target: str, now: float) -> dict[str, Any]:
    return {
        "about": message.about,
        "receiver": target,
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
        target=row.receiver,
        message=message,
        made=float(row.made),
        due=float(row.due),
        attempts=int(row.attempts),
        doubtful=row.begun is not None,
        reason=row.reason,
    )
