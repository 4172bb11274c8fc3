"""Backups of the database, and their restoration."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pvebench.errors import StoreError
from pvebench.files import give_to_owner
from pvebench.log import log

FOLDER: Final = "backups"
"""Folder in the directory of the database."""
_STAMP: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup of the whole database, in one file."""

    path: Path
    made: datetime
    size_bytes: int


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a database that another process may have open."""
    # Without a log no process writes, and SQLite need not create one to read.
    access = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{access}", uri=True)


def copy_database(path: Path, copy: Path) -> None:
    """Copy the database at `path`, which may be in use, to `copy`: one file, durable on return.

    The copy is complete or absent.

    Raises:
        OSError, sqlite3.Error: the database cannot be read, or the copy not written.
    """
    part = copy.with_name(f"{copy.name}.part")
    part.unlink(missing_ok=True)  # SQLite would write through a link
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")
    shutil.copymode(path, part)
    _sync(part, owner=copy.parent)
    part.replace(copy)
    _sync(copy.parent)


def backups_of(database: Path) -> list[Backup]:
    """Return the daily backups of a database, newest first."""
    backups = []
    for path in (database.parent / FOLDER).glob(f"{database.stem}-*.db"):
        stamp = path.stem.removeprefix(f"{database.stem}-")
        try:
            made = datetime.strptime(f"{stamp}+0000", f"{_STAMP}%z")
        except ValueError:
            continue  # not a backup of pvebench
        backups.append(Backup(path, made, path.stat().st_size))
    return sorted(backups, key=lambda backup: backup.made, reverse=True)


def back_up(database: Path, now: datetime, *, keep: int, max_bytes: int) -> Backup:
    """Back up a database that is in use, then remove the oldest backups; return the new one.

    Backups dated later than `now` count as older than all others.

    Args:
        keep: how many backups stay, at least one.
        max_bytes: maximum size of all backups together; the newest stays whatever its size.

    Raises:
        StoreError: the backup failed; the older ones are unchanged.
    """
    folder = database.parent / FOLDER
    copy = folder / f"{database.stem}-{now.astimezone(UTC):{_STAMP}}.db"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for incomplete in folder.glob("*.part*"):
            incomplete.unlink()
        _check_space(database, folder)
        copy_database(database, copy)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"backup of {database} to {copy} failed: {error}",
            cause="the file system is full or read-only",
            next_step=f"free space in {folder}, or set keep_backups to 0",
        ) from error
    # A backup dated by a clock that was ahead would stay the newest for years: remove it first.
    kept = sorted(backups_of(database), key=lambda backup: backup.made > now)
    total_bytes = 0
    for number, backup in enumerate(kept, start=1):
        total_bytes += backup.size_bytes
        if number > 1 and (number > keep or total_bytes > max_bytes):
            backup.path.unlink()
    return kept[0]


def _check_space(database: Path, folder: Path) -> None:
    """Require twice the size of the backup: the database itself must be able to grow."""
    needed = 2 * database.stat().st_size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{needed} bytes needed, {free} bytes free")


def restore(database: Path, copy: Path, now: datetime) -> Path | None:
    """Replace the database with a backup; return where the old one is kept, None if it was absent.

    No process may have the database open. The backup itself stays where it is. Open journal entries
    of the old database are added, since objects that they list may exist on the machine.

    Raises:
        StoreError: the backup is damaged or cannot be restored; the database is unchanged.
    """
    kept = database.with_name(f"{database.name}.replaced-{now.astimezone(UTC):{_STAMP}}")
    fresh = database.with_name(f"{database.name}.restored")
    try:
        if faults := _faults_of(copy):
            raise StoreError(
                f"backup {copy} is damaged: {faults}",
                next_step="choose an older one with `pvebench restore`",
            )
        copy_database(copy, fresh)
        existed = database.exists()
        if existed:
            _add_open_entries(database, fresh)
        for suffix in ("", "-wal", "-shm"):
            old = database.with_name(f"{database.name}{suffix}")
            if old.exists():
                old.replace(kept.with_name(f"{kept.name}{suffix}"))
        fresh.replace(database)
        _sync(database.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"restoring {database} from {copy} failed: {error}",
            cause="the backup is not a database, or the file system is full or read-only",
            next_step="choose another backup with `pvebench restore`",
        ) from error
    return kept if existed else None


def _add_open_entries(old: Path, fresh: Path) -> None:
    """Add the journal entries that only `old` has open, as far as it can be read."""
    query = (
        "SELECT opened, kind, details FROM journal WHERE closed IS NULL"
        " AND typeof(opened) = 'real' AND typeof(kind) = 'text' AND typeof(details) = 'text'"
    )
    try:
        with closing(connect_read_only(old)) as connection:
            entries = set(connection.execute(query))
    except sqlite3.Error as error:
        log.warning(
            "journal of the replaced database cannot be read",
            reason=str(error),
            next_step="look for leftover volumes; with driver proxmox, use `cleanup --orphans`",
        )
        return
    with closing(sqlite3.connect(fresh)) as connection, connection:
        entries.difference_update(connection.execute(query))
        insert = "INSERT INTO journal (opened, kind, details) VALUES (?, ?, ?)"
        connection.executemany(insert, sorted(entries))


def _faults_of(path: Path) -> str:
    with closing(connect_read_only(path)) as connection:
        lines = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
    return "" if lines == ["ok"] else "; ".join(lines)


def _sync(path: Path, *, owner: Path | None = None) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if owner is not None:
            give_to_owner(fd, owner)
        os.fsync(fd)
    finally:
        os.close(fd)
