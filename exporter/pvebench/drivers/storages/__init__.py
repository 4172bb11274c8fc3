"""Registry of the kinds of storages on this machine, for drivers `qemu` and `host`.

A kind is one module here and one entry in `KINDS`: its class, its capabilities, its keys in the
settings, and the functions that undo its journal entries after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pvebench.drivers.storages import block, ceph, directory, network, pools
from pvebench.drivers.storages.block import DeviceStorage, LoopStorage, identify_device
from pvebench.drivers.storages.ceph import RbdStorage
from pvebench.drivers.storages.contract import Storage, StorageOptions, Undo
from pvebench.drivers.storages.directory import DirectoryStorage, identify_directory
from pvebench.drivers.storages.network import NbdStorage, NfsStorage, identify_server
from pvebench.model.disk import POOL_OPTIONS, ChainKind, Format, HostCache
from pvebench.model.ports import Journal
from pvebench.model.rules import Operations, StorageKind
from pvebench.model.volume import Identity
from pvebench.model.workload import COPIES, MAX_VMS, NEIGHBOR, SNAPSHOT_OPERATIONS, SNAPSHOT_RAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Kind of storage.

    Attributes:
        holds: its capabilities, for the planner.
        make: returns a storage of this kind.
        required, optional: required and optional keys in the settings.
        either: keys of which exactly one must be set.
        together: keys of which all or none must be set.
        port: default port of its server; 0: no server.
        undo: kind of a journal entry -> function that undoes it and returns a line about it.
        identify: returns the current identity; raises DriverError: it is missing.
        look: returns a line about the storage for `pvebench check`, or raises PvebenchError;
            None: no check.
    """

    holds: StorageKind
    make: Callable[[StorageOptions, Journal], Storage]
    identify: Callable[[StorageOptions], Identity]
    required: frozenset[str]
    optional: frozenset[str] = frozenset()
    either: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    port: int = 0
    undo: Mapping[str, Undo] = field(default_factory=dict)
    look: Callable[[StorageOptions], str] | None = None


_PATH: Final = frozenset({"path"})
_LINK: Final = frozenset({"link_bits_per_second"})
_SERVER: Final = frozenset({"server", "port"}) | _LINK
_CHAIN: Final = frozenset({Format.RAW, Format.QCOW2})
_RAW: Final = frozenset({Format.RAW})

_NO_CONTAINER: Final = "containers on pools that pvebench creates are not supported"

_OPERATIONS: Final = Operations(
    names=frozenset({*COPIES, *SNAPSHOT_OPERATIONS, NEIGHBOR}),
    throttled=frozenset({*COPIES, SNAPSHOT_RAM}),
    fleecing_iothread=False,
)

KINDS: Final[dict[str, Kind]] = {
    "dir": Kind(
        holds=StorageKind(
            name="dir",
            formats=frozenset(Format),
            files=True,
            chains=frozenset({ChainKind.VOLUME, ChainKind.INTERNAL}),
            operations=_OPERATIONS,
            vms=MAX_VMS,
        ),
        make=DirectoryStorage,
        identify=identify_directory,
        required=_PATH,
        optional=_SERVER,
        together=("server", "port"),
        undo={directory.KIND: directory.undo_file},
    ),
    "loop": Kind(
        holds=StorageKind(name="loop", formats=_CHAIN, own_device=True),
        make=LoopStorage,
        identify=identify_directory,
        required=_PATH,
        undo={block.KIND: block.undo_loop},
    ),
    "block": Kind(
        holds=StorageKind(
            name="block",
            formats=_RAW,
            own_device=True,
            no_container="containers on claimed block devices are not supported",
        ),
        make=DeviceStorage,
        identify=identify_device,
        required=_PATH,
        optional=_SERVER,
        together=("server", "port"),
    ),
    "nbd": Kind(
        holds=StorageKind(name="nbd", formats=_RAW, network=True),
        make=NbdStorage,
        identify=identify_server,
        required=frozenset({"export"}),
        optional=_SERVER | {"socket"},
        either=("server", "socket"),
        port=10809,
    ),
    "nfs": Kind(
        holds=StorageKind(name="nfs", formats=_CHAIN, network=True),
        make=NfsStorage,
        identify=identify_server,
        required=frozenset({"server", "export"}),
        optional=_LINK,
        port=2049,
        undo={network.NFS_KIND: network.undo_nfs},
    ),
    "rbd": Kind(
        holds=StorageKind(name="rbd", formats=_RAW, network=True, host_cache=HostCache.REOPENED),
        make=RbdStorage,
        identify=ceph.identify,
        required=frozenset({"pool"}),
        optional=_SERVER | {"conf", "user"},
        together=("server", "port"),
        undo={ceph.KIND: ceph.undo_image},
        look=ceph.look,
    ),
    "lvmthin": Kind(
        holds=StorageKind(
            name="lvmthin",
            formats=_RAW,
            pool_options=frozenset({"thin_chunk"}),
            no_container=_NO_CONTAINER,
        ),
        make=partial(pools.PoolStorage, pools.Lvm()),
        identify=pools.identify_group,
        required=frozenset({"vgname"}),
        undo={pools.Lvm.kind: pools.undo_with(pools.Lvm())},
    ),
    "zfs": Kind(
        holds=StorageKind(
            name="zfs",
            formats=_RAW,
            pool_options=frozenset(POOL_OPTIONS) - {"thin_chunk"},
            host_cache=HostCache.ARC,
            no_container=_NO_CONTAINER,
        ),
        make=partial(pools.PoolStorage, pools.Zfs()),
        identify=pools.identify_dataset,
        required=frozenset({"dataset"}),
        undo={pools.Zfs.kind: pools.undo_with(pools.Zfs())},
    ),
}

STORAGE_KINDS: Final = {name: kind.holds for name, kind in KINDS.items()}
"""Kind -> capabilities."""
UNDO: Final[dict[str, Undo]] = {
    name: undo for kind in KINDS.values() for name, undo in kind.undo.items()
}
"""Kind of a journal entry -> function that undoes it and returns a line about it."""
