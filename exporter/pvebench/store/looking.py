"""A look at a database from outside: whoever has it open is not disturbed, nothing is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, create_engine

from pvebench.errors import StoreLost
from pvebench.store.numbers import Numbers
from pvebench.store.outbox import Outbox
from pvebench.store.records import Number
from pvebench.store.storage_identities import StorageIdentities
from pvebench.store.tables import HEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen.

    Attributes:
        size_bytes: with the log of what is not yet in the file.
        sound: whether SQLite's `quick_check` found nothing; None: it was too large to look through.
        pending: changes on the machine that are begun and not undone.
        current: whether it has the layout of this pvebench.
    """

    size_bytes: int
    sound: bool | None
    pending: int
    current: bool


def look_at(path: Path, *, most_bytes: int) -> Looked | None:
    """Return what is seen of the database at `path`; None: there is none.

    Args:
        most_bytes: a larger one is not looked through.

    Raises:
        StoreLost: it is damaged, or no database.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    except FileNotFoundError:
        return None
    try:
        with closing(_connect(path)) as database:
            revision = database.execute("SELECT version_num FROM alembic_version").fetchone()
            query = "SELECT count(*) FROM journal WHERE closed IS NULL"
            pending = int(database.execute(query).fetchone()[0])
            sound = None if size > most_bytes else _is_sound(database)
    except (sqlite3.Error, OSError, TypeError) as error:
        raise StoreLost(
            f"{path} cannot be read: {error}",
            cause="it is damaged, no database of pvebench, or somebody else's file",
            next_step="end pvebench and put a copy in its place: pvebench restore",
        ) from error
    return Looked(size_bytes=size, sound=sound, pending=pending, current=revision == (HEAD,))


@contextmanager
def outbox_at(path: Path) -> Iterator[Outbox]:
    """Yield the messages of the database at `path`, which has the layout of this pvebench.

    Raises:
        StoreError: they cannot be read.
    """
    with _engine_at(path) as engine:
        yield Outbox(engine)


def damaged_blocks_at(path: Path, wanted: Sequence[Number]) -> list[int]:
    """Return the damaged number blocks of the database at `path`, of the layout of this pvebench.

    Raises:
        StoreError: they cannot be read.
    """
    with _engine_at(path) as engine:
        return Numbers(engine).damaged(wanted)


@contextmanager
def _engine_at(path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}", creator=lambda: _connect(path))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def identities_at(path: Path) -> Iterator[StorageIdentities | None]:
    """Yield which storage each name stands for; None: no database of this layout is at `path`.

    Raises:
        StoreLost: it is damaged, or no database. StoreError: it cannot be read now.
    """
    looked = look_at(path, most_bytes=0)
    if looked is None or not looked.current:
        yield None
        return
    engine = create_engine(f"sqlite:///{path}", creator=lambda: _connect(path))
    try:
        yield StorageIdentities(engine)
    finally:
        engine.dispose()


def _connect(path: Path) -> sqlite3.Connection:
    # Without a log nobody writes, and SQLite need not make one to read.
    how = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)


def _is_sound(database: sqlite3.Connection) -> bool:
    return database.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
