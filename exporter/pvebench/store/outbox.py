"""Queue of messages: one per receiver, until it is delivered or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from sqlalchemy import ColumnElement, Engine, bindparam, func, insert, select, update

from pvebench.store.changes import KnownChange
from pvebench.store.engine import reading, writing
from pvebench.store.tables import changes, messages

QueueState = Literal["queued", "sent", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notification, with its state in the queue.

    Attributes:
        kind: `changed`, `ended`, `stopped`, `resumed` or `weekly`.
        node: that has stopped or resumed; empty: the service.
        last_run: end of the latest successful run there, Unix seconds; 0: none.
        made, due: Unix seconds; it is not sent before `due`.
        attempts: started attempts.
        reason: why the last attempt failed, or it was dropped.
        done: when it was delivered or dropped, Unix seconds.
    """

    kind: str
    title: str
    body: str
    node: str = ""
    last_run: float = 0.0
    id: int | None = None
    receiver: str = ""
    made: float = 0.0
    due: float = 0.0
    attempts: int = 0
    reason: str = ""
    state: QueueState = "queued"
    done: float | None = None


@dataclass(frozen=True, slots=True)
class ReceiverCounts:
    """Messages for one receiver by state, and its failed attempts.

    Attributes:
        last, given_up: when one was last delivered, and last dropped, Unix seconds; None: never.
    """

    queued: int = 0
    sent: int = 0
    dropped: int = 0
    failures: int = 0
    last: float | None = None
    given_up: float | None = None


class Outbox:
    """Message queue in the database. `Store.outbox` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.faults: dict[str, str] = {}

    def put(self, new: Sequence[Message], notified: Iterable[KnownChange] = ()) -> None:
        """Queue messages, and note the changes they are about; both or none."""
        states = [
            {"of": change.id, "what": change.notified, "at": change.notified_at}
            for change in notified
        ]
        row = update(changes).where(changes.c.id == bindparam("of"))
        row = row.values(notified=bindparam("what"), notified_at=bindparam("at"))
        with writing(self._engine) as connection:
            connection.execute(insert(messages), [asdict(message) for message in new])
            if states:
                connection.execute(row, states)

    def save(self, message: Message) -> None:
        """Store the state of a message; a finished one keeps no text."""
        values = asdict(message if message.state == "queued" else replace(message, body=""))
        with writing(self._engine) as connection:
            connection.execute(update(messages).where(messages.c.id == message.id).values(values))

    def queued(self) -> list[Message]:
        """Return the messages to send, oldest first."""
        return self._read(messages.c.state == "queued")

    def newest(self, *kinds: str) -> dict[str, Message]:
        """Return node -> newest message of these kinds about it."""
        of_kinds = select(func.max(messages.c.id)).where(messages.c.kind.in_(kinds))
        found = self._read(messages.c.id.in_(of_kinds.group_by(messages.c.node)))
        return {message.node: message for message in found}

    def counts(self) -> dict[str, ReceiverCounts]:
        """Return receiver -> its messages by state."""
        count, last = func.count(), func.max(messages.c.done)
        queued, sent, dropped = (
            messages.c.state == state for state in ("queued", "sent", "dropped")
        )
        query = select(
            *(messages.c.receiver, count.filter(queued), count.filter(sent), count.filter(dropped)),
            func.sum(messages.c.attempts) - count.filter(sent),
            *(last.filter(sent), last.filter(dropped)),
        ).group_by(messages.c.receiver)
        with reading(self._engine) as connection:
            return {to: ReceiverCounts(*row) for to, *row in connection.execute(query)}

    def _read(self, condition: ColumnElement[bool]) -> list[Message]:
        query = select(messages).where(condition).order_by(messages.c.id)
        with reading(self._engine) as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            times = ("last_run", "made", "due")
            return [Message(**row | {name: float(row[name]) for name in times}) for row in rows]
