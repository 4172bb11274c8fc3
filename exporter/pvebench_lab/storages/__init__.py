"""More kinds of storages: loop devices, NBD, NFS, Ceph RBD, LVM-thin and ZFS."""

from __future__ import annotations

from functools import partial
from typing import Final

from pvebench.drivers.storages.contract import Kind
from pvebench.drivers.storages.directory import identify_directory
from pvebench.model.disk import POOL_OPTIONS, Format, HostCache
from pvebench.model.rules import StorageKind
from pvebench_lab.storages import ceph, loop, network, pools

_RAW: Final = frozenset({Format.RAW})
_NO_CONTAINER: Final = "containers on pools that pvebench creates are not supported"

LOOP: Final = Kind(
    holds=StorageKind(name="loop", formats=_RAW | {Format.QCOW2}, own_device=True),
    settings=loop.LoopSettings,
    make=loop.LoopStorage,
    identify=identify_directory,
    undo={loop.KIND: loop.undo_loop},
)
NBD: Final = Kind(
    holds=StorageKind(name="nbd", formats=_RAW, network=True),
    settings=network.NbdSettings,
    make=network.NbdStorage,
    identify=network.identify_export,
)
NFS: Final = Kind(
    holds=StorageKind(name="nfs", formats=_RAW | {Format.QCOW2}, network=True),
    settings=network.NfsSettings,
    make=network.NfsStorage,
    identify=network.identify_directory,
    undo={network.NFS_KIND: network.undo_nfs},
)
RBD: Final = Kind(
    holds=StorageKind(name="rbd", formats=_RAW, network=True, host_cache=HostCache.REOPENED),
    settings=ceph.RbdSettings,
    make=ceph.RbdStorage,
    identify=ceph.identify,
    undo={ceph.KIND: ceph.undo_image},
    look=ceph.look,
    guard=ceph.guard_of,
)
LVMTHIN: Final = Kind(
    holds=StorageKind(
        name="lvmthin",
        formats=_RAW,
        pool_options=frozenset({"thin_chunk"}),
        no_container=_NO_CONTAINER,
    ),
    settings=pools.LvmSettings,
    make=partial(pools.PoolStorage, pools.Lvm()),
    identify=pools.identify_group,
    undo={pools.Lvm.kind: pools.undo_with(pools.Lvm())},
)
ZFS: Final = Kind(
    holds=StorageKind(
        name="zfs",
        formats=_RAW,
        pool_options=frozenset(POOL_OPTIONS) - {"thin_chunk"},
        host_cache=HostCache.ARC,
        no_container=_NO_CONTAINER,
    ),
    settings=pools.ZfsSettings,
    make=partial(pools.PoolStorage, pools.Zfs()),
    identify=pools.identify_dataset,
    undo={pools.Zfs.kind: pools.undo_with(pools.Zfs())},
)
