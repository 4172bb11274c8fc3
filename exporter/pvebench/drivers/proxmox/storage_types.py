"""Which storage type can hold what, per version of Proxmox VE: one table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pvebench.model.disk import Format, HostCache
from pvebench.model.layout import Filesystem
from pvebench.model.rules import StorageKind

_FILES: Final = frozenset({Format.RAW, Format.QCOW2, Format.VMDK})
_RAW: Final = frozenset({Format.RAW})
_CHAIN: Final = frozenset({Format.RAW, Format.QCOW2})


@dataclass(frozen=True, slots=True)
class StorageType:
    """One storage plugin of Proxmox.

    Attributes:
        formats: of disk volumes, up to version 8.
        later: formats from version 9 on.
        network: QEMU itself speaks the protocol: the aio option means nothing.
        of_server: several nodes write to the same disks, unless the settings say otherwise.
        extension: volumes are files, whose names end with their format.
        cache: how the node's page cache of a volume is emptied before a run over the API alone.
        no_container: why a container's row cannot be there; empty: it can.
    """

    formats: frozenset[Format]
    later: frozenset[Format]
    network: bool = False
    of_server: bool = False
    extension: bool = False
    cache: HostCache = HostCache.REOPENED
    no_container: str = ""


# A direct write puts the written pages of a file out of the page cache
# (`kiocb_invalidate_post_direct_write` in Linux's mm/filemap.c; nfs, cifs and btrfs do the same in
# their own `direct` paths). A block device loses its pages with its last user (`blkdev_put_whole`
# in block/bdev.c), and librbd's cache is part of the image that QEMU opens.
_BY_WRITING: Final = HostCache.REWRITTEN

# As `alloc_disk` and `run_with_loopdev` in PVE/LXC.pm of pve-container do it. Which types have
# content `rootdir` at all is in `plugindata` of each plugin of pve-storage.
_LOOP: Final = (
    "Proxmox gives a container a loop device there, through the node's page cache; a container's "
    "row has cache none"
)
_DATASET: Final = "Proxmox gives a container a dataset of ZFS there, not a volume with ext4"
_NONE: Final = "Proxmox keeps no containers on a storage of this type"

STORAGE_TYPES: Final[dict[str, StorageType]] = {
    "dir": StorageType(_FILES, _FILES, extension=True, cache=_BY_WRITING, no_container=_LOOP),
    "nfs": StorageType(
        _FILES, _FILES, of_server=True, extension=True, cache=_BY_WRITING, no_container=_LOOP
    ),
    "cifs": StorageType(
        _FILES, _FILES, of_server=True, extension=True, cache=_BY_WRITING, no_container=_LOOP
    ),
    "btrfs": StorageType(_RAW, _RAW, extension=True, cache=_BY_WRITING, no_container=_LOOP),
    "glusterfs": StorageType(
        _FILES,
        frozenset(),
        network=True,
        of_server=True,
        extension=True,
        cache=HostCache.WARM,
        no_container=_NONE,
    ),
    # qcow2 only where the storage was made with snapshot-as-volume-chain; `check` looks.
    "lvm": StorageType(_RAW, _CHAIN),
    "lvmthin": StorageType(_RAW, _RAW),
    # ZFS keeps a cache of its own, the ARC, that neither way empties.
    "zfspool": StorageType(_RAW, _RAW, cache=HostCache.WARM, no_container=_DATASET),
    # QEMU itself speaks iSCSI: no cache of the node in between.
    "zfs": StorageType(
        _RAW, _RAW, network=True, of_server=True, cache=HostCache.DROPPED, no_container=_NONE
    ),
    "rbd": StorageType(_RAW, _RAW, network=True, of_server=True),
}
"""Types that can hold a test volume. iscsi, iscsidirect, pbs, cephfs and esxi cannot."""


@dataclass(frozen=True, slots=True)
class ClusterStorage:
    """A storage of the cluster: its name there, and its type in Proxmox's words."""

    id: str
    type: str


def storage_kind(name: str, *, major: int = 9) -> StorageKind:
    """Return what storage type `name` can hold on that version, for the planner.

    The API sets neither preallocation nor qcow2's own options per volume, hence `files` and
    `tuned` are false.

    Raises:
        KeyError: no such type.
    """
    kind = STORAGE_TYPES[name]
    return StorageKind(
        name=name,
        formats=kind.later if major >= 9 else kind.formats,
        network=kind.network,
        tuned=False,
        host_cache=kind.cache,
        no_container=kind.no_container,
        container_filesystem=Filesystem.EXT4,
    )


def volume_name(vmid: int, mark: str, kind: Format, number: int, *, extension: bool) -> str:
    """Return a file name that no other VM's volume has; Proxmox wants `vm-ID-` in front.

    The number alone proves nothing: on a storage that two clusters share it may be another's VM.

    Args:
        mark: of the VM.
    """
    name = f"{volume_prefix(vmid, mark)}{kind}-{number}"
    # A qcow2 volume on LVM has its format in its name as well.
    return f"{name}.{kind}" if extension or kind is not Format.RAW else name


def volume_prefix(vmid: int, mark: str) -> str:
    """Return how the names of the volumes begin that were made for the VM with this mark."""
    return f"vm-{vmid}-pvebench-{mark[:_DIGITS]}-"


def belongs(volid: str, vmid: int, mark: str) -> bool:
    """Return whether a volume's name says that it was made for the VM with this mark."""
    return re.split("[:/]", volid)[-1].startswith(volume_prefix(vmid, mark))


_DIGITS: Final = 12
"""Of a VM's mark, in the names of its volumes: 48 bits, as names have an end."""
