"""Test volumes as files in a directory of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.block_devices import memory_below, sysfs
from pvebench.drivers.storages.contract import (
    MARK,
    Kind,
    Node,
    Storage,
    StorageContext,
    StorageSettings,
)
from pvebench.drivers.storages.identity import identity_of_path
from pvebench.drivers.storages.own_files import (
    OwnFile,
    create_exclusively,
    drop_page_cache,
    make_file,
    remove_leftover,
    remove_marked,
    write_random,
)
from pvebench.drivers.storages.qemu_img import (
    create_image,
    overlay_options,
    run_qemu_img,
    take_internal,
)
from pvebench.drivers.storages.server_link import ServerSettings
from pvebench.errors import PathUnusable, VolumeError
from pvebench.fields import FilePath
from pvebench.model.disk import ChainKind, Disk, Format
from pvebench.model.ports import Journal
from pvebench.model.rules import Operations, StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.storage_use import Space, volume_space
from pvebench.model.units import SECTOR
from pvebench.model.volume import Identity, Volume
from pvebench.model.workload import COPIES, DISK_OPERATIONS, MAX_VMS, SNAPSHOT_RAM

KIND: Final = "volume"
"""Kind of the journal entries of these volumes."""


class PathSettings(StorageSettings):
    """Keys of a storage at a path of this machine.

    Attributes:
        path: the directory or the device.
    """

    path: FilePath


class DirectorySettings(PathSettings):
    """Keys of a storage in a directory of this machine, which must exist."""


class DirectoryStorage(Storage):
    """Storage of kind `dir`."""

    def __init__(self, context: StorageContext[DirectorySettings], journal: Journal) -> None:
        self._name = context.name
        self._prefix = f"{MARK}{context.owner}-"
        self._directory = context.settings.path
        self._context = context
        self._journal = journal
        self._entries: dict[str, int] = {}
        self._bases: dict[str, OwnFile] = {}
        self._created: dict[str, OwnFile] = {}
        self._levels: dict[str, list[OwnFile]] = {}
        self._files: dict[str, list[Path]] = {}

    def create(self, scenario: Scenario) -> Volume:
        """Create an unfilled volume, or an overlay on a full base."""
        disk, size = scenario.disk, scenario.volume_bytes
        path = self._directory / f"{self._prefix}{scenario.volume}"
        check_directory(self._context)
        self._forget(path)  # leftover of a crash or an attempt
        self.require_space(volume_space(scenario) + self._base_to_make(scenario))
        base = self._base(scenario) if disk.backing else None
        # Created before, and exclusively: qemu-img would write through an existing link.
        self._created[str(path)] = self._make(path)
        try:
            create_image(path, disk, size, base=base)
        except VolumeError:
            self._forget(path)
            raise
        return Volume.of(scenario, str(path), complete=disk.backing)

    def _base(self, scenario: Scenario) -> Path:
        """Return a raw image full of random data, like the template of a linked clone."""
        path = self._base_path(scenario)
        if str(path) not in self._bases:
            self._forget(path)
            file = self._make(path)
            self._fill(path, scenario.volume_bytes)
            self._bases[str(path)] = file
        self._bases[str(path)].check()
        return path

    def _fill(self, path: Path, size_bytes: int) -> None:
        try:
            write_random(path, size_bytes)
        except OSError as error:
            self._forget(path)  # an incomplete file would be read as zeros behind its end
            raise VolumeError(f"cannot write {path}: {error.strerror}") from error

    def _make(self, path: Path) -> OwnFile:
        file, self._entries[str(path)] = make_file(path, self._journal, KIND)
        return file

    def _base_path(self, scenario: Scenario) -> Path:
        return self._directory / f"{self._prefix}base-{scenario.volume_bytes}.raw"

    def _base_to_make(self, scenario: Scenario) -> int:
        """Return the bytes of the missing base of a clone; 0: none is missing."""
        missing = scenario.disk.backing and str(self._base_path(scenario)) not in self._bases
        return scenario.volume_bytes if missing else 0

    def take_snapshots(self, volume: Volume, disk: Disk) -> None:
        path = Path(volume.volid)
        if disk.chain_kind is ChainKind.INTERNAL:
            self.check(volume)
            take_internal(path, disk.chain)
            return
        levels = self._levels.setdefault(volume.volid, [])
        for file in levels:
            file.check()
        if levels:
            self._overlay(path, disk, levels[-1].path)
        while len(levels) < disk.chain:
            current = self._created[volume.volid]
            current.check()
            level = path.with_name(f"{path.name}.snap{len(levels) + 1}")
            self._forget(level)  # of an attempt that failed: the volume was not yet renamed
            self._make(level)  # in the journal before the rename
            path.replace(level)
            levels.append(replace(current, path=level))
            self._overlay(path, disk, level)

    def _overlay(self, path: Path, disk: Disk, base: Path) -> None:
        """Create an empty overlay; its path is in the journal since the volume's creation."""
        remove_marked(path)
        self._created[str(path)] = create_exclusively(path)
        run_qemu_img("create", "-q", *overlay_options(disk, base), str(path))

    def below(self, volume: Volume, disk: Disk) -> list[Node]:
        levels = reversed(self._levels.get(volume.volid, []))
        return [self._file_node(str(level.path), disk) for level in levels]

    def add_file(
        self,
        volume: Volume,
        disk: Disk,
        label: str,
        *,
        overlay: bool = False,
        full: bool = False,
        size_bytes: int = 0,
    ) -> Node:
        size_bytes = size_bytes or volume.size_bytes
        self.require_space(size_bytes)
        path = Path(f"{volume.volid}.{label}")
        self._forget(path)
        self._files.setdefault(volume.volid, []).append(path)
        self._make(path)
        if overlay:  # -u: the volume is in use, and locked
            options = overlay_options(disk, Path(volume.volid))
            run_qemu_img("create", "-q", "-u", *options, str(path), str(size_bytes))
        elif full:
            self._fill(path, size_bytes)
            drop_page_cache(path)
        else:
            os.truncate(path, size_bytes)
        return self._file_node(str(path), disk)

    def require_space(self, size_bytes: int) -> None:
        check_space(self._name, self._directory, size_bytes)

    def remove_files(self, volume: Volume) -> None:
        for path in self._files.pop(volume.volid, []):
            self._forget(path)

    def remove(self, volume: Volume) -> None:
        self.remove_files(volume)
        for level in self._levels.pop(volume.volid, []):
            self._forget(level.path)
        self._forget(Path(volume.volid))

    def _forget(self, path: Path) -> None:
        if str(path) in self._entries.keys() | self._created.keys():
            remove_marked(path)
        remove_leftover(path, self._journal)
        self._created.pop(str(path), None)
        entry = self._entries.pop(str(path), None)
        if entry is not None:
            self._journal.close(entry)

    def check(self, volume: Volume) -> None:
        self._created[volume.volid].check()
        for base in self._below(volume):
            base.check()

    def _below(self, volume: Volume) -> list[OwnFile]:
        bases = self._bases.values() if volume.complete else ()
        return [*bases, *self._levels.get(volume.volid, [])]

    def node(self, volume: Volume, disk: Disk) -> Node:
        return self._file_node(volume.volid, disk)

    @staticmethod
    def _file_node(path: str, disk: Disk) -> Node:
        return {"driver": "file", "filename": path, "aio": str(disk.aio)}

    def drop_caches(self, volume: Volume) -> int | None:
        """Drop the host's page cache of the file and of the files below it."""
        paths = [Path(volume.volid), *(base.path for base in self._below(volume))]
        return sum(drop_page_cache(path) for path in paths)

    def close(self) -> None:
        for base in self._bases.values():
            self._forget(base.path)
        self._bases.clear()


def undo_file(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it."""
    remove_marked(Path(details["path"]))
    return f"removed test volume {details['path']}"


def require_directory(context: StorageContext[DirectorySettings]) -> Path:
    """Return the directory, or the parent where a run will create it.

    A missing one is not created: without its mount, volumes would be on another disk.

    Raises PathUnusable: missing, or in memory.
    """
    directory = context.settings.path
    if directory.is_dir() or context.own_path:
        require_disk(context)
        return existing(directory)
    raise PathUnusable(
        f"storage {context.name}: {directory} does not exist",
        cause="the file system is not mounted, or the path is misspelled",
        next_step="mount it, correct `path` in the settings, or run `pvebench setup`",
    )


def require_disk(context: StorageContext[PathSettings]) -> None:
    """Raise PathUnusable if all data of a storage's path is in memory."""
    path = context.settings.path
    with contextlib.suppress(OSError):  # whatever uses the path reports it
        if memory := memory_below(existing(path) if context.own_path else path):
            key = "--state (make run: STATE=)" if context.own_path else "`path` in the settings"
            raise PathUnusable(
                f"storage {context.name}: {path} is in memory ({memory}), not on a disk",
                cause="it is on a tmpfs, as /dev/shm and often /tmp, a RAM disk or a file there",
                next_step=f"set {key} to a place on a disk",
            )


def existing(path: Path) -> Path:
    """Return the path or its nearest existing parent."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def path_of(settings: StorageSettings) -> Path | None:
    """Return the path of a storage on this machine; None: it has none."""
    return settings.path if isinstance(settings, PathSettings) else None


def size_at(path: Path | None) -> int | None:
    """Return the size of a path's file system, or of the device there; None: unknown."""
    try:
        if path is None:
            return None
        if path.is_block_device():
            sectors = (sysfs(path.stat().st_rdev) / "size").read_text("ascii")
            return SECTOR * int(sectors)
        return shutil.disk_usage(existing(path)).total
    except (OSError, ValueError):
        return None


def identify_directory(context: StorageContext[DirectorySettings]) -> Identity:
    """Return the identity of the directory's file system. Raises VolumeError: it is missing."""
    return identity_of_path(require_directory(context))


def check_directory(context: StorageContext[DirectorySettings]) -> None:
    """Raise VolumeError if the directory is missing, not writable or cannot be created."""
    storage, directory = context.name, context.settings.path
    require_directory(context)
    try:
        if context.own_path:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VolumeError(
            f"storage {storage}: cannot create {directory}: {error.strerror}"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise VolumeError(
            f"storage {storage}: {directory} is not writable",
            next_step="fix its permissions, or use another path in the settings",
        )


def check_space(storage: str, directory: Path, size_bytes: int) -> None:
    """Raise NoSpace if the file system has no space for `size_bytes`."""
    Space(free=shutil.disk_usage(directory).free, where=f"in {directory}").require(
        storage, size_bytes
    )


class DirSettings(DirectorySettings, ServerSettings):
    """Keys of kind `dir`: a directory on any file system of the host, also of a server."""


_OPERATIONS: Final = Operations(
    names=frozenset(DISK_OPERATIONS),
    throttled=frozenset({*COPIES, SNAPSHOT_RAM}),
    fleecing_iothread=False,
)
DIR: Final = Kind(
    holds=StorageKind(
        name="dir",
        formats=frozenset(Format),
        files=True,
        chains=frozenset({ChainKind.VOLUME, ChainKind.INTERNAL}),
        operations=_OPERATIONS,
        vms=MAX_VMS,
    ),
    settings=DirSettings,
    make=DirectoryStorage,
    identify=identify_directory,
    undo={KIND: undo_file},
)
