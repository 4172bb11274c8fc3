"""Bounded reading of files, and removal of directories."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from pvebench.errors import ConfigError, MachineError, Problem
from pvebench.log import log
from pvebench.model.units import MIB, show_bytes

# --- files of users: regular, of bounded size, UTF-8; secrets; changes

MAX_BYTES: Final = MIB
"""Maximum size of a text file; far more than is written by hand."""
_SECRET_BYTES: Final = 64 * 1024

RUNTIME: Final = "run"
"""Folder of a state directory that holds the sockets and logs of running VMs."""
MOUNTINFO: Final = Path("/proc/self/mountinfo")


def read_text(path: Path, *, most: int = MAX_BYTES, encoding: str = "utf-8") -> str:
    """Return a file's text.

    Args:
        most: maximum bytes.

    Raises:
        ConfigError: it cannot be read, is not a regular file (a pipe may never end), is larger, or
            is neither UTF-8 nor UTF-16 with its mark.
    """
    try:
        content = _content(path, most)
        marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = content.decode("utf-16" if marked else encoding)
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start + 1})"
        step = f"if a spreadsheet wrote it, run: iconv -f WINDOWS-1252 -t UTF-8 {path} > new"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=step) from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError([Problem(str(path), 0, 0, message)]) from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError([Problem(str(path), 0, 0, f"cannot be read: {error}")]) from error
    if "\0" in text[:1000]:
        step = f"if it is UTF-16, run: iconv -f UTF-16LE -t UTF-8 {path} > new"
        raise ConfigError([Problem(str(path), 0, 0, "not text: it has NULs")], next_step=step)
    return text


@contextlib.contextmanager
def open_regular(path: Path, *, flags: int = 0) -> Iterator[BinaryIO]:
    """Open a regular file, for reading unless `flags` says otherwise. Raises OSError."""
    # Opening a pipe without a writer would block forever.
    fd = os.open(path, os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, "Is a directory")
        raise OSError(22, "not a regular file")
    with os.fdopen(fd, "rb") as file:
        yield file


def _content(path: Path, most: int, *, flags: int = 0) -> bytes:
    with open_regular(path, flags=flags) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(27, f"larger than {show_bytes(most)}")
    return content


def read_tail(path: Path, most: int) -> str:
    """Return the text of a file's last `most` bytes; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def read_secret(path: Path) -> str:
    """Return the content of a secret file, without surrounding white space and byte order mark.

    Raises:
        ConfigError, OSError: as `read_text` and `check_secret`.
    """
    check_secret(path)
    return read_text(path, most=_SECRET_BYTES, encoding="utf-8-sig").strip()


def check_secret(path: Path) -> None:
    """Check the permissions of a secret file, as ssh does for its keys.

    A file of this process's user is rejected if others can read it. For a file of another user,
    whose mode this process cannot change, there is only a warning; none if the file is a mount
    point: containers get their secrets that way, and the mount decides who can read them.

    Raises:
        ConfigError: this process's user owns it and its group or others can read it.
        OSError: its status cannot be read.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid() and mode & 0o077:
        message = f"secret file is accessible to other users (mode {mode:04o})"
        raise ConfigError([Problem(str(path), 0, 0, message)], next_step=f"chmod 600 {path}")
    if is_open(path):
        log.warning(
            "secret file is world-readable",
            file=str(path),
            mode=f"{mode:04o}",
            next_step=f"chmod o= {path}",
        )


def is_open(path: Path) -> bool:
    """Return whether every user of this machine can read or change a file. Raises OSError."""
    return bool(path.stat().st_mode & 0o007) and not _is_mount(path)


def _is_mount(path: Path) -> bool:
    # os.path.ismount handles directories only.
    where = os.path.realpath(path)
    return any(mount.point == where for mount in mounts())


def give_to_owner(fd: int, directory: Path) -> None:
    """As root, give a new file to its directory's owner, which may be a service's user."""
    if os.geteuid() == 0:
        status = directory.stat()
        with contextlib.suppress(PermissionError):  # root of a container, or of an NFS client
            os.fchown(fd, status.st_uid, status.st_gid)


# --- small files of the state directory, in which another user may put links, pipes and devices

_OWN_BYTES: Final = 64 * 1024


def read_own(path: Path) -> str:
    """Return the text of a small regular file, never through a link. Raises OSError."""
    return _content(path, _OWN_BYTES, flags=os.O_NOFOLLOW).decode("utf-8", "replace")


def write_own(path: Path, text: str) -> None:
    """Replace a small file, never through a link, even if the machine stops. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with new.open("x", encoding="utf-8") as file:
        give_to_owner(file.fileno(), path.parent)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


Signature = tuple[tuple[int, ...], ...]


def signature(paths: Iterable[Path]) -> Signature:
    """Return a value that differs after a file was changed, created or removed."""
    return tuple(_state(path) for path in paths)


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def remove_tree(path: Path) -> None:
    """Remove a directory with its content, but never through a link or across a mount.

    Raises:
        MachineError: a file system is mounted at or below `path`, and nothing was removed; or
            something is left.
    """
    if path.is_symlink() or not path.exists():
        return
    if mounted := mounted_below(path):
        raise MachineError(
            f"{path} not removed: a file system is mounted at {mounted[0]}",
            cause="mounted by hand; its files do not belong to pvebench",
            next_step=f"run `umount {mounted[0]}`, then run the command again",
        )
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise MachineError(
            f"{path} not removed completely",
            cause="its file system is read-only or failing, or another program writes there",
            next_step="check the kernel log with `dmesg`, then run `pvebench cleanup`",
        )


def mounted_below(path: Path) -> list[Path]:
    """Return the mount points at or below a directory, from the kernel's list."""
    top = path.resolve()
    points = [Path(mount.point) for mount in mounts()]
    return [point for point in points if point == top or top in point.parents]


class Mount(NamedTuple):
    """A line of mountinfo, see proc_pid_mountinfo(5); `options` are escaped."""

    number: str
    device: str
    point: str
    type: str
    source: str
    options: str


_MOUNT: Final = re.compile(
    r"^(\d+) \d+ (\d{1,4}:\d{1,7}) \S+ ([^ \n]+) [^\n]*? - (\S+) ([^ \n]*) ([^ \n]*)", re.MULTILINE
)


def mounts(mountinfo: str | None = None) -> list[Mount]:
    """Return the mounts of this process, or of a mountinfo; a later one covers an earlier one."""
    if mountinfo is None:
        mountinfo = os.fsdecode(MOUNTINFO.read_bytes())  # names may have any byte but a newline
    lines = _MOUNT.finditer(mountinfo)
    return [Mount._make([*map(unescaped, line.groups()[:5]), line[6]]) for line in lines]


def unescaped(text: str) -> str:
    r"""Decode a word of mountinfo, which writes blanks and backslashes as `\040` and `\134`."""
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)
