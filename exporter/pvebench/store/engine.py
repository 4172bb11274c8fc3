"""Opening the database: pragmas, migrations, and refusing what is newer than this code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError, OperationalError

from pvebench.errors import StoreError, StoreTooNew
from pvebench.store.tables import HEAD


def open_engine(path: Path) -> Engine:
    """Return an engine on the database at `path`, made or migrated to this code's layout.

    Raises:
        StoreTooNew: a newer pvebench wrote it; nothing is changed.
        StoreError: not a database, or not readable.
    """
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30.0})
    event.listen(engine, "connect", _set_pragmas)
    try:
        revision = _revision(engine)
        if revision != HEAD:
            _migrate(engine, path, revision)
    except DatabaseError as error:
        engine.dispose()
        raise StoreError(
            f"{path} cannot be used as results database: {error.orig}",
            cause="the file is not an SQLite database, is damaged, or the disk is full",
            next_step=f"move it away to start afresh, or restore it: {path}",
        ) from error
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction; what is written is durable afterwards.

    Raises:
        StoreError: the database cannot be written now; the same may work later.
    """
    with _told(engine, "cannot be written"), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection to read from.

    Raises:
        StoreError: the database cannot be read now.
    """
    with _told(engine, "cannot be read"), engine.connect() as connection:
        yield connection


@contextmanager
def _told(engine: Engine, what: str) -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise StoreError(
            f"{engine.url.database} {what}: {error.orig}",
            cause="the file system is full or read-only, or another program locks the file",
            next_step="free space or end the other program; pvebench tries again where it can",
        ) from error


def _set_pragmas(connection: Any, _: Any) -> None:
    # WAL lets /metrics read while a run is written; FULL makes a commit survive a power cut.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
        return str(row[0]) if row else None


def _migrate(engine: Engine, path: Path, revision: str | None) -> None:
    # Alembic costs a third of a second to import; it is only wanted here.
    from alembic import command  # noqa: PLC0415 # slow to import
    from alembic.config import Config  # noqa: PLC0415 # likewise
    from alembic.script import ScriptDirectory  # noqa: PLC0415 # likewise

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreTooNew(
            f"{path} has layout {revision}, which this pvebench does not know",
            cause="a newer pvebench has used this state directory",
            next_step="upgrade pvebench, or use another state directory (--state)",
        )
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
