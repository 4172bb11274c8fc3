"""This machine, for host cases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.host.device_tuning import Tuner
from pvebench.drivers.host.host_disk import VolumeFile
from pvebench.drivers.linux.block_devices import devices_below
from pvebench.drivers.linux.host_tools import HostTools, tool_version
from pvebench.drivers.linux.procfs import counters_of, host_facts
from pvebench.drivers.storages.contract import MARK
from pvebench.files import remove_tree
from pvebench.model.disk import Disk
from pvebench.model.ports import Journal
from pvebench.model.volume import BlockCounters

KIND: Final = "scratch"
"""Kind of the journal entries of directories for tools' files."""


class ThisMachine:
    """Local `host_disk.HostMachine`. Owned by one worker thread.

    Args:
        runtime: directory for jobs and their output.
    """

    def __init__(self, runtime: Path, journal: Journal) -> None:
        self.tools = HostTools()
        self.work = str(runtime / "host-work")
        self._journal = journal
        self._tuner = Tuner(journal)
        self._scratch: tuple[Path, int] | None = None

    def find(self, path: str) -> VolumeFile:
        with Path(path).open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
        return VolumeFile(size_bytes=size, is_device=Path(path).is_block_device())

    def counters(self, path: str) -> BlockCounters | None:
        return counters_of(Path("/"), devices_below(Path(path)))

    def tune(self, path: str, disk: Disk) -> dict[str, str]:
        return self._tuner.apply(Path(path), disk)

    def untune(self) -> None:
        self._tuner.undo()

    def make_scratch(self, volume: str) -> str:
        path = Path(f"{volume}-scratch")
        remove_scratch(path)  # leftover of a crash: the name contains this instance's id
        self._scratch = (path, self._journal.open(KIND, {"path": str(path)}))
        path.mkdir(parents=True)
        return str(path)

    def remove_scratch(self) -> None:
        if self._scratch is not None:
            path, entry = self._scratch
            remove_scratch(path)
            self._journal.close(entry)
            self._scratch = None

    def facts(self) -> dict[str, str]:
        return host_facts() | {"fio": tool_version("fio")}

    def close(self) -> None:
        self.tools.close()
        remove_tree(Path(self.work))


def remove_scratch(path: Path) -> None:
    """Remove a directory of tools' files, but only with the ownership marker in its name."""
    if path.name.startswith(MARK):
        if path.is_symlink():
            path.unlink()  # not created by pvebench; its target must not be removed
        remove_tree(path)


def undo_scratch(details: Mapping[str, str]) -> str:
    """Undo a journal entry of KIND."""
    remove_scratch(Path(details["path"]))
    return f"removed the tools' files in {details['path']}"
