"""Opening the database: pragmas, migrations with a backup, rejection of unknown schemas."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import DatabaseError

from pvebench.drivers.clocks import SystemClock, attempts
from pvebench.errors import StoreLost, StoreTooNew, StoreUnavailable
from pvebench.files import give_to_owner, open_regular
from pvebench.log import log
from pvebench.store.backups import copy_database
from pvebench.store.tables import MIGRATIONS, SCHEMA, TRIGGERS, metadata

_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CORRUPT_INDEX,
        sqlite3.SQLITE_CORRUPT_SEQUENCE,
        sqlite3.SQLITE_CORRUPT_VTAB,
        sqlite3.SQLITE_NOTADB,
    }
)
BUSY_SECONDS = 30.0
"""Maximum wait for a lock of another connection."""
OPENING_SECONDS = 600.0
"""Maximum wait for another process that opens or migrates the database."""
_TURN_SECONDS: Final = 0.05
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


def open_engine(path: Path) -> Engine:
    """Return an engine on the database at `path`, created or migrated to this code's schema.

    A migration happens completely or not at all. Before one, the database is backed up to
    `<path>.before-<its version>`, which stays until the next migration.

    Raises:
        StoreTooNew: a newer pvebench wrote it. StoreLost: not a database, or not of pvebench.
        StoreUnavailable: not readable now, or no space for the backup. All leave its content.
    """
    _make_private(path)
    engine = _engine(path)
    try:
        with _opening_lock(path):
            with reading(engine) as connection:
                version = _version(path, connection)
            if version != SCHEMA:
                _create_or_migrate(path)
    except BaseException as error:
        engine.dispose()
        if not isinstance(error, DatabaseError):
            raise
        raise StoreLost(
            f"opening results database {path} failed: {error.orig}",
            cause="the file is not an SQLite database or is damaged, or the disk is full",
            next_step="restore a backup with `pvebench restore`",
        ) from error
    # A replaced file under the same name is another database.
    return engine.execution_options(identity=_identity(path))


def _make_private(path: Path) -> None:
    """Create the file if it is absent; only its owner may read evidence and settings."""
    # Opening the database reports errors that matter. A link stays usable; what it leads to gets no
    # other owner or mode.
    with contextlib.suppress(OSError), open_regular(path, flags=_CREATE) as file:
        os.fchmod(file.fileno(), 0o600)
        give_to_owner(file.fileno(), path.parent)


@contextmanager
def _opening_lock(path: Path) -> Iterator[None]:
    """Let one process at a time open the database at `path`; another one may be migrating it.

    SQLite stops waiting after BUSY_SECONDS, and a migration on a slow disk takes longer.

    Raises:
        StoreUnavailable: another process holds it for OPENING_SECONDS.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # no permission, or a file system without locks
            lock = path.with_name(f"{path.name}.lock")
            fd = stack.enter_context(open_regular(lock, flags=_CREATE)).fileno()
            give_to_owner(fd, path.parent)
            _wait_for_turn(fd, path)
        yield


def _wait_for_turn(fd: int, path: Path) -> None:
    logged = False
    for _ in attempts(SystemClock(), seconds=OPENING_SECONDS, pause=_TURN_SECONDS):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not logged:
            log.warning("waiting for another process that opens the database", path=str(path))
            logged = True
    raise StoreUnavailable(
        f"results database {path} is being opened by another process",
        cause="that process migrates the database, hangs or is suspended",
        next_step=f"wait, or find it with `fuser -v {path}.lock`",
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_there(engine: Engine) -> None:
    """Raise StoreLost if the database's file was removed or replaced since it was opened.

    Data written to a file without a name is lost when the process ends.
    """
    path = Path(str(engine.url.database))
    opened = engine.get_execution_options().get("identity")
    if opened is not None and _identity(path) != opened:  # None: being created or migrated
        raise StoreLost(
            f"{path} is no longer the database that pvebench opened",
            cause="another program removed or replaced the file or its directory",
            next_step="restart pvebench; to restore results, run `pvebench restore`",
        )


def faults(engine: Engine, *, full: bool) -> list[str]:
    """Return the faults that SQLite finds in the database, at most three.

    Args:
        full: also compare the indexes with their tables, which takes several times as long.
    """
    kind = "integrity_check" if full else "quick_check"
    with reading(engine) as connection:
        lines = [str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA {kind}(3)")]
    return [] if lines == ["ok"] else lines


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction; its changes are durable afterwards.

    Raises:
        StoreUnavailable: the database cannot be written now; a retry may succeed.
    """
    # Lock first: after a read SQLite may refuse the lock, however long the caller waits.
    writer = engine.execution_options(begin="IMMEDIATE")
    check_there(engine)
    with _database_errors(engine, "cannot be written"), writer.begin() as connection:
        yield connection
    check_there(engine)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Yield a connection for reading; all its queries see the same snapshot.

    Convert rows to values inside the block: a damaged but readable page holds invalid values.

    Raises:
        StoreUnavailable: the database cannot be read now. StoreLost: it is damaged.
    """
    try:
        with _database_errors(engine, "cannot be read"), engine.connect() as connection:
            yield connection
    except (ValueError, TypeError, LookupError, ArithmeticError, zlib.error) as error:
        raise damaged(engine, f"invalid value ({type(error).__name__}: {error})"[:300]) from error


@contextmanager
def _database_errors(engine: Engine, failure: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if getattr(error.orig, "sqlite_errorcode", None) in _DAMAGE:
            raise damaged(engine, str(error.orig)) from error
        if not isinstance(error.orig, sqlite3.OperationalError):
            raise
        raise StoreUnavailable(
            f"{engine.url.database} {failure}: {error.orig}",
            cause="the file system is full or read-only, or another program locks the file",
            next_step="free space or stop the other program; pvebench retries where it can",
        ) from error


def put_rows(
    connection: Connection,
    table: Table,
    key: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    kept: Collection[str] = (),
) -> None:
    """Insert rows with the same columns; replace those with the same key.

    Args:
        kept: columns of replaced rows that keep their values.
    """
    if rows:
        row = upsert(table)
        new = {name: row.excluded[name] for name in rows[0] if name not in {*key, *kept}}
        connection.execute(row.on_conflict_do_update(index_elements=key, set_=new), rows)


def damaged(engine: Engine, fault: str) -> StoreLost:
    """Return the error for a database whose content is damaged."""
    return StoreLost(
        f"{engine.url.database} is damaged: {fault}",
        cause="the disk is failing, or another program wrote to the file",
        next_step="stop pvebench, then restore a backup with `pvebench restore`",
    )


def _engine(path: Path, *, foreign_keys: str = "ON") -> Engine:
    # FULL makes a commit survive a power failure.
    pragmas = ("synchronous=FULL", f"foreign_keys={foreign_keys}")

    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        # By default Python's sqlite3 begins no transaction before DDL, so that half a migration
        # would stay; SQLite itself can roll back DDL.
        connection.isolation_level = None
        _use_write_ahead_log(connection)
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Let /metrics read while a run is written.

    SQLite refuses this immediately while another connection switches or writes a database without
    such a log (a new one, or a restored backup): the statement reads first.
    """
    limit = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > limit:
                raise
            time.sleep(0.02)
        else:
            return


def _begin(connection: Connection) -> None:
    kind = connection.get_execution_options().get("begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {kind}")


def schema_of(path: Path, ask: Callable[[str], Any]) -> int:
    """Return the version of a database's schema; 0: it is empty.

    Args:
        ask: returns the first row of a query.

    Raises:
        StoreTooNew: a newer pvebench wrote it. StoreLost: another program, or an unreleased one.
    """
    version = int(ask("PRAGMA user_version")[0])
    if version > SCHEMA:
        raise StoreTooNew(
            f"{path} has schema {version}, this pvebench supports up to {SCHEMA}",
            cause="a newer pvebench used this state directory",
            next_step="upgrade pvebench, or use another state directory with --state",
        )
    # Other programs count their versions in the same place.
    own = ask("SELECT max(name = 'journal') FROM sqlite_schema")[0]  # None: no tables
    if own != (1 if version > 0 else None):
        raise StoreLost(
            f"{path} is a database of unknown origin",
            cause="another program or an unreleased pvebench made it",
            next_step="move it away, or use another state directory with --state; to restore "
            "results, run `pvebench restore`",
        )
    return max(version, 0)


def _version(path: Path, connection: Connection) -> int:
    return schema_of(path, lambda query: connection.exec_driver_sql(query).first())


def _create_or_migrate(path: Path) -> None:
    # Foreign keys are off: dropping a table that is rebuilt would delete the rows that refer to it.
    engine = _engine(path, foreign_keys="OFF")
    try:
        # One transaction includes the backup, so that two processes that open at once migrate once.
        with writing(engine) as connection:
            version = _version(path, connection)
            if version:
                _migrate(path, connection, version)
            else:
                metadata.create_all(connection, checkfirst=False)
            # SQLite silently drops the triggers of a table that a migration rebuilds.
            for statement in TRIGGERS:
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
    finally:
        engine.dispose()


def _migrate(path: Path, connection: Connection, version: int) -> None:
    """Run the migrations that the database lacks; none if another process has run them."""
    if missing := MIGRATIONS[version - 1 :]:
        _back_up(path, path.with_name(f"{path.name}.before-{version}"))
        for migrate in missing:
            migrate(connection)


def _back_up(path: Path, copy: Path) -> None:
    """Back up the database at `path` to `copy`, durable on return; then remove older backups.

    The backup is complete or absent. It is one file that can be moved to the path of the database.

    Args:
        copy: in the same directory, the database's name followed by `.before-` and a unique suffix.

    Raises:
        StoreUnavailable: no space for it, or it cannot be written; older backups are kept.
    """
    try:
        _remove(path, lambda name: ".part" in name)
        copy_database(path, copy)
        _remove(path, lambda name: name != copy.name)
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(
            f"backup of {path} to {copy} before the migration failed: {error}",
            cause="the file system is full or read-only; the database is unchanged",
            next_step=f"free {path.stat().st_size} bytes in {path.parent}",
        ) from error


def _remove(path: Path, is_obsolete: Callable[[str], bool]) -> None:
    for entry in list(path.parent.iterdir()):
        if entry.name.startswith(f"{path.name}.before-") and is_obsolete(entry.name):
            entry.unlink()
