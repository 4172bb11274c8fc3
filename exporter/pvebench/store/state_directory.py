"""State directory: its lock, and reading a database that another process may have open."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sqlalchemy import Engine, create_engine

from pvebench.config.settings import DATABASE
from pvebench.drivers.clocks import SystemClock, attempts
from pvebench.drivers.storages.contract import bound_id
from pvebench.errors import AlreadyRunning, NotWritable, StoreLost
from pvebench.files import RUNTIME, give_to_owner, open_regular, read_own, write_own
from pvebench.log import log
from pvebench.model.units import whole_number
from pvebench.store.backups import connect_read_only
from pvebench.store.engine import schema_of
from pvebench.store.journal import journal_details
from pvebench.store.stored_results import StoredResults
from pvebench.store.tables import SCHEMA

# --- Lock: one instance per state directory, and a directory per machine.

LOCK_FILE: Final = "lock"
_LOCK_SECONDS: Final = 1.0
Holder = tuple[int, str]
"""Process ID and host name of a process, as it recorded them in the lock file; 0: unknown."""


def lock_instance(path: Path, *, adopt: bool = False) -> ExitStack:
    """Lock a state directory and the ID of its instance, until the result is closed.

    Raises:
        AlreadyRunning: another process has the directory or a copy of it, or the directory belongs
            to another machine.
        NotWritable: the instance ID is damaged. OSError: the lock cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with ExitStack() as stack:
        fd = stack.enter_context(open_regular(path / LOCK_FILE, flags=flags)).fileno()
        give_to_owner(fd, path)
        _take(fd, path)
        stack.enter_context(_hold_id(bound_id(path, adopt=adopt), path))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        return stack.pop_all()


def _take(fd: int, path: Path) -> None:
    # `recorded_holder` locks it for a moment too.
    for _ in attempts(SystemClock(), seconds=_LOCK_SECONDS, pause=0.01):
        with suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    pid, host = _recorded(fd)
    raise _in_use(path, f"process {pid or 'unknown'} on {host}")


def _hold_id(instance: str, path: Path) -> socket.socket:
    """Return a socket whose name only one process of this machine can have."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0pvebench-{instance}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise _in_use(path, "a process that runs with a copy of it") from error
    return holder


def _in_use(path: Path, process: str) -> AlreadyRunning:
    return AlreadyRunning(
        f"state directory {path} is in use by {process}",
        cause="another pvebench is running",
        next_step="stop it (`pgrep -a pvebench`), or choose another state directory with --state",
    )


def _recorded(fd: int) -> Holder:
    pid, host = [*os.pread(fd, 512, 0).decode("utf-8", "replace").split(), "", ""][:2]
    number = whole_number(pid) if len(pid) <= len("4194304") else None
    return number or 0, host or "an unknown host"


def recorded_holder(path: Path) -> Holder | None:
    """Return the holder of the lock of `path`, as recorded; None: it is free."""
    with suppress(OSError), open_regular(path / LOCK_FILE, flags=os.O_NOFOLLOW) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _recorded(file.fileno())
    return None


def holder_of(path: Path) -> int:
    """Return the process that uses the state directory at `path`; 0: none, or it is absent."""
    return (recorded_holder(path) or (0, ""))[0]


def stop_holder(path: Path) -> int:
    """Send SIGTERM to the process that holds the lock of `path`; return its ID, 0: none.

    Raises:
        AlreadyRunning: nothing on this machine proves that the recorded process is the holder.
    """
    holder = recorded_holder(path)
    if holder is None:
        return 0
    pid, reason = holder[0], f"nothing here proves that it holds {path / LOCK_FILE}"
    try:
        # Opened first: the checked process is the signaled one even if its ID is reused.
        with os.fdopen(os.pidfd_open(pid), "rb", 0) as process:
            if holds_lock(pid, path):
                signal.pidfd_send_signal(process.fileno(), signal.SIGTERM)
                return pid
    except PermissionError as error:
        reason = str(error.strerror)
    except OSError:  # it is gone, or the number is none
        pass
    if recorded_holder(path) != holder:
        return 0
    raise AlreadyRunning(
        f"process {pid} on {holder[1]} not stopped: {reason}",
        cause="it runs on another machine, in another container or as another user",
        next_step="run `pvebench abort` there, or find the process with "
        f"`fuser -v {path / LOCK_FILE}`",
    )


def holds_lock(pid: int, path: Path) -> bool:
    """Return whether a process is a pvebench with the lock; the kernel lists locks by open file.

    Raises:
        OSError: it has ended, or belongs to another user.
    """
    process, lock = Path(f"/proc/{pid}"), (path / LOCK_FILE).lstat()
    # Without the interpreter: that of any program may be in a directory of this name.
    if b"pvebench" not in (process / "cmdline").read_bytes().partition(b"\0")[2]:
        return False
    for opened in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed in between
            if os.path.samestat(opened.stat(), lock):
                kernel = (process / "fdinfo" / opened.name).read_text("ascii").split()
                if {"FLOCK", "WRITE"} <= {*kernel}:
                    return True
    return False


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
        current: whether it has the schema of this pvebench, not an older one.
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
        StoreLost: it is damaged, or not a database of pvebench. StoreTooNew: of a newer one.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
    except FileNotFoundError:
        return None
    try:
        with closing(connect_read_only(path)) as database:
            version = schema_of(path, lambda query: database.execute(query).fetchone())
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
    return StoreSummary(size_bytes=size, sound=sound, pending=pending, current=version == SCHEMA)


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
