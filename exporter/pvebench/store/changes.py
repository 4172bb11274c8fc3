"""Decisions about baselines, and known changes with their notification state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from sqlalchemy import Connection, Engine, bindparam, delete, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from pvebench.store.engine import reading, writing
from pvebench.store.tables import changes, decisions

# --- Decisions about baselines.

DecisionKind = Literal["accept", "reset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A user's decision about baselines.

    Attributes:
        made: time of the decision.
        kind: `accept`: changes until then are accepted, the current level is the baseline;
            `reset`: runs until then no longer count.
        cases: glob over scenario, workload or `scenario/workload`.
        until: end of the newest run that it concerns.
        reason: the user's own words.
    """

    made: datetime
    kind: DecisionKind
    cases: str
    until: datetime
    reason: str

    def concerns(self, scenario: str, workload: str) -> bool:
        """Return whether the decision concerns a case."""
        names = (scenario, workload, f"{scenario}/{workload}")
        return any(fnmatchcase(name, self.cases) for name in names)


class Decisions:
    """Stores decisions. `Store.decisions` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, decision: Decision) -> None:
        """Store a decision; durable on return."""
        row = insert(decisions).values(
            made=decision.made.timestamp(),
            kind=decision.kind,
            cases=decision.cases,
            until=decision.until.timestamp(),
            reason=decision.reason,
        )
        with writing(self._engine) as connection:
            connection.execute(row)

    def all(self) -> list[Decision]:
        """Return all decisions, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(decisions).order_by(decisions.c.id)).all()
            return [
                Decision(
                    made=datetime.fromtimestamp(row.made, UTC),
                    kind=row.kind,
                    cases=row.cases,
                    until=datetime.fromtimestamp(row.until, UTC),
                    reason=row.reason,
                )
                for row in rows
            ]

    def count(self) -> int:
        """Return the number of decisions, which grows with every decision."""
        with reading(self._engine) as connection:
            return int(connection.scalar(select(func.count()).select_from(decisions)) or 0)


Ending = Literal["", "resolved", "accepted", "unconfirmed"]
Notified = Literal["", "open", "ended"]
_PART: Final = 500
"""Rows per statement: SQLite limits the number of variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChange:
    """A change as reported last, to recognize it later.

    Attributes:
        since: when it began, UNIX seconds.
        worse: whether its first metric changed for the worse.
        gradual: whether it began slowly.
        cases: keys.
        text: its sentence.
        missing: since when it is no longer reported, UNIX seconds of the judged runs; None: it is.
        ended: when that was considered its end, UNIX seconds; None: it is open.
        ending: `resolved`; `accepted`; `unconfirmed`: no longer confirmed.
        notified: the newest notification about it.
    """

    id: str
    since: float
    worse: bool
    gradual: bool
    cases: frozenset[str]
    severity: str = "warning"
    text: str = ""
    missing: float | None = None
    ended: float | None = None
    ending: Ending = ""
    notified: Notified = ""


class Changes:
    """Stores known changes. `Store.changes` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[KnownChange]:
        """Return all known changes, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(changes).order_by(changes.c.since, changes.c.id))
            return [_change(row) for row in rows.all()]

    def keep(self, known: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Store changes, except for their notification state; delete those to forget."""
        rows = [_row(change) for change in known]
        forgotten = list(forget)
        if not rows and not forgotten:
            return
        with writing(self._engine) as connection:
            added = upsert(changes)
            fresh = {
                column.name: column
                for column in added.excluded
                if column.name not in {"id", "notified"}
            }
            if rows:
                added = added.on_conflict_do_update(index_elements=["id"], set_=fresh)
                connection.execute(added, rows)
            for begin in range(0, len(forgotten), _PART):
                part = forgotten[begin : begin + _PART]
                connection.execute(delete(changes).where(changes.c.id.in_(part)))


def note_notified(connection: Connection, notified: Iterable[KnownChange]) -> None:
    """Store the notification state of changes, within a transaction."""
    rows = [{"change": change.id, "now": change.notified} for change in notified]
    row = (
        update(changes).where(changes.c.id == bindparam("change")).values(notified=bindparam("now"))
    )
    if rows:
        connection.execute(row, rows)


def _row(change: KnownChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "since": change.since,
        "worse": int(change.worse),
        "gradual": int(change.gradual),
        "severity": change.severity,
        "cases": json.dumps(sorted(change.cases)),
        "text": change.text,
        "missing": change.missing,
        "ended": change.ended,
        "ending": change.ending,
        "notified": change.notified,
    }


def _change(row: Any) -> KnownChange:
    return KnownChange(
        id=row.id,
        since=float(row.since),
        worse=bool(row.worse),
        gradual=bool(row.gradual),
        severity=row.severity,
        cases=frozenset(map(str, json.loads(row.cases))),
        text=row.text,
        missing=row.missing,
        ended=row.ended,
        ending=row.ending,
        notified=row.notified,
    )
