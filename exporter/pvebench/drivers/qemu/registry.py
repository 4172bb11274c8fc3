"""The kinds of storage that the lab knows, and how each kind's journal entries are undone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pvebench.drivers.qemu import loops, network, volumes
from pvebench.drivers.qemu.devices import DeviceStorage
from pvebench.drivers.qemu.loops import LoopStorage
from pvebench.drivers.qemu.network import NbdStorage, NfsStorage
from pvebench.drivers.qemu.storages import Maker, Undo
from pvebench.drivers.qemu.volumes import DirectoryStorage

STORAGES: Final[dict[str, Maker]] = {
    "dir": DirectoryStorage,
    "loop": LoopStorage,
    "block": DeviceStorage,
    "nbd": NbdStorage,
    "nfs": NfsStorage,
}


def _undo_file(details: Mapping[str, str]) -> str:
    volumes.remove_marked(Path(details["path"]))
    return f"removed test volume {details['path']}"


UNDO: Final[dict[str, Undo]] = {
    volumes.KIND: _undo_file,
    loops.KIND: loops.undo_loop,
    network.NFS_KIND: network.undo_nfs,
}
"""Kind of a journal entry -> what undoes it and says so."""
