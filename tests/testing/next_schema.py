"""A pvebench with one more schema, so that there is always a migration to test."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from pvebench.store import engine
from pvebench.store.tables import MIGRATIONS, SCHEMA

NEXT = SCHEMA + 1


def migrate(connection: Connection) -> None:
    """Add a table and a column, and rebuild a table that others refer to.

    Source: https://www.sqlite.org/lang_altertable.html, "Making Other Kinds Of … Changes".
    """
    run = connection.exec_driver_sql
    run("CREATE TABLE notes (text TEXT PRIMARY KEY)")
    run("ALTER TABLE cases ADD COLUMN rank INTEGER NOT NULL DEFAULT 7")
    own = "SELECT sql FROM sqlite_schema WHERE tbl_name = 'runs' AND sql IS NOT NULL AND type = "
    (table,) = run(f"{own} 'table'").scalars()
    indexes = run(f"{own} 'index'").scalars().all()
    columns = ", ".join(run("SELECT name FROM pragma_table_info('runs')").scalars())
    run(table.replace("TABLE runs (", "TABLE new_runs (watts FLOAT, ", 1))
    run(f"INSERT INTO new_runs ({columns}) SELECT {columns} FROM runs")
    run("DROP TABLE runs")
    run("ALTER TABLE new_runs RENAME TO runs")
    for statement in indexes:
        run(statement)


def install(*, seconds: float = 0) -> None:
    """Let this process be that pvebench; its migration takes at least some seconds."""

    def slowly(connection: Connection) -> None:
        time.sleep(seconds)
        migrate(connection)

    engine.MIGRATIONS, engine.SCHEMA = (*MIGRATIONS, slowly), NEXT  # type: ignore[misc] # Final there
