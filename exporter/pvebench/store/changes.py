"""Decisions about baselines, known changes with their notification state, changed definitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final, Literal

from sqlalchemy import Engine, RowMapping, delete, insert, select

from pvebench.model.definition import Definition
from pvebench.model.units import format_size, whole_number
from pvebench.store.engine import put_rows, reading, writing
from pvebench.store.records import CaseRecord
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


# --- Known changes.

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
        rows = [{**asdict(change), "cases": json.dumps(sorted(change.cases))} for change in known]
        forgotten = list(forget)
        if not rows and not forgotten:
            return
        with writing(self._engine) as connection:
            put_rows(connection, changes, ["id"], rows, kept=("notified", "notified_at"))
            for begin in range(0, len(forgotten), _PART):
                part = forgotten[begin : begin + _PART]
                connection.execute(delete(changes).where(changes.c.id.in_(part)))


def _change(row: RowMapping) -> KnownChange:
    numbers = {name: float(row[name]) for name in ("since", "notified_at")}
    flags = {name: bool(row[name]) for name in ("worse", "gradual")}
    return KnownChange(
        **{**row, **numbers, **flags, "cases": frozenset(map(str, json.loads(row["cases"])))}
    )


# --- Current definitions of the cases, and their changes: a slug can have had other definitions.

_SIZES: Final = ("volume_bytes", "memory_bytes", "file_bytes", "bs", "size")
SHOWN: Final = 4
"""Maximum number of differences in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChange:
    """A changed definition of a case; earlier runs belong to another history.

    Attributes:
        key: key of the current case.
        at: start of the first run with the current definition.
        earlier_runs: number of runs with earlier definitions, of all outcomes.
    """

    key: str
    at: datetime
    before: Definition
    now: Definition
    earlier_runs: int

    @property
    def text(self) -> str:
        """Sentence with the differences and the time of the change."""
        differences = [
            f"{name} {_text(name, old)} → {_text(name, new)}"
            for name, old, new in self.now.differences(self.before)
        ]
        differences = differences or ["unrecorded differences"]
        more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        return (
            f"the definition of {self.now.name} on {self.now.node} changed at "
            f"{self.at:%Y-%m-%d %H:%M} UTC: {', '.join(differences[:SHOWN])}{more}; "
            f"earlier runs ({self.earlier_runs}) are not compared"
        )


def _text(name: str, value: str) -> str:
    size = whole_number(value) if name in _SIZES else None
    return (value or "unset") if size is None else format_size(size)


def definition_changes(
    cases: Mapping[str, CaseRecord], keys: Iterable[str]
) -> tuple[DefinitionChange, ...]:
    """Return the changed definitions of the current cases `keys`, newest change first.

    Scaled runs of a case, made as a trial, are no earlier definition of it.
    """
    by_place: dict[tuple[str, str, str], list[CaseRecord]] = {}
    for record in cases.values():
        by_place.setdefault(record.definition.place, []).append(record)
    found = [
        change
        for key in keys
        if key in cases
        and (change := _redefined(key, cases[key], by_place[cases[key].definition.place]))
        is not None
    ]
    return tuple(sorted(found, key=lambda change: change.at, reverse=True))


def _redefined(
    key: str, current: CaseRecord, all_of_place: Sequence[CaseRecord]
) -> DefinitionChange | None:
    now = current.definition
    earlier = [
        record
        for record in all_of_place
        if record.key != key
        and record.definition.scale == now.scale
        and record.first_started < current.first_started
    ]
    if not earlier:
        return None
    last = max(earlier, key=lambda record: record.last.finished)
    return DefinitionChange(
        key=key,
        at=current.first_started,
        before=last.definition,
        now=now,
        earlier_runs=sum(sum(record.outcomes.values()) for record in earlier),
    )
