"""State directory, and read-only access to a database that another process may have open."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sqlalchemy import Engine, create_engine

from pvebench.config.settings import DATABASE
from pvebench.errors import NotWritable, StoreLost
from pvebench.files import RUNTIME, read_own, write_own
from pvebench.log import log
from pvebench.store.backups import connect_read_only
from pvebench.store.instance_lock import lock_instance
from pvebench.store.journal import journal_details
from pvebench.store.stored_results import StoredResults
from pvebench.store.tables import HEAD

# --- State directory: results, lock and sockets of one instance.

WEB_FILE: Final = "web"
"""File with the address of the running instance's web UI, for commands on this machine."""
_PAUSE: Final = "paused"
"""File whose presence requests a pause; its text is the reason."""


class StateDirectory:
    """An opened state directory.

    `exclusive` takes the lock that excludes a second instance; the kernel releases it when the
    process ends, however it ends.

    Args:
        adopt: whether to accept a directory of another machine as this one's from now on.
    """

    def __init__(self, path: Path, *, exclusive: bool, adopt: bool = False) -> None:
        self.path = path
        self._held = ExitStack()
        self._create()
        if exclusive:
            self._lock(adopt=adopt)

    @property
    def database(self) -> Path:
        """Path of the results database."""
        return self.path / DATABASE

    @property
    def runtime(self) -> Path:
        """Directory of sockets and logs of running VMs."""
        return self.path / RUNTIME

    def pause(self, reason: str) -> None:
        """Request the instance that uses this directory to pause until `resume`."""
        try:
            write_own(self.path / _PAUSE, f"{reason}\n")
        except OSError as error:
            raise self._not_writable(error) from error

    def resume(self) -> bool:
        """End the pause; return whether there was one."""
        try:
            (self.path / _PAUSE).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._not_writable(error) from error
        return True

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.runtime.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise self._not_writable(PermissionError(13, "Permission denied"))

    def _not_writable(self, error: OSError) -> NotWritable:
        return NotWritable(
            f"state directory {self.path} cannot be written: {error.strerror}",
            cause="it belongs to another user, or its file system is read-only or full",
            next_step="choose another one with --state, or fix the permissions",
        )

    def _lock(self, *, adopt: bool) -> None:
        try:
            self._held = lock_instance(self.path, adopt=adopt)
        except OSError as error:
            raise self._not_writable(error) from error
        owner = str(uid := self.path.stat().st_uid)
        if uid != os.geteuid():
            with suppress(KeyError):
                owner = self.path.owner()
            log.warning(
                "state directory belongs to another user",
                directory=str(self.path),
                owner=owner,
                next_step=f"use `runuser -u {owner} -- pvebench`, or that user's service may not "
                "start",
            )

    def close(self) -> None:
        """Release the lock."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pause_reason_of(path: Path) -> str:
    """Return the reason for the pause of the state directory at `path`; empty: none."""
    try:
        return read_own(path / _PAUSE).strip() or "paused"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path / _PAUSE} cannot be read: {error.strerror}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """Properties of a database.

    Attributes:
        size_bytes: size including the write-ahead log.
        sound: whether SQLite's `quick_check` found no fault; None: too large to check.
        pending: kind and text of the changes that were started and not undone.
        current: whether it has the schema of this pvebench.
    """

    size_bytes: int
    sound: bool | None
    pending: Sequence[tuple[str, str]]
    current: bool


def summarize_store(path: Path, *, most_bytes: int) -> StoreSummary | None:
    """Return the summary of the database at `path`; None: it is absent.

    Args:
        most_bytes: a larger database is not checked for faults.

    Raises:
        StoreLost: it is damaged, or not a database of pvebench.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    except FileNotFoundError:
        return None
    try:
        with closing(connect_read_only(path)) as database:
            revision = database.execute("SELECT version_num FROM alembic_version").fetchone()
            query = "SELECT kind, details FROM journal WHERE closed IS NULL"
            rows = database.execute(query).fetchall()
            pending = [(kind, journal_details(text).get("text", "")) for kind, text in rows]
            sound = None if size > most_bytes else _is_sound(database)
    except (sqlite3.Error, OSError, TypeError) as error:
        raise StoreLost(
            f"{path} cannot be read: {error}",
            cause="it is damaged, not a database of pvebench, or belongs to another user",
            next_step="stop pvebench, then restore a backup with `pvebench restore`",
        ) from error
    return StoreSummary(size_bytes=size, sound=sound, pending=pending, current=revision == (HEAD,))


@contextmanager
def engine_at(path: Path) -> Iterator[Engine]:
    """Yield the database at `path`, read-only."""
    engine = create_engine(f"sqlite:///{path}", creator=lambda: connect_read_only(path))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def stored_at(path: Path) -> Iterator[StoredResults | None]:
    """Yield the results at `path` for reading; None: no database with the current schema.

    Raises:
        StoreLost: it is damaged, or not a database. StoreError: it cannot be read now.
    """
    summary = summarize_store(path, most_bytes=0)
    if summary is None or not summary.current:
        yield None
        return
    with engine_at(path) as engine:
        yield StoredResults(engine)


def _is_sound(database: sqlite3.Connection) -> bool:
    return database.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
