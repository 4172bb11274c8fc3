"""Test volumes as files in a directory of this machine."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.block_devices import sysfs
from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import MARK, Node, StorageOptions
from pvebench.drivers.storages.identity import identity_of_path
from pvebench.errors import ToolsMissing, VolumeError
from pvebench.model.disk import ChainKind, Disk, Format, Preallocation
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.space import Space, volume_space
from pvebench.model.units import MIB, SECTOR
from pvebench.model.volume import Identity, Volume

# --- files of volumes: created exclusively, never through a link, and verified before use
#
# A path may later lead to something else: a link to another file, a device, another volume. So a
# file is opened without following links, and compared with the created one.

# Without O_NONBLOCK, opening a pipe of that name would block.
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OwnFile:
    """Path and identity of a regular file that pvebench created."""

    path: Path
    device: int
    inode: int

    def check(self) -> None:
        """Raise VolumeError unless the path still leads to this file, and not by a link."""
        if _identify(self.path) != self:
            raise _changed(self.path, "was replaced by another file")


def make_file(path: Path, journal: Journal, kind: str) -> tuple[OwnFile, int]:
    """Create an empty file exclusively; return it and the number of its journal entry.

    Raises:
        VolumeError: it exists, or cannot be created; nothing was changed.
    """
    entry = journal.open(kind, {"path": str(path)})
    try:
        return _create(path), entry
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


def _create(path: Path) -> OwnFile:
    os.close(os.open(path, _CREATE, 0o644))
    return _identify(path)


def _identify(path: Path) -> OwnFile:
    try:
        fd = os.open(path, _OPEN)
    except OSError as error:
        link = error.errno == errno.ELOOP
        what = "is now a symbolic link" if link else f"cannot be opened: {error.strerror}"
        raise _changed(path, what) from error
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _changed(path, "is no longer a regular file")
    return OwnFile(path, status.st_dev, status.st_ino)


def _changed(path: Path, what: str) -> VolumeError:
    return VolumeError(
        f"volume {path} {what}; not changed",
        cause="removed, replaced or moved outside pvebench during its use",
        next_step="inspect it, remove it if you don't need it, and restart pvebench",
    )


def remove_marked(path: Path) -> None:
    """Remove a volume's file, or a link of its name, but only with the ownership marker.

    Raises:
        VolumeError: it cannot be removed.
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


KIND: Final = "volume"
"""Kind of the journal entries of these volumes."""
_CHUNK_BYTES: Final = 4 * MIB


class DirectoryStorage:
    """Storage of kind `dir`."""

    def __init__(self, options: StorageOptions, journal: Journal) -> None:
        self._name = options.name
        self._prefix = f"{MARK}{options.owner}-"
        self._directory = Path(options.path)
        self._options = options
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
        check_directory(self._options)
        self._forget(path)  # leftover of a crash: the name contains this instance's id
        self.require_space(volume_space(scenario) + self._base_to_make(scenario))
        base = self._base(scenario) if disk.backing else None
        # Created before, and exclusively: qemu-img would write through an existing link.
        self._created[str(path)] = self._make(path)
        try:
            create_image(path, disk, size, base=base)
        except VolumeError:
            self._forget(path)
            raise
        return Volume(
            storage=self._name,
            volid=str(path),
            format=str(disk.format),
            size_bytes=size,
            complete=disk.backing,
        )

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
        self._created[str(path)] = _create(path)
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
        remove_marked(path)
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

    def opened(self, volume: Volume) -> str:
        return volume.volid

    def close(self) -> None:
        for base in self._bases.values():
            self._forget(base.path)
        self._bases.clear()


def create_image(
    path: str | Path, disk: Disk, size_bytes: int, *, base: Path | None = None
) -> None:
    """Run qemu-img create. Raises VolumeError."""
    options = create_options(disk, base=str(base) if base else "")
    run_qemu_img("create", "-q", *options, str(path), str(size_bytes))


SOUND: Final = (0, 3)
"""Exit codes of `qemu-img check` without errors; 3: unused clusters only."""
DAMAGED: Final = 2
"""Its exit code for an image with errors; others say that it could not check (qemu-img(1))."""


def run_qemu_img(*arguments: str) -> str:
    """Run qemu-img; return its output. Raises VolumeError."""
    command = ["qemu-img", *arguments]
    done = run_program(command)
    if done.returncode:
        raise VolumeError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def take_internal(path: Path, count: int) -> None:
    """Take the missing internal snapshots; without any, return to the newest one."""
    info = json.loads(run_qemu_img("info", "--output=json", str(path)))
    taken = len(info.get("snapshots", []))
    if taken == count:
        run_qemu_img("snapshot", "-a", f"pvebench{count}", str(path))
    for number in range(taken, count):
        run_qemu_img("snapshot", "-c", f"pvebench{number + 1}", str(path))


def overlay_options(disk: Disk, base: Path) -> list[str]:
    """Return qemu-img's options for an overlay on a volume.

    As pve-storage 9.0.4 and later create it: subclusters are mandatory for the preallocation of an
    overlay. With `overlay_cluster`: as qemu-img's own defaults, which version 8 uses for clones.
    """
    options = f"extended_l2=on,cluster_size=128k,preallocation={disk.preallocation}"
    if disk.overlay_cluster:
        options = f"cluster_size={disk.overlay_cluster}"
    return ["-f", "qcow2", "-o", options, "-b", str(base), "-F", str(disk.format)]


def create_options(disk: Disk, *, base: str = "") -> list[str]:
    """Return qemu-img's options for a new volume, as Proxmox uses them for a directory.

    Args:
        base: a raw image that the volume overlays.
    """
    options: dict[str, str] = {}
    match disk.format:
        case Format.RAW:
            if disk.preallocation is not Preallocation.METADATA:
                options["preallocation"] = str(disk.preallocation)
        case Format.QCOW2:
            if disk.cluster_size:
                options["cluster_size"] = str(disk.cluster_size)
            if disk.extended_l2:
                options["extended_l2"] = "on"
            # An overlay starts empty: missing blocks are read from its base.
            options["preallocation"] = "off" if base else str(disk.preallocation)
        case Format.VMDK:
            pass
    text = ",".join(f"{key}={value}" for key, value in options.items())
    below = ["-b", base, "-F", "raw"] if base else []
    return ["-f", str(disk.format), *(["-o", text] if text else []), *below]


def write_random(path: Path, size_bytes: int) -> None:
    """Write a file of random bytes, durably. Raises OSError."""
    with path.open("wb") as file:
        for start in range(0, size_bytes, _CHUNK_BYTES):
            file.write(os.urandom(min(_CHUNK_BYTES, size_bytes - start)))
        os.fsync(file.fileno())


def undo_file(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it."""
    remove_marked(Path(details["path"]))
    return f"removed test volume {details['path']}"


def require_directory(options: StorageOptions) -> Path:
    """Return the directory, or the parent where a run will create it. Raises VolumeError: missing.

    A missing one is not created: without its mount, volumes would be on another disk.
    """
    directory = Path(options.path)
    if directory.is_dir():
        return directory
    if options.own_path:
        return existing(directory)
    raise VolumeError(
        f"storage {options.name}: {directory} does not exist",
        cause="the file system is not mounted, or the path is misspelled",
        next_step="mount it, correct `path` in the settings, or run `pvebench setup`",
    )


def existing(path: Path) -> Path:
    """Return the path or its nearest existing parent."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


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


def identify_directory(options: StorageOptions) -> Identity:
    """Return the identity of the directory's file system. Raises VolumeError: it is missing."""
    return identity_of_path(require_directory(options))


def check_directory(options: StorageOptions) -> None:
    """Raise VolumeError if the directory is missing, not writable or cannot be created."""
    storage, directory = options.name, Path(options.path)
    require_directory(options)
    try:
        if options.own_path:
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


def drop_page_cache(path: Path) -> int:
    """Write back and drop the host's page cache of a file; return the bytes still cached.

    Works without root: fsync cleans the pages, POSIX_FADV_DONTNEED drops clean ones.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _changed(path, f"cannot be opened: {error.strerror}") from error
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return cached_bytes(path)


def cached_bytes(path: Path) -> int:
    """Return the bytes of a file in the host's page cache, from util-linux's fincore.

    Raises:
        ToolsMissing, VolumeError.
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
