"""Migrations of the hub's database. Only its owner runs them, never a request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from pvebench_fleet import HubDatabaseError

HEAD: Final = "0001"
"""Schema revision that this code reads and writes."""


def migrate(url: str) -> None:
    """Create or upgrade the schema of the database at a URL, completely or not at all.

    Raises:
        HubDatabaseError: it is unreachable, or the role may not change it.
    """
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with engine.begin() as connection:
            # Another process may migrate at the same time; the lock ends with the transaction.
            connection.execute(text("SELECT pg_advisory_xact_lock(7052101)"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DatabaseError as error:
        raise HubDatabaseError(
            f"the migration of the hub's database failed: {error.orig}",
            cause="PostgreSQL is down, or this role does not own the database",
            next_step="check the database; the role needs CREATEROLE for the first migration",
        ) from error
    finally:
        engine.dispose()
