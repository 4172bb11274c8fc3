"""pvebench's own kinds of storages: a directory, loop devices in a directory, a block device.

A kind is its class, its capabilities, its keys in the settings, and the functions that undo its
journal entries after a crash.
"""

from __future__ import annotations

from typing import Final

from pvebench.drivers.storages import block, directory
from pvebench.drivers.storages.block import DeviceStorage, LoopStorage, identify_device
from pvebench.drivers.storages.contract import Kind
from pvebench.drivers.storages.directory import (
    DirectorySettings,
    DirectoryStorage,
    PathSettings,
    identify_directory,
)
from pvebench.drivers.storages.server_link import ServerSettings
from pvebench.model.disk import ChainKind, Format
from pvebench.model.rules import Operations, StorageKind
from pvebench.model.workload import COPIES, MAX_VMS, NEIGHBOR, SNAPSHOT_OPERATIONS, SNAPSHOT_RAM


class DirSettings(DirectorySettings, ServerSettings):
    """Keys of kind `dir`: a directory on any file system of the host, also of a server."""


class LoopSettings(DirectorySettings):
    """Keys of kind `loop`: loop devices over files in a directory."""


class BlockSettings(PathSettings, ServerSettings):
    """Keys of kind `block`: a whole device, whose content is destroyed."""


_OPERATIONS: Final = Operations(
    names=frozenset({*COPIES, *SNAPSHOT_OPERATIONS, NEIGHBOR}),
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
    undo={directory.KIND: directory.undo_file},
)
LOOP: Final = Kind(
    holds=StorageKind(name="loop", formats=frozenset({Format.RAW, Format.QCOW2}), own_device=True),
    settings=LoopSettings,
    make=LoopStorage,
    identify=identify_directory,
    undo={block.KIND: block.undo_loop},
)
BLOCK: Final = Kind(
    holds=StorageKind(
        name="block",
        formats=frozenset({Format.RAW}),
        own_device=True,
        no_container="containers on claimed block devices are not supported",
    ),
    settings=BlockSettings,
    make=DeviceStorage,
    identify=identify_device,
)
