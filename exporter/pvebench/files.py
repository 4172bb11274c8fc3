"""The body of an HTTP answer, within a bound and a time: a server may send for ever, or drip."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import structlog

from pvebench.errors import ConfigError, MachineError, Problem
from pvebench.model.units import MIB, show_bytes

# --- Reading a file that somebody else wrote: regular, of bounded size, UTF-8; secrets; changes.

MOST_BYTES: Final = MIB
"""Far more than anybody writes by hand."""
_SECRET_BYTES: Final = 64 * 1024

RUNTIME: Final = "run"
"""Folder of a state directory that holds the sockets and logs of running VMs."""
_MOUNTS: Final = Path("/proc/self/mountinfo")

log = structlog.get_logger()


def read_text(path: Path, *, most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """Return a file's text.

    Args:
        most: bytes that it may have.

    Raises:
        ConfigError: it cannot be read, is no regular file (a pipe may never end), is larger, or
            is not UTF-8.
    """
    try:
        content = _content(path, most)
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start + 1})"
        step = f"iconv -f WINDOWS-1252 -t UTF-8 {path} > new, if a spreadsheet wrote it"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError([Problem(str(path), 0, 0, message)]) from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error}")]) from error


def _content(path: Path, most: int) -> bytes:
    # Opening a pipe that nobody writes to would wait for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(21, "Is a directory")
        if not stat.S_ISREG(found.st_mode):
            raise OSError(22, "it is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(27, f"it is larger than {show_bytes(most)}")
    return content


def read_secret(path: Path) -> str:
    """Return the text of a file that holds a secret, without white space around it.

    Raises:
        ConfigError, OSError: as of `read_text` and `check_secret`.
    """
    check_secret(path)
    return read_text(path, most=_SECRET_BYTES).strip()


def check_secret(path: Path) -> None:
    """Look who else can read a file that holds a secret; as ssh does with its keys.

    A file of our own is refused when others can read it. About somebody else's, which we could
    not change, there is a warning, but not where it is mounted by itself: so containers get
    their secrets, and who reads them there is up to the mount.

    Raises:
        ConfigError: it is our own and its group or others can read it.
        OSError: it cannot be looked at.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & 0o077:
        message = f"holds a secret, and others can read or change it (mode {mode:04o})"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=f"chmod 600 {path}")
    if is_open(path):
        log.warning(
            "a file with a secret can be read by everybody",
            file=str(path),
            mode=f"{mode:04o}",
            next_step=f"chmod o= {path}",
        )


def is_open(path: Path) -> bool:
    """Tell whether everybody on this machine may read or change a file. Raises OSError."""
    return bool(path.stat().st_mode & 0o007) and not _is_mount(path)


def _is_mount(path: Path) -> bool:
    # os.path.ismount knows directories only.
    where = os.path.realpath(path)
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    places = (line.split(" ")[4] for line in mounts.splitlines())
    return any(place.replace("\\040", " ") == where for place in places)


Signature = tuple[tuple[int, ...], ...]


def signature(paths: Iterable[Path]) -> Signature:
    """Return what is another value when one of the files is changed, comes or goes."""
    return tuple(_state(path) for path in paths)


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def remove_tree(path: Path) -> None:
    """Remove a directory with its content, never through a link or across a mount.

    Raises:
        MachineError: a file system is mounted at or below `path`; nothing was removed.
    """
    if path.is_symlink() or not path.exists():
        return
    if mounted := mounted_below(path):
        raise MachineError(
            f"{path} is not removed: a file system is mounted at {mounted[0]}",
            cause="it was mounted there by hand; its files are not pvebench's",
            next_step=f"umount {mounted[0]}, then run the command again",
        )
    shutil.rmtree(path, ignore_errors=True)


def mounted_below(path: Path) -> list[Path]:
    """Return the mount points at or below a directory, by the kernel's own list."""
    top = path.resolve()
    points = [Path(_unescaped(line.split()[4])) for line in _MOUNTS.read_text("utf-8").splitlines()]
    return [point for point in points if point == top or top in point.parents]


def _unescaped(text: str) -> str:
    r"""Return a path of mountinfo, which writes blanks and backslashes as `\040` and `\134`."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)


_PIECE: Final = 65536


class ResponseTooLarge(OSError):
    """An answer was broken off; the text says what it was more than."""


class Body(Protocol):
    """What comes after the head; `http.client.HTTPResponse` is one."""

    def read1(self, n: int = -1, /) -> bytes:
        """Return at most `n` bytes as soon as there are some; nothing at the end."""


def read_body(answer: Body, *, most: int, seconds: float) -> bytes:
    """Return all of it.

    Args:
        most: bytes that it may have. seconds: that it may take, all pieces together.

    Raises:
        EndlessAnswer: it has, or takes, more.
    """
    deadline = time.monotonic() + seconds
    found = bytearray()
    while piece := answer.read1(_PIECE):
        found += piece
        if len(found) > most or time.monotonic() > deadline:
            raise ResponseTooLarge(f"broken off: more than {show_bytes(most)}, or {seconds:.0f} s")
    return bytes(found)
