"""Lock of a state directory, proof of the process that holds it, and its binding to a machine.

A number in a file proves nothing: the process may have ended, its ID may be reused, or it may run
on another machine or in another container. So the holder records its start and its place, and the
kernel's list of locks must name it when it is signaled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import signal
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench.drivers.storages.contract import bound_id
from pvebench.errors import AlreadyRunning
from pvebench.files import give_to_owner
from pvebench.log import log
from pvebench.model.units import whole_number

FILE: Final = "lock"
_TRIES: Final = 100
_BETWEEN_SECONDS: Final = 0.01
_MAX_BYTES: Final = 512
_PROC: Final = Path("/proc")
_STARTED: Final = 19
"""Position of the start in /proc/PID/stat, counted from the field behind the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Process that holds a lock, as it recorded itself.

    Attributes:
        pid: its ID in its PID namespace; 0: unknown.
        started: its start in clock ticks since the boot.
        place: boot and PID namespace.
        host: name of its machine.
    """

    pid: int
    started: str = ""
    place: str = ""
    host: str = ""

    def record(self) -> bytes:
        """Return the content of the lock file."""
        return f"{self.pid} {self.started} {self.place} {self.host}\n".encode()


class InstanceLock:
    """Exclusive lock of a state directory and of its instance's ID, until `close`.

    Raises:
        AlreadyRunning: another process has the directory or a copy of it, or the directory belongs
            to another machine.
        NotWritable: the instance ID is damaged. OSError: the lock cannot be created.
    """

    def __init__(self, path: Path, *, adopt: bool = False) -> None:
        with contextlib.ExitStack() as stack:
            fd = _open(path)
            stack.callback(os.close, fd)
            try:
                _take(fd)
                _lock_directory(path, stack)
            except BlockingIOError as error:
                raise _in_use(path, _recorded(fd)) from error
            _report_other_owner(path)
            stack.enter_context(_hold_id(bound_id(path, adopt=adopt), path))
            os.ftruncate(fd, 0)
            os.pwrite(fd, _this_process().record(), 0)
            self._held = stack.pop_all()

    def close(self) -> None:
        """Release the lock."""
        self._held.close()


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path / FILE, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{FILE} is not a regular file")
    give_to_owner(fd, path)
    return fd


def _take(fd: int) -> None:
    """Lock the file; retry for a second, since `holder_of` locks it for a moment too.

    Raises:
        BlockingIOError: another process holds the lock.
    """
    for remaining in reversed(range(_TRIES + 1)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not remaining:
                raise
            time.sleep(_BETWEEN_SECONDS)
        else:
            return


def _lock_directory(path: Path, stack: contextlib.ExitStack) -> None:
    """Lock the directory too: after the lock file is removed, a process can lock a new one."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError):
            raise  # other errors: some network file systems lock only files


def _hold_id(instance: str, path: Path) -> socket.socket:
    """Return a socket whose name only one process of this machine can have."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0pvebench-{instance}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise AlreadyRunning(
            f"the instance of state directory {path} runs already, with another directory",
            cause="one of the two directories is a copy of the other",
            next_step="stop it (`pgrep -a pvebench`), and keep only one of the directories",
        ) from error
    return holder


def _report_other_owner(path: Path) -> None:
    owner = path.stat().st_uid
    if owner == os.geteuid():
        return
    name = str(owner)
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(owner).pw_name
    log.warning(
        "state directory belongs to another user",
        directory=str(path),
        owner=name,
        next_step=f"use `runuser -u {name} -- pvebench`, or that user's service may not start",
    )


# --- the holder, and the proof that it is one


def holder_of(path: Path) -> int:
    """Return the process that uses the state directory at `path`; 0: none, or it is absent."""
    holder = recorded_holder(path)
    return holder.pid if holder else 0


def recorded_holder(path: Path) -> Holder | None:
    """Return the holder of the lock of `path`, as recorded; None: it is free."""
    try:
        fd = os.open(path / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _recorded(fd)
    finally:
        os.close(fd)
    return None


def _recorded(fd: int) -> Holder:
    text = os.pread(fd, _MAX_BYTES, 0).decode("utf-8", "replace")
    pid, started, place, host, *_ = [*text.split(), "", "", "", ""]
    number = whole_number(pid) if len(pid) <= len("4194304") else None
    return Holder(pid=number or 0, started=started, place=place, host=host)


def _this_process() -> Holder:
    pid, host = os.getpid(), socket.gethostname() or "unknown"
    return Holder(pid=pid, started=_start_of(pid), place=_place(), host=host)


def _place() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


def _start_of(pid: int) -> str:
    """Return the start of a process; empty: it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[_STARTED]


def _in_use(path: Path, holder: Holder) -> AlreadyRunning:
    elsewhere = f" on {holder.host}" if holder.place not in {"", _place()} else ""
    return AlreadyRunning(
        f"state directory {path} is in use by process {holder.pid or 'unknown'}{elsewhere}",
        cause="another pvebench is running",
        next_step="stop it, or choose another state directory with --state",
    )


def stop_holder(path: Path) -> int:
    """Send SIGTERM to the process that holds the lock of `path`; return its ID, 0: none.

    The descriptor is opened first, so that the checked process is the signaled one even if its ID
    is reused.

    Raises:
        AlreadyRunning: it runs elsewhere, or nothing proves that it is the holder.
    """
    holder = recorded_holder(path)
    if holder is None:
        return 0
    if holder.place and holder.place != _place():
        raise AlreadyRunning(
            f"process {holder.pid} on {holder.host} not stopped: it uses {path} from there",
            cause="it runs on another machine or in another container",
            next_step=f"run `pvebench abort` on {holder.host}, where it runs",
        )
    if _signaled(holder, path):
        return holder.pid
    if recorded_holder(path) != holder:
        return 0  # it has ended in between
    raise AlreadyRunning(
        f"process {holder.pid} not stopped: nothing proves that it holds {path / FILE}",
        cause="another program locked the file, or its content is damaged",
        next_step=f"find the program with `fuser -v {path / FILE}`",
    )


def _signaled(holder: Holder, path: Path) -> bool:
    """Send SIGTERM to the holder if it is proved; return whether it was sent."""
    try:
        with os.fdopen(os.pidfd_open(holder.pid), "rb", 0) as process:
            if not holds_lock(holder, path):
                return False
            signal.pidfd_send_signal(process.fileno(), signal.SIGTERM)
    except PermissionError as error:
        raise AlreadyRunning(
            f"process {holder.pid} not stopped: {error.strerror}",
            cause="it belongs to another user, or this container may not signal it",
            next_step="run the command as root or as the user of that process",
        ) from error
    except OSError:  # it is gone, or the number is none
        return False
    return True


def holds_lock(holder: Holder, path: Path) -> bool:
    """Return whether a process of this machine is the recorded pvebench and has the lock."""
    try:
        command = (_PROC / str(holder.pid) / "cmdline").read_bytes()
        locks = (_PROC / "locks").read_text("ascii")
        file = (path / FILE).lstat()
    except OSError:
        return False
    # Without the interpreter: that of any program may be in a directory of this name.
    _, _, arguments = command.partition(b"\0")
    if b"pvebench" not in arguments or _start_of(holder.pid) != holder.started:
        return False
    # btrfs and overlay show another device there, whose major number is 0 here.
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    fields = [line.split()[1:6] for line in locks.splitlines()]
    return any(
        found[:4] == ["FLOCK", "ADVISORY", "WRITE", str(holder.pid)]
        and found[4].rpartition(":")[2] == str(file.st_ino)
        and (os.major(file.st_dev) == 0 or found[4].rpartition(":")[0] == device)
        for found in fields
    )
