"""Numbers of the good runs of each case, for change detection: a table that is clustered by case.

The numbers are those of the samples, so that a start reads millions of runs in seconds. A run's row
is written in the transaction that stores it; triggers of the database follow corrections and
removals of runs. Samples that are changed by hand are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, Engine, select

from pvebench.store.engine import reading
from pvebench.store.records import CaseNumbers, case_numbers
from pvebench.store.tables import NUMBER_COLUMNS, cases, numbers_statement, run_numbers

_COLUMNS: Final = ", ".join(["run", "finished", "environment", "ok", *NUMBER_COLUMNS])
_OF_CASE: Final = (
    f"SELECT {_COLUMNS} FROM {run_numbers.name} WHERE case_id = ? AND run <= ? "  # noqa: S608 # constants
    f"AND coalesce({', '.join(NUMBER_COLUMNS)}) IS NOT NULL ORDER BY run"
)


class Numbers:
    """Reads numbers. `Store.numbers` is one; every method may raise StoreError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def by_case(self, *, until: int) -> Iterator[CaseNumbers]:
        """Yield the good runs of each case up to run `until`, oldest first.

        Runs that have none of `NUMBERS` are absent.
        """
        with reading(self._engine) as connection:
            for case, key in connection.execute(select(cases.c.id, cases.c.key)).all():
                rows = connection.exec_driver_sql(_OF_CASE, (case, until)).all()
                if rows:
                    yield case_numbers(key, rows)


def add_numbers(connection: Connection, first: int) -> None:
    """Store the numbers of the runs from number `first` on; their cases are stored."""
    connection.exec_driver_sql(numbers_statement("runs.id >= ?"), (first,))
