"""Loop devices over files in a directory of this machine; needs root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.linux.host_tools import run_program
from pvebench.drivers.storages.contract import MARK, Kind, Node, Storage, StorageContext
from pvebench.drivers.storages.directory import (
    DirectorySettings,
    check_directory,
    check_space,
    identify_directory,
)
from pvebench.drivers.storages.own_files import (
    OwnFile,
    drop_page_cache,
    make_file,
    remove_leftover,
    remove_marked,
)
from pvebench.drivers.storages.qemu_img import create_image
from pvebench.errors import VolumeError
from pvebench.model.disk import Disk, Format
from pvebench.model.ports import Journal
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Scenario
from pvebench.model.units import MIB
from pvebench.model.volume import Volume

KIND: Final = "loop"
"""Kind of the journal entries of these volumes."""
QCOW2_OVERHEAD: Final = 4 * MIB
"""Space for a qcow2's tables, in addition to 1/1500 of the device's size."""


class LoopSettings(DirectorySettings):
    """Keys of kind `loop`: loop devices over files in a directory."""


class LoopStorage(Storage):
    """Storage of kind `loop`: files below `path`, each with its own loop device."""

    def __init__(self, context: StorageContext[DirectorySettings], journal: Journal) -> None:
        self._name = context.name
        self._prefix = f"{MARK}{context.owner}-"
        self._directory = context.settings.path
        self._context = context
        self._journal = journal
        self._files: dict[str, tuple[OwnFile, int]] = {}

    def create(self, scenario: Scenario) -> Volume:
        size, disk = scenario.volume_bytes, scenario.disk
        path = self._directory / f"{self._prefix}{scenario.volume}.img"
        check_directory(self._context)
        detach_loops(path)
        remove_leftover(path, self._journal)
        size_on_disk = size
        if disk.format is Format.QCOW2:
            size_on_disk = (size + size // 1500 + QCOW2_OVERHEAD) // MIB * MIB
        check_space(self._name, self._directory, size_on_disk)
        volume_file, entry = make_file(path, self._journal, KIND)
        device = ""
        try:
            with path.open("r+b") as file:
                # Allocated now: a loop device over holes would answer reads without the storage.
                os.posix_fallocate(file.fileno(), 0, size_on_disk)
            # Direct I/O avoids a second cache, that of the file below.
            device = losetup("--find", "--show", "--direct-io=on", str(path))
            self._files[device] = (volume_file, entry)
            if disk.format is Format.QCOW2:
                create_image(device, disk, size)
        except (VolumeError, OSError) as error:
            self._end(device, path, entry)
            raise VolumeError(
                f"storage {self._name}: cannot create a loop device: {error}"
            ) from error
        return Volume.of(scenario, device)

    def _end(self, device: str, path: Path, entry: int) -> None:
        self._files.pop(device, None)
        detach_loops(path)
        remove_marked(path)
        self._journal.close(entry)

    def remove(self, volume: Volume) -> None:
        known = self._files.get(volume.volid)
        if known is not None:
            self._end(volume.volid, known[0].path, known[1])

    def check(self, volume: Volume) -> None:
        volume_file, _ = self._files[volume.volid]
        volume_file.check()
        if volume.volid not in loops_of(volume_file.path):
            raise VolumeError(
                f"volume {volume.volid} is no longer a loop device of {volume_file.path}; "
                "not changed",
                cause="the loop device was detached outside pvebench during its use",
                next_step="check `losetup --list`, then restart pvebench",
            )

    def node(self, volume: Volume, disk: Disk) -> Node:
        return {"driver": "host_device", "filename": volume.volid, "aio": str(disk.aio)}

    def drop_caches(self, volume: Volume) -> int | None:
        volume_file, _ = self._files[volume.volid]
        return drop_page_cache(Path(volume.volid)) + drop_page_cache(volume_file.path)


def detach_loops(path: Path) -> None:
    """Detach every loop device of a file with the ownership marker."""
    if not path.name.startswith(MARK) or path.is_symlink() or not path.exists():
        return
    for device in loops_of(path):
        losetup("--detach", device)


def loops_of(path: Path) -> list[str]:
    """Return the loop devices of this file."""
    return losetup("--list", "--noheadings", "--output", "NAME", "-j", str(path)).split()


def losetup(*arguments: str) -> str:
    """Run losetup; return its output. Raises VolumeError."""
    command = ["losetup", *arguments]
    try:
        done = run_program(command)
    except FileNotFoundError as error:
        raise VolumeError(
            "losetup is not installed", next_step="run `apt-get install mount`"
        ) from error
    if done.returncode:
        raise VolumeError(
            f"losetup failed: {done.stderr.strip()}",
            cause="loop devices need root",
            next_step="run as root, or use a storage of kind dir",
        )
    return done.stdout.strip()


def undo_loop(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND; return a line about it."""
    path = Path(details["path"])
    detach_loops(path)
    remove_marked(path)
    return f"removed loop device and test volume {path}"


LOOP: Final = Kind(
    holds=StorageKind(name="loop", formats=frozenset({Format.RAW, Format.QCOW2}), own_device=True),
    settings=LoopSettings,
    make=LoopStorage,
    identify=identify_directory,
    undo={KIND: undo_loop},
)
