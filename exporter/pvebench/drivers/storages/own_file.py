"""Files that volumes are: made where nothing is, never through a link, and known again.

A path may come to mean something else: a link to another file, a device, another volume. So a
file is looked at through a descriptor that follows no link, and compared with what was made.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pvebench.drivers.storages.contract import MARK
from pvebench.errors import VolumeError
from pvebench.model.ports import Journal

# Without O_NONBLOCK a pipe with that name would be waited for.
_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A regular file as it was made: its path, and which one it is."""

    path: Path
    device: int
    inode: int

    def check(self) -> None:
        """Raise VolumeError unless the path still leads to this very file, and not by a link."""
        if _look(self.path) != self:
            raise _changed(self.path, "is another file than the one that was made")


def make_file(path: Path, journal: Journal, kind: str) -> tuple[OwnFile, int]:
    """Make an empty file where nothing is; return it and the number of its journal entry.

    Raises:
        VolumeError: something is there, or it cannot be made; nothing was changed.
    """
    entry = journal.open(kind, {"path": str(path)})
    try:
        os.close(os.open(path, _MAKE, 0o644))
        return _look(path), entry
    except OSError as error:
        journal.close(entry)
        there = error.errno == errno.EEXIST
        raise VolumeError(
            f"{path} cannot be made: {error.strerror}",
            cause="somebody else put it there just now" if there else "",
            next_step="look at it, and remove it if nobody needs it"
            if there
            else "mend the permissions of its directory, or name another path in the settings",
        ) from error


def _look(path: Path) -> OwnFile:
    try:
        fd = os.open(path, _LOOK)
    except OSError as error:
        link = error.errno == errno.ELOOP
        what = "is a symbolic link now" if link else f"cannot be opened: {error.strerror}"
        raise _changed(path, what) from error
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(found.st_mode):
        raise _changed(path, "is no regular file now")
    return OwnFile(path, found.st_dev, found.st_ino)


def _changed(path: Path, what: str) -> VolumeError:
    return VolumeError(
        f"volume {path} {what}; it is left alone",
        cause="somebody removed, replaced or moved it while pvebench had it",
        next_step="look at it, remove it if nobody needs it, and start pvebench anew",
    )


def remove_marked(path: Path) -> None:
    """Remove a volume's file, or a link with its name, but only if that carries our mark."""
    if path.name.startswith(MARK):
        path.unlink(missing_ok=True)
