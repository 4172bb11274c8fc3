"""The numbers of good runs, in bulk: what verdicts are made from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Engine, select

from pvebench.store.engine import reading
from pvebench.store.records import GOOD
from pvebench.store.tables import runs, samples


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """A good run's numbers.

    Attributes:
        run: its number.
        finished: seconds since the epoch, UTC.
        environment: digest.
        values: (metric, direction or "", part) -> value in the metric's base unit.
    """

    run: int
    case_key: str
    node: str
    finished: float
    environment: str
    values: dict[tuple[str, str, str], float]


class Numbers:
    """Reads numbers. `Store.numbers` is one; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def good_runs(self, metrics: Collection[str], *, after: int = 0) -> list[RunNumbers]:
        """Return the good runs with a number above `after`, in the order of their numbers."""
        columns = (runs.c.id, runs.c.case_key, runs.c.node, runs.c.finished, runs.c.environment)
        query = (
            select(*columns, samples.c.metric, samples.c.direction, samples.c.part, samples.c.value)
            .join(samples, samples.c.run == runs.c.id)
            .where(runs.c.id > after, runs.c.outcome.in_(GOOD), samples.c.metric.in_(metrics))
            .order_by(runs.c.id)
        )
        found: list[RunNumbers] = []
        with reading(self._engine) as connection:
            for (
                number,
                key,
                node,
                finished,
                environment,
                metric,
                way,
                part,
                value,
            ) in connection.execute(query):
                if not found or found[-1].run != number:
                    found.append(RunNumbers(number, key, node, finished, environment, {}))
                found[-1].values[metric, way, part] = value
        return found
