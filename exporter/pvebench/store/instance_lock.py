"""Lock of a state directory, and the proof which process holds it.

The kernel keeps the lock with the open file, and releases it when the process ends. Some network
file systems keep locks per machine: there the binding of a directory to one machine excludes
others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
from pathlib import Path
from typing import Final

from pvebench.drivers.clocks import SystemClock, attempts
from pvebench.drivers.storages.contract import bound_id
from pvebench.errors import AlreadyRunning
from pvebench.files import give_to_owner, open_regular
from pvebench.model.units import whole_number

FILE: Final = "lock"
_LOCK_SECONDS: Final = 1.0
Holder = tuple[int, str]
"""Process ID and host name of a process, as it recorded them in the lock file; 0: unknown."""


def lock_instance(path: Path, *, adopt: bool = False) -> contextlib.ExitStack:
    """Lock a state directory and the ID of its instance, until the result is closed.

    Raises:
        AlreadyRunning: another process has the directory or a copy of it, or the directory belongs
            to another machine.
        NotWritable: the instance ID is damaged. OSError: the lock cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(open_regular(path / FILE, flags=flags)).fileno()
        give_to_owner(fd, path)
        _take(fd, path)
        stack.enter_context(_hold_id(bound_id(path, adopt=adopt), path))
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        return stack.pop_all()


def _take(fd: int, path: Path) -> None:
    # `recorded_holder` locks it for a moment too.
    for _ in attempts(SystemClock(), seconds=_LOCK_SECONDS, pause=0.01):
        with contextlib.suppress(BlockingIOError):
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
    with contextlib.suppress(OSError), open_regular(path / FILE, flags=os.O_NOFOLLOW) as file:
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
    pid, reason = holder[0], f"nothing here proves that it holds {path / FILE}"
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
        next_step=f"run `pvebench abort` there, or find the process with `fuser -v {path / FILE}`",
    )


def holds_lock(pid: int, path: Path) -> bool:
    """Return whether a process is a pvebench with the lock; the kernel lists locks by open file.

    Raises:
        OSError: it has ended, or belongs to another user.
    """
    process, lock = Path(f"/proc/{pid}"), (path / FILE).lstat()
    # Without the interpreter: that of any program may be in a directory of this name.
    if b"pvebench" not in (process / "cmdline").read_bytes().partition(b"\0")[2]:
        return False
    for opened in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in between
            if os.path.samestat(opened.stat(), lock):
                kernel = (process / "fdinfo" / opened.name).read_text("ascii").split()
                if {"FLOCK", "WRITE"} <= {*kernel}:
                    return True
    return False
