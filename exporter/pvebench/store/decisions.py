"""Decisions about baselines, and how they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

from sqlalchemy import Engine, func, insert, select

from pvebench.store.engine import reading, writing
from pvebench.store.tables import decisions

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
