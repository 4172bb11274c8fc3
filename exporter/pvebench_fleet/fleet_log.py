"""A site's log for the hub of its fleet: what to send, in order, and what the hub has.

Triggers (`tables.FLEET_TRIGGERS`) add a line in the transaction that stores a run, corrects it, or
stores what it refers to. Lines have numbers, but a number alone does not identify a line: after the
restore of a backup SQLite assigns the same numbers again. The chain does: it is a hash over all
lines up to one, each with a random nonce, so that two histories differ from their first different
line on.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Engine, Row, func, insert, select, text, update

from pvebench.log import log
from pvebench.model.units import DAY
from pvebench.store.engine import reading, writing
from pvebench.store.records import with_samples
from pvebench.store.tables import (
    cases,
    cycles,
    decisions,
    environments,
    fleet_log,
    fleet_marks,
    fleet_position,
    runs,
)
from pvebench_fleet import FleetMessageInvalid
from pvebench_fleet.wire import Skip, shape_of

NOT_CONNECTED: Final = "not connected"
"""State before the first exchange."""
CONNECTED: Final = "connected"
SOUND: Final = {CONNECTED, NOT_CONNECTED}
"""States that need no action."""
IDLE_SECONDS: Final = 600.0
"""Interval of questions without new lines: a hub that was restored from a backup is noticed."""
KEPT_SECONDS: Final = 90 * DAY
"""Minimum age of acknowledged lines before removal: longer than the backups of a hub are kept."""
MARK_EVERY: Final = 256
"""Minimum lines between two stored chain values."""
FARTHEST: Final = 10_000
"""Maximum lines between a stored chain value and a line that the hub has: MARK_EVERY and a push or
two. A line farther on is none of its places, and not worth to hash all lines up to it."""
READ_BATCH: Final = 500
_REFERENCES: Final = ("environment", "cycle", "definition", "run")
"""Kinds in the order in which lines refer to each other."""
FIRST: Final = 0, ""
"""LogPosition before the first line of every log."""
LogPosition = tuple[int, str]
"""Number of a line, and chain up to and including it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log with its current content.

    Attributes:
        data: newest fields of its kind as plain data; None: a later line of the same batch has
            them, or they were removed.
    """

    seq: int
    kind: str
    data: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class FleetState:
    """State of a site's connection to its hub.

    Attributes:
        acked: newest acknowledged line.
        newest: newest line.
        contact: time of the last answer of the hub, UNIX seconds; None: never.
        state: of the connection, as words.
        process: identity of the sending process at the hub; empty: none has started.
    """

    acked: int
    newest: int
    contact: float | None
    state: str
    process: str


class FleetLog:
    """The log in a site's database; every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def begin(self) -> None:
        """Start the log with everything that is stored, unless it has started."""
        with writing(self._engine) as connection:
            if _position(connection) is None:
                _start(connection)

    def end(self) -> None:
        """Remove the log: the site leaves its fleet. Without a log, nothing is written."""
        if self.state() is not None:
            with writing(self._engine) as connection:
                _clear(connection)

    def renew(self) -> None:
        """Start over with everything that is stored, so that all of it is sent again."""
        with writing(self._engine) as connection:
            _clear(connection)
            _start(connection)

    def state(self) -> FleetState | None:
        """Return the state of the connection; None: the site has no log."""
        with reading(self._engine) as connection:
            row = connection.execute(select(fleet_position)).first()
            if row is None:
                return None
            newest = connection.scalar(select(func.max(fleet_log.c.seq)))
            return FleetState(row.seq, int(newest or row.seq), row.contact, row.state, row.process)

    def note(self, *, state: str, process: str, contact: float | None = None) -> None:
        """Store the state of the connection; `contact` only after an answer of the hub."""
        values: dict[str, Any] = {"state": state, "process": process}
        values |= {} if contact is None else {"contact": contact}
        with writing(self._engine) as connection:
            connection.execute(update(fleet_position).values(values))

    def position(self) -> LogPosition:
        """Return the newest acknowledged place."""
        with reading(self._engine) as connection:
            return _position(connection) or FIRST

    def chain_at(self, seq: int) -> str | None:
        """Return the chain at a line; None: the log has no such line, or no longer."""
        with reading(self._engine) as connection:
            return _chain_at(connection, seq)

    def advance(self, place: LogPosition, now: float) -> None:
        """Record that the hub has acknowledged everything up to a place of this log."""
        with writing(self._engine) as connection:
            connection.execute(update(fleet_position).values(seq=place[0], chain=place[1]))
            last = connection.scalar(select(func.max(fleet_marks.c.seq)))
            if place[0] >= int(last or 0) + MARK_EVERY:
                connection.execute(insert(fleet_marks).values(seq=place[0], chain=place[1], at=now))
            _expire(connection, now - KEPT_SECONDS)

    def stored(self) -> Iterator[Entry]:
        """Yield all stored runs as lines, in the order of their numbers, log or not.

        What a run refers to comes before its first use.
        """
        names = (runs.c.id, runs.c.environment, runs.c.cycle, runs.c.case_key, runs.c.uid)
        query = select(*names).order_by(runs.c.id).limit(READ_BATCH)
        known, number, seq = set[tuple[str, str]](), 0, itertools.count(1)
        while True:
            with reading(self._engine) as connection:
                rows = connection.execute(query.where(runs.c.id > number)).all()
                for at, kind in enumerate(_REFERENCES, 1):
                    keys = [*dict.fromkeys(row[at] for row in rows if (kind, row[at]) not in known)]
                    known |= {(kind, key) for key in keys if kind != "run"}
                    content = _CONTENT[kind](connection, keys)
                    for key in keys:
                        yield Entry(next(seq), kind, content[key])
            if not rows:
                return
            number = rows[-1].id

    def batch(self, most: int) -> tuple[list[Entry], LogPosition, LogPosition]:
        """Return the first lines after the acknowledged ones, and the places before and after."""
        with reading(self._engine) as connection:
            before = _position(connection) or FIRST
            query = select(fleet_log).where(fleet_log.c.seq > before[0])
            lines = connection.execute(query.order_by(fleet_log.c.seq).limit(most)).all()
            entries = [*_entries(connection, lines)]
            return entries, before, (lines[-1].seq if lines else before[0], fold(before[1], lines))


def fold(chain: str, lines: Sequence[Any]) -> str:
    """Return the chain after more lines."""
    for line in lines:
        parts = (chain, line.kind, line.key, str(line.revision), line.nonce.hex())
        chain = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return chain


def _position(connection: Connection) -> LogPosition | None:
    row = connection.execute(select(fleet_position.c.seq, fleet_position.c.chain)).first()
    return None if row is None else (row.seq, row.chain)


def _chain_at(connection: Connection, seq: int) -> str | None:
    query = select(fleet_marks.c.seq, fleet_marks.c.chain).where(fleet_marks.c.seq <= seq)
    mark = connection.execute(query.order_by(fleet_marks.c.seq.desc()).limit(1)).first()
    if mark is None or seq - mark.seq > FARTHEST:
        return None
    between = select(fleet_log).where(fleet_log.c.seq > mark.seq, fleet_log.c.seq <= seq)
    lines = connection.execute(between.order_by(fleet_log.c.seq)).all()
    exists = lines[-1].seq == seq if lines else mark.seq == seq
    return fold(mark.chain, lines) if exists else None


def _expire(connection: Connection, before: float) -> None:
    """Remove lines up to the newest mark from before a moment; it becomes the first place."""
    query = select(func.max(fleet_marks.c.seq)).where(fleet_marks.c.at < before)
    newest = int(connection.scalar(query) or 0)
    if newest:
        connection.execute(fleet_log.delete().where(fleet_log.c.seq <= newest))
        connection.execute(fleet_marks.delete().where(fleet_marks.c.seq < newest))


def _clear(connection: Connection) -> None:
    for table in (fleet_position, fleet_marks, fleet_log):
        connection.execute(table.delete())
    connection.execute(text("DELETE FROM sqlite_sequence WHERE name = 'fleet_log'"))


_STORED: Final = (
    "SELECT 'environment', digest, 0 FROM environments ORDER BY first_seen",
    "SELECT 'cycle', uid, 0 FROM cycles ORDER BY started",
    "SELECT 'definition', key, 0 FROM cases ORDER BY first_started",
    "SELECT 'decision', id, 0 FROM decisions ORDER BY id",
    "SELECT 'run', uid, revision FROM runs ORDER BY id",
)


def _start(connection: Connection) -> None:
    for query in _STORED:
        connection.execute(
            text(f"INSERT INTO fleet_log (kind, key, revision) {query}")
        )  # constants
    connection.execute(insert(fleet_marks).values(seq=0, chain="", at=0.0))
    connection.execute(
        insert(fleet_position).values(id=1, seq=0, chain="", state=NOT_CONNECTED, process="")
    )


# --- Content of lines.


def _entries(connection: Connection, lines: Sequence[Row[Any]]) -> Iterator[Entry]:
    keys: dict[str, list[str]] = {}
    for line in lines:
        keys.setdefault(line.kind, []).append(line.key)
    known = {kind: _CONTENT[kind](connection, of_kind) for kind, of_kind in keys.items()}
    # Not if only a later batch has it: a restored backup may end before that line.
    last = {(line.kind, line.key): line.seq for line in lines}
    for line in lines:
        is_last = last[line.kind, line.key] == line.seq
        data = known[line.kind].get(line.key) if is_last else None
        yield Entry(line.seq, line.kind, data)


Content = dict[str, dict[str, Any]]
"""Key -> fields."""


def _rows(
    connection: Connection, key: Column[Any], keys: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows with these keys; no batch has as many as SQLite's limit of variables."""
    for row in connection.execute(select(key.table).where(key.in_(keys))).mappings():
        yield dict(row)


def _environments(connection: Connection, keys: Sequence[str]) -> Content:
    names = ("digest", "node", "slug")
    return {
        row["digest"]: {**{name: row[name] for name in names}, "facts": json.loads(row["facts"])}
        for row in _rows(connection, environments.c.digest, keys)
    }


def _cycles(connection: Connection, keys: Sequence[str]) -> Content:
    return {row["uid"]: row for row in _rows(connection, cycles.c.uid, keys)}


def _definitions(connection: Connection, keys: Sequence[str]) -> Content:
    return {
        row["key"]: {
            "key": row["key"],
            "definition": json.loads(row["definition"]),
            "first_started": row["first_started"],
        }
        for row in _rows(connection, cases.c.key, keys)
    }


def _decisions(connection: Connection, keys: Sequence[str]) -> Content:
    # `kind` is the kind of the line.
    names = {"id": "number", "kind": "decision"}
    return {
        str(row["id"]): {names.get(name, name): value for name, value in row.items()}
        for row in _rows(connection, decisions.c.id, [*map(int, keys)])
    }


def _runs(connection: Connection, keys: Sequence[str]) -> Content:
    revisions = {row["uid"]: row["revision"] for row in _rows(connection, runs.c.uid, keys)}
    return {
        run.uid: {
            "uid": run.uid,
            "revision": revisions[run.uid],
            "number": run.number,
            "case": run.case_key,
            "cycle": run.cycle,
            "environment": run.environment,
            "started": run.started.timestamp(),
            "finished": run.finished.timestamp(),
            "outcome": str(run.outcome),
            "reason": run.reason,
            "pass": run.pass_number,
            "samples": run.samples,
        }
        for run in with_samples(connection, select(runs).where(runs.c.uid.in_(keys)))
    }


_CONTENT: Final = {
    "environment": _environments,
    "cycle": _cycles,
    "definition": _definitions,
    "decision": _decisions,
    "run": _runs,
}


# --- Lines as the hub and files have them.

MAX_LINE_BYTES: Final = 1024 * 1024


def lines_of(entry: Entry, known: set[str]) -> list[bytes]:
    """Return an entry as lines; the shape of a run comes before its first use.

    Args:
        known: shapes that were used before; changed.
    """
    if entry.data is None:
        return [_skip(entry)]
    data, lines = dict(entry.data), []
    if entry.kind == "run":
        samples = data.pop("samples")
        try:
            shape = shape_of(samples)
        except FleetMessageInvalid as error:
            log.warning("result unfit for others", kind=entry.kind, reason=error.reason)
            return [_skip(entry)]
        if shape.shape not in known:
            known.add(shape.shape)
            lines.append(shape.model_dump_json().encode())
        data |= {"shape": shape.shape, "values": [sample.value for sample in samples]}
    fields = {**data, "kind": entry.kind, "seq": entry.seq}
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) > MAX_LINE_BYTES:
        log.warning("result too large for the hub", kind=entry.kind, bytes=len(text))
        text = _skip(entry)
    return [*lines, text]


def _skip(entry: Entry) -> bytes:
    return Skip(seq=entry.seq).model_dump_json().encode()
