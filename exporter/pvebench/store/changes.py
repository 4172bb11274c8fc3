"""The changes that were said: by what each is known again, and what of it has been told."""

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

# --- Decisions about baselines, and how they are kept.

DecisionKind = Literal["accept", "reset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What somebody decided.

    Attributes:
        made: when.
        kind: `accept`: the changes until then are right, the present level is the baseline;
            `reset`: runs until then do not count any more.
        cases: glob over scenario, workload or `scenario/workload`.
        until: end of the newest run that it concerns.
        reason: why, in the words of whoever decided.
    """

    made: datetime
    kind: DecisionKind
    cases: str
    until: datetime
    reason: str

    def concerns(self, scenario: str, workload: str) -> bool:
        """Tell whether a case is meant."""
        names = (scenario, workload, f"{scenario}/{workload}")
        return any(fnmatchcase(name, self.cases) for name in names)


class Decisions:
    """Reads and adds decisions. `Store.decisions` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, decision: Decision) -> None:
        """Keep a decision; durable on return."""
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
        """Return how many there are: it grows with every decision."""
        with reading(self._engine) as connection:
            return int(connection.scalar(select(func.count()).select_from(decisions)) or 0)


Ending = Literal["", "over", "accepted", "unsaid"]
Notified = Literal["", "open", "ended"]
_PART: Final = 500
"""Rows of one statement: SQLite takes so many values at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChange:
    """What a change is known by.

    Attributes:
        since: when it began, UNIX seconds, as said last.
        worse: whether its first figure moved for the worse.
        slow: whether it came little by little.
        severity: as said last.
        cases: keys.
        text: its sentence, as said last.
        missing: since when it has not been said, UNIX seconds of the judged runs; None: it is said.
        ended: when that was taken for its end; None: it is open.
        ending: `over`: taken back; `accepted`; `unsaid`: not confirmed any more.
        told: what people were told of it.
    """

    id: str
    since: float
    worse: bool
    slow: bool
    cases: frozenset[str]
    severity: str = "warning"
    text: str = ""
    missing: float | None = None
    ended: float | None = None
    ending: Ending = ""
    told: Notified = ""


class Changes:
    """Keeps changes. `Store.changes` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[KnownChange]:
        """Return all that are kept, the oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(changes).order_by(changes.c.since, changes.c.id))
            return [_change(row) for row in rows.all()]

    def keep(self, found: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Keep changes as they are now, but for what was told of them; forget others."""
        rows = [_row(one) for one in found]
        gone = list(forget)
        if not rows and not gone:
            return
        with writing(self._engine) as connection:
            added = upsert(changes)
            fresh = {one.name: one for one in added.excluded if one.name not in {"id", "notified"}}
            if rows:
                added = added.on_conflict_do_update(index_elements=["id"], set_=fresh)
                connection.execute(added, rows)
            for begin in range(0, len(gone), _PART):
                part = gone[begin : begin + _PART]
                connection.execute(delete(changes).where(changes.c.id.in_(part)))


def note_notified(connection: Connection, told: Iterable[KnownChange]) -> None:
    """Note in a transaction what people were told of changes."""
    rows = [{"change": one.id, "now": one.told} for one in told]
    row = (
        update(changes).where(changes.c.id == bindparam("change")).values(notified=bindparam("now"))
    )
    if rows:
        connection.execute(row, rows)


def _row(one: KnownChange) -> dict[str, Any]:
    return {
        "id": one.id,
        "since": one.since,
        "worse": int(one.worse),
        "gradual": int(one.slow),
        "severity": one.severity,
        "cases": json.dumps(sorted(one.cases)),
        "text": one.text,
        "missing": one.missing,
        "ended": one.ended,
        "ending": one.ending,
        "notified": one.told,
    }


def _change(row: Any) -> KnownChange:
    return KnownChange(
        id=row.id,
        since=float(row.since),
        worse=bool(row.worse),
        slow=bool(row.gradual),
        severity=row.severity,
        cases=frozenset(map(str, json.loads(row.cases))),
        text=row.text,
        missing=row.missing,
        ended=row.ended,
        ending=row.ending,
        told=row.notified,
    )
