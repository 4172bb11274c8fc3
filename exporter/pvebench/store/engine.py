"""Opening the database: pragmas, migrations with a copy from before, refusing what is newer."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError

from pvebench.errors import StoreLost, StoreTooNew, StoreUnavailable
from pvebench.store.backups import copy_database
from pvebench.store.tables import HEAD, TRIGGERS

_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CORRUPT_INDEX,
        sqlite3.SQLITE_CORRUPT_SEQUENCE,
        sqlite3.SQLITE_CORRUPT_VTAB,
        sqlite3.SQLITE_NOTADB,
    }
)
MIGRATIONS: Final = Path(__file__).parent / "migrations"


def open_engine(path: Path) -> Engine:
    """Return an engine on the database at `path`, made or migrated to this code's layout.

    A migration happens whole or not at all; before one, the database is copied to
    `<path>.before-<its revision>`, which stays until the next.

    Raises:
        StoreTooNew: a newer pvebench wrote it; nothing is changed.
        StoreLost: not a database. StoreUnavailable: not readable now, or no room for the copy.
        Nothing is changed by either.
    """
    _make_private(path)
    engine = _engine(path)
    try:
        with reading(engine) as connection:
            revision = _revision(connection)
        if revision != HEAD:
            _migrate(path)
    except DatabaseError as error:
        engine.dispose()
        raise StoreLost(
            f"{path} cannot be used as results database: {error.orig}",
            cause="the file is not an SQLite database, is damaged, or the disk is full",
            next_step="put a copy in its place: pvebench restore",
        ) from error
    # Whose file it is: another one under the same name is another database.
    return engine.execution_options(identity=_identity(path))


def _make_private(path: Path) -> None:
    """Make the file if it is absent; evidence and settings are nobody else's to read."""
    with contextlib.suppress(OSError):  # what matters of it is told by the opening
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_there(engine: Engine) -> None:
    """Raise StoreLost if the database's file was removed or replaced since it was opened.

    What is written to a file without a name is lost with the process.
    """
    path = Path(str(engine.url.database))
    opened = engine.get_execution_options().get("identity")
    if opened is not None and _identity(path) != opened:  # None: it is being made or migrated
        raise StoreLost(
            f"{path} is no longer the database that was opened",
            cause="it, or its directory, was removed or replaced while pvebench runs",
            next_step="start pvebench again; to bring results back: pvebench restore",
        )


def faults(engine: Engine, *, full: bool) -> list[str]:
    """Return what SQLite finds wrong in the database, at most three things.

    Args:
        full: compare the indexes with their tables too, which takes several times as long.
    """
    kind = "integrity_check" if full else "quick_check"
    with reading(engine) as connection:
        lines = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA {kind}(3)")]
    return [] if lines == ["ok"] else lines


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction; what is written is durable afterwards.

    Raises:
        StoreUnavailable: the database cannot be written now; the same may work later.
    """
    # The lock is taken at once: after a read it may be refused, however long one waits.
    writer = engine.execution_options(begin="IMMEDIATE")
    check_there(engine)
    with _told(engine, "cannot be written"), writer.begin() as connection:
        yield connection
    check_there(engine)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection to read from; all its queries see the same moment.

    Rows become values inside: a page that is damaged, but still a page, has values that are none.

    Raises:
        StoreUnavailable: the database cannot be read now. StoreLost: it is damaged.
    """
    try:
        with _told(engine, "cannot be read"), engine.connect() as connection:
            yield connection
    except (ValueError, TypeError, LookupError, ArithmeticError, zlib.error) as error:
        raise damaged(
            engine, f"a value is none of ours ({type(error).__name__}: {error})"[:300]
        ) from error


@contextmanager
def _told(engine: Engine, what: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if getattr(error.orig, "sqlite_errorcode", None) in _DAMAGE:
            raise damaged(engine, str(error.orig)) from error
        if not isinstance(error.orig, sqlite3.OperationalError):
            raise
        raise StoreUnavailable(
            f"{engine.url.database} {what}: {error.orig}",
            cause="the file system is full or read-only, or another program locks the file",
            next_step="free space or end the other program; pvebench tries again where it can",
        ) from error


def damaged(engine: Engine, what: str) -> StoreLost:
    """Return the error for a database whose content is damaged."""
    return StoreLost(
        f"{engine.url.database} is damaged: {what}",
        cause="the disk under it fails, or something else wrote to the file",
        next_step="end pvebench and put a copy in its place: pvebench restore",
    )


def _engine(path: Path, *, foreign_keys: str = "ON") -> Engine:
    # WAL lets /metrics read while a run is written; FULL makes a commit survive a power cut.
    pragmas = ("journal_mode=WAL", "synchronous=FULL", f"foreign_keys={foreign_keys}")

    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        # Left to itself Python's sqlite3 begins no transaction before DDL, so that half a
        # migration would stay; SQLite itself can take DDL back.
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30.0})
    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    kind = connection.get_execution_options().get("begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {kind}")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    row = connection.execute(text("SELECT version_num FROM alembic_version")).first()
    return str(row[0]) if row else None


def _migrate(path: Path) -> None:
    # Alembic costs a third of a second to import; it is only wanted here.
    from alembic import command  # noqa: PLC0415 # slow to import
    from alembic.config import Config  # noqa: PLC0415 # likewise
    from alembic.script import ScriptDirectory  # noqa: PLC0415 # likewise

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    # Foreign keys are off: a table that is rebuilt is dropped, and its rows' rows with it.
    engine = _engine(path, foreign_keys="OFF")
    try:
        # One transaction for all of it, with the copy: two that open at once do not meet.
        with writing(engine) as connection:
            revision = _revision(connection)
            if revision is not None and revision not in known:
                raise _too_new(path, revision)
            if revision not in (None, HEAD):
                _back_up(path, path.with_name(f"{path.name}.before-{revision}"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            # SQLite silently drops the triggers of a table that a migration rebuilds.
            for statement in TRIGGERS:
                connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def _too_new(path: Path, revision: str) -> StoreTooNew:
    return StoreTooNew(
        f"{path} has layout {revision}, which this pvebench does not know",
        cause="a newer pvebench has used this state directory",
        next_step="upgrade pvebench, or use another state directory (--state)",
    )


def _back_up(path: Path, copy: Path) -> None:
    """Copy the database at `path` to `copy`, durable on return; then remove older copies.

    The copy is complete or absent. It is one file, which can be moved to where the database was.

    Args:
        copy: beside the database, its name followed by `.before-` and whatever tells it apart.

    Raises:
        StoreUnavailable: there is no room for it, or it cannot be written; older ones are kept.
    """
    try:
        _remove(path, lambda name: ".part" in name)
        copy_database(path, copy)
        _remove(path, lambda name: name != copy.name)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"{path} cannot be copied to {copy} before its layout changes: {error}",
            cause="the file system is full or read-only; the database is as it was",
            next_step=f"make room for {path.stat().st_size} bytes in {path.parent}",
        ) from error


def _remove(path: Path, which: Callable[[str], bool]) -> None:
    for found in list(path.parent.iterdir()):
        if found.name.startswith(f"{path.name}.before-") and which(found.name):
            found.unlink()
