"""Test volumes on another machine, reached by ssh: files in a directory, with our mark."""

from __future__ import annotations

import re
from typing import Final

from pvebench.drivers.host.remote_machine import KIND, Rows, left, whole
from pvebench.drivers.storages.contract import MARK, Node, StorageOptions
from pvebench.drivers.storages.directory import RESERVE_BYTES
from pvebench.errors import NoSpace, SwitchFailed, VolumeError
from pvebench.model.disk import Disk
from pvebench.model.ports import Journal
from pvebench.model.scenario import Scenario
from pvebench.model.units import show_bytes
from pvebench.model.volume import Volume

_FILE: Final = re.compile(
    r"regular (?:empty )?file\|(?P<which>[0-9]{1,20}\|[0-9]{1,20})\|[0-9]{1,20}"
)


class RemoteDirectory:
    """A storage of kind `dir` on another machine."""

    def __init__(self, options: StorageOptions, journal: Journal, rows: Rows) -> None:
        self._name = options.name
        self._directory = options.path
        self._prefix = f"{options.path}/{MARK}{options.owner}-"
        self._journal = journal
        self._rows = rows
        self._entries: dict[str, int] = {}
        self._made: dict[str, str] = {}
        """Path -> which file it is."""

    def create(self, scenario: Scenario) -> Volume:
        """Return a new, unfilled volume."""
        path, size = f"{self._prefix}{scenario.volume}", scenario.volume_bytes
        entry = self._journal.open(KIND, left(self._rows, path))
        self._entries.setdefault(path, entry)
        if self._entries[path] != entry:
            self._journal.close(entry)
        self._rows.ask("end", path)  # ours by our id in its name, left by a crash
        self._check_space(size)
        self._made[path] = self._known(self._rows.do("make", path, str(size)), path)
        return Volume(
            storage=self._name, volid=path, format=str(scenario.disk.format), size_bytes=size
        )

    def _check_space(self, size: int) -> None:
        """Raise NoSpace if the file system could not hold `size` bytes more."""
        free = whole(self._rows.ask("space", self._directory), f"bytes free in {self._directory}")
        if free < size + RESERVE_BYTES:
            raise NoSpace(
                f"storage {self._name}: {show_bytes(free)} free in {self._directory} on "
                f"{self._rows.where}, a volume of {show_bytes(size)} does not fit "
                f"({show_bytes(RESERVE_BYTES)} stay free)",
                next_step="free space, or make volume.size or the scale of the pack smaller",
            )

    def _known(self, said: bytes, path: str) -> str:
        found = _FILE.fullmatch(said.decode("utf-8", "replace").strip())
        if found is None:
            raise _changed(path, f"is no regular file now ({said[:60]!r})")
        return found["which"]

    def remove(self, volume: Volume) -> None:
        self._rows.ask("end", volume.volid)
        self._made.pop(volume.volid, None)
        entry = self._entries.pop(volume.volid, None)
        if entry is not None:
            self._journal.close(entry)

    def check(self, volume: Volume) -> None:
        path = volume.volid
        if self._known(self._rows.ask("known", path), path) != self._made[path]:
            raise _changed(path, "is another file than the one that was made")

    def node(self, volume: Volume, disk: Disk) -> Node:
        """Nothing of this machine can open it. Raises SwitchFailed."""
        raise SwitchFailed(f"{volume.volid} is on {self._rows.where}: no VM here can have it")

    def drop_caches(self, volume: Volume) -> int | None:
        """Drop that machine's page cache of the file; None where it has no fincore to look."""
        said = self._rows.ask("drop", volume.volid)
        return whole(said, f"bytes of {volume.volid} in the page cache") if said.strip() else None

    def opened(self, volume: Volume) -> str:
        return volume.volid

    def close(self) -> None:
        """Nothing is held."""


def _changed(path: str, what: str) -> VolumeError:
    return VolumeError(
        f"volume {path} {what}; it is left alone",
        cause="somebody removed, replaced or moved it while pvebench had it",
        next_step="look at it, remove it if nobody needs it, and start pvebench anew",
    )
