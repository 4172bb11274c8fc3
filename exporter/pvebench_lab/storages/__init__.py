"""More kinds of storages: NBD, NFS, Ceph RBD, LVM-thin and ZFS."""

from __future__ import annotations

from functools import partial
from typing import Final

from pvebench.drivers.storages.contract import Kind
from pvebench.model.disk import POOL_OPTIONS, Format, HostCache
from pvebench.model.rules import StorageKind
from pvebench_lab.storages import ceph, network, pools

_LINK: Final = frozenset({"link_bits_per_second"})
_SERVER: Final = frozenset({"server", "port"}) | _LINK
_RAW: Final = frozenset({Format.RAW})
_NO_CONTAINER: Final = "containers on pools that pvebench creates are not supported"

NBD: Final = Kind(
    holds=StorageKind(name="nbd", formats=_RAW, network=True),
    make=network.NbdStorage,
    identify=network.identify_server,
    required=frozenset({"export"}),
    optional=_SERVER | {"socket"},
    either=("server", "socket"),
    port=10809,
)
NFS: Final = Kind(
    holds=StorageKind(name="nfs", formats=_RAW | {Format.QCOW2}, network=True),
    make=network.NfsStorage,
    identify=network.identify_server,
    required=frozenset({"server", "export"}),
    optional=_LINK,
    port=2049,
    undo={network.NFS_KIND: network.undo_nfs},
)
RBD: Final = Kind(
    holds=StorageKind(name="rbd", formats=_RAW, network=True, host_cache=HostCache.REOPENED),
    make=ceph.RbdStorage,
    identify=ceph.identify,
    required=frozenset({"pool"}),
    optional=_SERVER | {"conf", "user"},
    together=("server", "port"),
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
    make=partial(pools.PoolStorage, pools.Lvm()),
    identify=pools.identify_group,
    required=frozenset({"vgname"}),
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
    make=partial(pools.PoolStorage, pools.Zfs()),
    identify=pools.identify_dataset,
    required=frozenset({"dataset"}),
    undo={pools.Zfs.kind: pools.undo_with(pools.Zfs())},
)
