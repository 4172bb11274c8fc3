"""Known changes with their notification state, and decisions about baselines."""

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
        kind: `accept`: earlier changes are accepted, the current level is the baseline;
            `reset`: earlier runs no longer count.
        cases: glob over scenario, workload or `scenario/workload`.
        until: end of the newest run that it concerns.
        reason: the user's text.
    """

    made: datetime
    kind: DecisionKind
    cases: str
    until: datetime
    reason: str

    def concerns(self, scenario: str, workload: str) -> bool:
        """Return whether the decision applies to a case."""
        names = (scenario, workload, f"{scenario}/{workload}")
        return any(fnmatchcase(name, self.cases) for name in names)


class Decisions:
    """Stored decisions (`Store.decisions`); safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, decision: Decision) -> None:
        """Save a decision; durable on return."""
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
        """Return the number of decisions: it grows with each."""
        with reading(self._engine) as connection:
            return int(connection.scalar(select(func.count()).select_from(decisions)) or 0)


Ending = Literal["", "over", "accepted", "unsaid"]
Notified = Literal["", "open", "ended"]
_PART: Final = 500
"""Maximum rows per statement: SQLite limits the values of one."""


# --- Known changes.


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChange:
    """The stored record of a change, to recognize it after later updates.

    Attributes:
        since: its begin in the latest update, Unix seconds.
        worse: whether its most important metric moved for the worse.
        slow: whether it is a drift.
        severity: in the latest update.
        cases: keys.
        text: its sentence in the latest update.
        missing: since when it is unconfirmed, Unix seconds of judged runs; None: it is confirmed.
        ended: when it counted as ended, Unix seconds; None: it is open.
        ending: `over`: resolved; `accepted`; `unsaid`: no longer confirmed.
        told: the latest notification about it.
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
    """Stored changes (`Store.changes`); safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[KnownChange]:
        """Return all known changes, the oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(changes).order_by(changes.c.since, changes.c.id))
            return [_change(row) for row in rows.all()]

    def keep(self, changed: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Save changes without their notification state; delete others."""
        rows = [_row(one) for one in changed]
        gone = list(forget)
        if not rows and not gone:
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


def note_notified(connection: Connection, told: Iterable[KnownChange]) -> None:
    """Record notifications about changes within a transaction."""
    rows = [{"change": one.id, "now": one.told} for one in told]
    row = update(changes).where(changes.c.id == bindparam("change")).values(told=bindparam("now"))
    if rows:
        connection.execute(row, rows)


def _row(change: KnownChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "since": change.since,
        "worse": int(change.worse),
        "gradual": int(change.slow),
        "severity": change.severity,
        "cases": json.dumps(sorted(change.cases)),
        "text": change.text,
        "missing": change.missing,
        "ended": change.ended,
        "ending": change.ending,
        "notified": change.told,
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
