"""Decisions about baselines, and known changes with their notification state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from sqlalchemy import (
    Connection,
    Engine,
    RowMapping,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from pvebench.store.engine import put_rows, reading, writing
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
        times = {"made": decision.made.timestamp(), "until": decision.until.timestamp()}
        with writing(self._engine) as connection:
            connection.execute(insert(decisions).values(asdict(decision) | times))

    def all(self) -> list[Decision]:
        """Return all decisions, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(decisions).order_by(decisions.c.id))
            return [_decision(row) for row in rows.mappings()]

    def count(self) -> int:
        """Return the number of decisions, which grows with every decision."""
        with reading(self._engine) as connection:
            return int(connection.scalar(select(func.count()).select_from(decisions)) or 0)


def _decision(row: RowMapping) -> Decision:
    times = {name: datetime.fromtimestamp(row[name], UTC) for name in ("made", "until")}
    return Decision(kind=row["kind"], cases=row["cases"], reason=row["reason"], **times)


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
        notified_at: its time, UNIX seconds; 0: none.
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
    notified_at: float = 0.0


class Changes:
    """Stores known changes. `Store.changes` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[KnownChange]:
        """Return all known changes, oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(changes).order_by(changes.c.since, changes.c.id))
            return [_change(row) for row in rows.mappings()]

    def keep(self, known: Iterable[KnownChange], forget: Iterable[str] = ()) -> None:
        """Store changes, except for their notification state; delete those to forget."""
        rows = [_row(change) for change in known]
        forgotten = list(forget)
        if not rows and not forgotten:
            return
        with writing(self._engine) as connection:
            put_rows(connection, changes, ["id"], rows, kept=("notified", "notified_at"))
            for begin in range(0, len(forgotten), _PART):
                part = forgotten[begin : begin + _PART]
                connection.execute(delete(changes).where(changes.c.id.in_(part)))


def note_notified(connection: Connection, notified: Iterable[KnownChange]) -> None:
    """Store the notification state of changes, within a transaction."""
    rows = [
        {"one": change.id, "what": change.notified, "at": change.notified_at} for change in notified
    ]
    row = update(changes).where(changes.c.id == bindparam("one"))
    row = row.values(notified=bindparam("what"), notified_at=bindparam("at"))
    if rows:
        connection.execute(row, rows)


def _row(change: KnownChange) -> dict[str, Any]:
    return {**asdict(change), "cases": json.dumps(sorted(change.cases))}


def _change(row: RowMapping) -> KnownChange:
    numbers = {name: float(row[name]) for name in ("since", "notified_at")}
    flags = {name: bool(row[name]) for name in ("worse", "gradual")}
    return KnownChange(
        **{**row, **numbers, **flags, "cases": frozenset(map(str, json.loads(row["cases"])))}
    )
