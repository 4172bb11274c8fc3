"""Copies of the database: before a migration, daily, and back again."""

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

FOLDER: Final = "backups"
"""Beside the database."""
_STAMP: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of the whole database, in one file."""

    path: Path
    made: datetime
    size_bytes: int


def copy_database(path: Path, copy: Path) -> None:
    """Copy the database at `path`, which may be in use, to `copy`: one file, durable on return.

    The copy is complete or absent.

    Raises:
        OSError, sqlite3.Error: it cannot be read, or not written.
    """
    part = copy.with_name(f"{copy.name}.part")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")
    shutil.copymode(path, part)
    _sync(part)
    part.replace(copy)
    _sync(copy.parent)


def backups_of(database: Path) -> list[Backup]:
    """Return the daily copies of a database, the newest first."""
    found = []
    for path in (database.parent / FOLDER).glob(f"{database.stem}-*.db"):
        stamp = path.stem.removeprefix(f"{database.stem}-")
        try:
            made = datetime.strptime(f"{stamp}+0000", f"{_STAMP}%z")
        except ValueError:
            continue  # somebody else's file
        found.append(Backup(path, made, path.stat().st_size))
    return sorted(found, key=lambda one: one.made, reverse=True)


def back_up(database: Path, now: datetime, *, keep: int, room_bytes: int) -> Backup:
    """Copy a database that is in use, then remove the oldest copies; return the new one.

    Copies that are dated later than `now` count as older than all others.

    Args:
        keep: how many copies stay, at least one.
        room_bytes: how much they may take together; the newest stays however large it is.

    Raises:
        StoreError: it could not be copied; the older copies are as they were.
    """
    folder = database.parent / FOLDER
    copy = folder / f"{database.stem}-{now.astimezone(UTC):{_STAMP}}.db"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in folder.glob("*.part*"):
            left.unlink()
        _need_room(database, folder)
        copy_database(database, copy)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{database} cannot be copied to {copy}: {error}",
            cause="the file system is full or read-only",
            next_step=f"make room in {folder}, or set keep_backups to 0",
        ) from error
    # A copy of a clock that was ahead would be the newest for years: those go first.
    kept = sorted(backups_of(database), key=lambda one: one.made > now)
    taken = 0
    for number, one in enumerate(kept, start=1):
        taken += one.size_bytes
        if number > 1 and (number > keep or taken > room_bytes):
            one.path.unlink()
    return kept[0]


def _need_room(database: Path, folder: Path) -> None:
    """Leave as much free as the copy takes: the database itself must go on growing."""
    needed = 2 * database.stat().st_size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{free} bytes are free, a copy is made with {needed}")


def restore(database: Path, copy: Path, now: datetime) -> Path | None:
    """Put a copy in the place of the database; return where the old one is kept.

    Nobody may have the database open. The copy itself stays where it is.

    Raises:
        StoreError: the copy is damaged, or cannot be put there; the database is as it was.
    """
    kept = database.with_name(f"{database.name}.replaced-{now.astimezone(UTC):{_STAMP}}")
    fresh = database.with_name(f"{database.name}.restored")
    try:
        if faults := _faults_of(copy):
            raise StoreError(
                f"{copy} is damaged: {faults}", next_step="try an older one: pvebench restore"
            )
        copy_database(copy, fresh)
        there = database.exists()
        for suffix in ("", "-wal", "-shm"):
            old = database.with_name(f"{database.name}{suffix}")
            if old.exists():
                old.replace(kept.with_name(f"{kept.name}{suffix}"))
        fresh.replace(database)
        _sync(database.parent)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{copy} cannot be put in the place of {database}: {error}",
            cause="it is no database, or the file system is full or read-only",
            next_step="choose another copy: pvebench restore",
        ) from error
    return kept if there else None


def _faults_of(path: Path) -> str:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        lines = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
    return "" if lines == ["ok"] else "; ".join(lines)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
