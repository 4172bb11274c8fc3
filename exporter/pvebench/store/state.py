"""The state directory: results, lock and sockets of one instance."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pvebench.errors import AlreadyRunning, NotWritable
from pvebench.files import RUNTIME

_PAUSE: Final = "paused"
"""File whose presence is the wish for a pause; its text is the reason."""


_TRIES: Final = 100
_BETWEEN_SECONDS: Final = 0.01


class StateDirectory:
    """An opened state directory.

    `exclusive` takes the lock that keeps a second instance out; it is released by the kernel
    when the process ends, however it ends.
    """

    def __init__(self, path: Path, *, exclusive: bool) -> None:
        self.path = path
        self._lock_fd: int | None = None
        self._directory_fd: int | None = None
        self._make()
        if exclusive:
            self._lock()

    @property
    def database(self) -> Path:
        """Path of the results database."""
        return self.path / "pvebench.db"

    @property
    def runtime(self) -> Path:
        """Directory of sockets and logs of running VMs."""
        return self.path / RUNTIME

    def pause(self, reason: str) -> None:
        """Ask the instance that uses this directory to measure nothing until `resume`."""
        try:
            (self.path / _PAUSE).write_text(f"{reason}\n", "utf-8")
        except OSError as error:
            raise self._not_writable(error) from error

    def resume(self) -> bool:
        """End the pause; return whether there was one."""
        there = (self.path / _PAUSE).exists()
        (self.path / _PAUSE).unlink(missing_ok=True)
        return there

    def pause_reason(self) -> str:
        """Return why nothing is to be measured, empty if there is no pause."""
        try:
            return (self.path / _PAUSE).read_text("utf-8").strip() or "paused"
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{self.path / _PAUSE} cannot be read: {error.strerror}"

    def holder(self) -> int:
        """Return the process that uses this directory; 0: none does."""
        return holder_of(self.path)

    def _make(self) -> None:
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
            next_step="choose another with --state, or mend the permissions",
        )

    def _lock(self) -> None:
        try:
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            _take(fd)
            self._lock_directory()
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise AlreadyRunning(
                f"another pvebench (process {holder}) uses state directory {self.path}",
                next_step="stop it, or start this one with another --state",
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _lock_directory(self) -> None:
        """Lock the directory too: its file may be removed, and then anybody gets a new one."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise
        except OSError:
            os.close(fd)  # some network file systems lock files only
        else:
            self._directory_fd = fd

    def close(self) -> None:
        """Release the lock."""
        for fd in (self._directory_fd, self._lock_fd):
            if fd is not None:
                os.close(fd)
        self._directory_fd = self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _take(fd: int) -> None:
    """Lock the file; wait a second, for one that asks who uses it locks it for a moment too.

    Raises:
        BlockingIOError: another process keeps it.
    """
    for left in reversed(range(_TRIES + 1)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_BETWEEN_SECONDS)
        else:
            return


def holder_of(path: Path) -> int:
    """Return the process that uses the state directory at `path`; 0: none does, or it is absent."""
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)
    return 0
