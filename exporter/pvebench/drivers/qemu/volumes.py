"""Test volumes in a directory of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from pvebench.drivers.qemu.blocks import create_options
from pvebench.errors import NoSpace, VolumeError
from pvebench.model.disk import Format
from pvebench.model.ports import Journal, Volume
from pvebench.model.units import MIB, show_bytes

MARK: Final = "pvebench-test-"
"""Every volume's file name starts so; nothing else is ever removed."""
RESERVE_BYTES: Final = 256 * MIB
"""Left free on the file system beside the volume."""
KIND: Final = "volume"
"""Kind of the journal entries made here."""


class DirectoryVolumes:
    """The volumes of one storage of kind `dir`."""

    def __init__(self, storage: str, directory: Path, journal: Journal, *, owner: str) -> None:
        self._storage = storage
        self._owner = owner
        self._directory = directory
        self._journal = journal
        self._entries: dict[str, int] = {}

    def create(self, kind: Format, size_bytes: int) -> Volume:
        """Return a new, unfilled volume.

        Raises:
            NoSpace: the file system could not hold it when it is full.
            VolumeError: it could not be made.
        """
        path = self._directory / f"{MARK}{self._owner}-{self._storage}.{kind}"
        self._check_directory()
        path.unlink(missing_ok=True)  # ours by its mark, left by a crash
        self._check_space(size_bytes)
        entry = self._journal.open(KIND, {"path": str(path)})
        command = ["qemu-img", "create", "-q", *create_options(kind), str(path), str(size_bytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            remove_marked(path)
            self._journal.close(entry)
            raise VolumeError(f"qemu-img could not create {path}: {done.stderr.strip()}")
        self._entries[str(path)] = entry
        return Volume(
            storage=self._storage, volid=str(path), format=str(kind), size_bytes=size_bytes
        )

    def remove(self, volume: Volume) -> None:
        """Remove a volume; one that is gone already is fine."""
        remove_marked(Path(volume.volid))
        entry = self._entries.pop(volume.volid, None)
        if entry is not None:
            self._journal.close(entry)

    def _check_directory(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VolumeError(
                f"storage {self._storage}: {self._directory} cannot be made: {error.strerror}"
            ) from error
        if not os.access(self._directory, os.W_OK | os.X_OK):
            raise VolumeError(
                f"storage {self._storage}: {self._directory} cannot be written",
                next_step="mend its permissions, or name another path in the settings",
            )

    def _check_space(self, size_bytes: int) -> None:
        free = shutil.disk_usage(self._directory).free
        if free < size_bytes + RESERVE_BYTES:
            raise NoSpace(
                f"storage {self._storage}: {show_bytes(free)} free in {self._directory}, "
                f"a volume of {show_bytes(size_bytes)} does not fit "
                f"({show_bytes(RESERVE_BYTES)} stay free)",
                next_step="free space, or make volume.size or the scale of the pack smaller",
            )


def remove_marked(path: Path) -> None:
    """Remove a volume's file, but only if its name carries our mark."""
    if path.name.startswith(MARK):
        path.unlink(missing_ok=True)


def drop_page_cache(path: Path) -> int:
    """Write back and drop the host's page cache of a file; return the bytes still cached.

    Works without root: fsync cleans the pages, POSIX_FADV_DONTNEED drops clean ones.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return cached_bytes(path)


def cached_bytes(path: Path) -> int:
    """Return how much of a file is in the host's page cache, by util-linux's fincore."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VolumeError(f"fincore cannot inspect {path}: {done.stderr.strip()}")
    return int(done.stdout.strip() or 0)
