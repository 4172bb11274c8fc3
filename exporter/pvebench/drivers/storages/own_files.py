"""Files of volumes: created exclusively, never through a link, and verified before use.

A path may later lead to something else: a link to another file, a device, another volume. So a file
is opened without following links, and compared with the created one.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import MARK
from pvebench.errors import ToolsMissing, VolumeError
from pvebench.model.ports import Journal
from pvebench.model.units import MIB

# Without O_NONBLOCK, opening a pipe of that name would block.
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class OwnFile:
    """Path and identity of a regular file that pvebench created."""

    path: Path
    device: int
    inode: int

    def check(self) -> None:
        """Raise VolumeError unless the path still leads to this file, and not by a link."""
        if _identify(self.path) != self:
            raise changed(self.path, "was replaced by another file")


def make_file(path: Path, journal: Journal, kind: str) -> tuple[OwnFile, int]:
    """Create an empty file exclusively; return it and the number of its journal entry.

    Raises VolumeError: it exists, or cannot be created; nothing was changed.
    """
    entry = journal.open(kind, {"path": str(path)})
    try:
        return create_exclusively(path), entry
    except OSError as error:
        journal.close(entry)
        exists = error.errno == errno.EEXIST
        raise VolumeError(
            f"cannot create {path}: {error.strerror}",
            cause="it was just created outside pvebench" if exists else "",
            next_step="inspect it; remove it if you don't need it"
            if exists
            else "fix the permissions of its directory, or use another path in the settings",
        ) from error


def create_exclusively(path: Path) -> OwnFile:
    """Create an empty file that does not exist yet. Raises OSError."""
    os.close(os.open(path, _CREATE, 0o644))
    return _identify(path)


def _identify(path: Path) -> OwnFile:
    try:
        fd = os.open(path, _OPEN)
    except OSError as error:
        link = error.errno == errno.ELOOP
        what = "is now a symbolic link" if link else f"cannot be opened: {error.strerror}"
        raise changed(path, what) from error
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise changed(path, "is no longer a regular file")
    return OwnFile(path, status.st_dev, status.st_ino)


def changed(path: Path | str, what: str) -> VolumeError:
    """Return the error for a volume that is not the created one any more."""
    return VolumeError(
        f"volume {path} {what}; not changed",
        cause="removed, replaced or moved outside pvebench during its use",
        next_step="inspect it, remove it if you don't need it, and restart pvebench",
    )


def remove_marked(path: Path) -> None:
    """Remove a volume's file, or a link of its name, but only with the ownership marker.

    Raises VolumeError: it cannot be removed.
    """
    try:
        if path.name.startswith(MARK):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise VolumeError(
            f"cannot remove {path}: {error.strerror}",
            cause="its file system is read-only or failing, or something is mounted there",
            next_step="check the kernel log with `dmesg`, then run `pvebench cleanup`",
        ) from error


def remove_leftover(path: Path, journal: Journal) -> None:
    """Remove what an earlier attempt left: a link, or a file of the journal. Others stay."""
    if path.is_symlink() or str(path) in [details.get("path") for *_, details in journal.pending()]:
        remove_marked(path)


def write_random(path: Path, size_bytes: int) -> None:
    """Write a file of random bytes, durably. Raises OSError."""
    with path.open("wb") as file:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            file.write(os.urandom(min(_CHUNK_BYTES, size_bytes - start)))
        os.fsync(file.fileno())


def drop_page_cache(path: Path) -> int:
    """Write back and drop the host's page cache of a file; return the bytes still cached.

    Works without root: fsync cleans the pages, POSIX_FADV_DONTNEED drops clean ones.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise changed(path, f"cannot be opened: {error.strerror}") from error
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return cached_bytes(path)


def cached_bytes(path: Path) -> int:
    """Return the bytes of a file in the host's page cache, from util-linux's fincore.

    Raises ToolsMissing, VolumeError.
    """
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    try:
        done = run_program(command)
    except FileNotFoundError as error:
        raise ToolsMissing(
            "fincore is not installed, which reports the cached bytes of a volume",
            next_step="run `apt-get install util-linux-extra`",
        ) from error
    if done.returncode:
        raise VolumeError(f"fincore cannot inspect {path}: {done.stderr.strip()}")
    return int(done.stdout.strip() or 0)
