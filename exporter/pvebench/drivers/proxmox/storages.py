"""Which storage type can hold what, per version of Proxmox VE: one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pvebench.model.disk import Format
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
        extension: volumes are files, whose names end with their format.
    """

    formats: frozenset[Format]
    later: frozenset[Format]
    network: bool = False
    extension: bool = False


STORAGE_TYPES: Final[dict[str, StorageType]] = {
    "dir": StorageType(_FILES, _FILES, extension=True),
    "nfs": StorageType(_FILES, _FILES, extension=True),
    "cifs": StorageType(_FILES, _FILES, extension=True),
    "btrfs": StorageType(_RAW, _RAW, extension=True),
    "glusterfs": StorageType(_FILES, frozenset(), network=True, extension=True),
    # qcow2 only where the storage was made with snapshot-as-volume-chain; `check` looks.
    "lvm": StorageType(_RAW, _CHAIN),
    "lvmthin": StorageType(_RAW, _RAW),
    "zfspool": StorageType(_RAW, _RAW),
    "zfs": StorageType(_RAW, _RAW, network=True),
    "rbd": StorageType(_RAW, _RAW, network=True),
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
    formats = kind.later if major >= 9 else kind.formats
    return StorageKind(name=name, formats=formats, network=kind.network, tuned=False)


def volume_name(vmid: int, kind: Format, number: int, *, extension: bool) -> str:
    """Return a file name that carries our mark; Proxmox wants `vm-ID-` in front on all types."""
    name = f"vm-{vmid}-pvebench-{kind}-{number}"
    # A qcow2 volume on LVM has its format in its name as well.
    return f"{name}.{kind}" if extension or kind is not Format.RAW else name


MARK: Final = "-pvebench-"
"""In the name of each volume that we made."""
