"""Which storage type can hold what, per version of Proxmox VE: one table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.model.disk import (
    VOLUME_OPTIONS,
    Bus,
    Disk,
    Filesystem,
    Format,
    HostCache,
    ScsiHw,
    option_text,
)
from pvebench.model.rules import StorageKind

# --- A test disk as Proxmox writes it: `STORAGE:VOLUME,key=value…`, and back. Pure.
#
# The server sorts the keys, turns booleans into 1 and 0, adds `size` and drops what it likes:
# strings are never compared, only what they mean.

SLOT: Final = re.compile(r"(?P<bus>scsi|virtio|sata|ide)(?P<index>\d+)\Z")
UNUSED: Final = re.compile(r"unused\d+\Z")
_OTHERS: Final = ("efidisk0", "tpmstate0")
"""Keys of volumes that are no disks of the guest, and go with their VM as well."""
ISO_SLOT: Final = "ide2"
"""Where the guest's image is; never a test disk."""
LAST_INDEX: Final = {Bus.SCSI: 13, Bus.VIRTIO: 15, Bus.SATA: 5, Bus.IDE: 1}
"""Highest slot that is used. Further scsi slots need a newer machine type; ide2 is the guest's."""

_TRUE: Final = frozenset({"1", "on", "yes", "true"})
_SERIAL_START: Final = "pvebench"


def slot_name(bus: Bus, index: int) -> str:
    """Return the slot for the `index`-th attempt on a bus: `scsi1`, `ide0`.

    Slot 0 of scsi and virtio is left to disks that people add by habit.
    """
    first = 0 if bus is Bus.IDE else 1
    return f"{bus}{first + index % (LAST_INDEX[bus] + 1 - first)}"


def serial_of(number: int) -> str:
    """Return what the guest knows the `number`-th attachment by; 20 characters at most."""
    return f"{_SERIAL_START}{number}"


def drive_text(disk: Disk, volid: str, serial: str, *, has_aio: bool = True) -> str:
    """Return the value of a slot: everything that matters is said, no default is relied on.

    Args:
        has_aio: whether the storage's driver knows the option; librbd and iscsi do not.
    """
    options = {
        "cache": str(disk.cache),
        "aio": str(disk.aio) if has_aio else "",
        "iothread": "1" if disk.iothread else "",
        "discard": "on" if disk.discard else "ignore",
        "detect_zeroes": option_text(disk.detect_zeroes),
        "ssd": "1" if disk.ssd else "",
        "queues": str(disk.queues or ""),
        "iops": str(disk.iops or ""),
        "mbps": str(disk.mbps or ""),
        "serial": serial,
        "backup": "0",  # a backup that starts during a run must not read this disk
        "replicate": "0",
    }
    return ",".join([volid, *(f"{key}={value}" for key, value in options.items() if value)])


def parse_drive(text: str) -> tuple[str, dict[str, str]]:
    """Return (volid, options) of a slot's value; booleans are 1 and 0."""
    volid, options = "", {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals:
            volid = key
        elif key in ("file", "volume"):
            volid = value
        else:
            options[key] = value
    return volid, options


def test_slots(config: Mapping[str, object]) -> dict[str, str]:
    """Return slot -> volid of every disk in a configuration, the guest's image aside."""
    return {
        key: parse_drive(str(value))[0]
        for key, value in config.items()
        if SLOT.match(key) and "media=cdrom" not in str(value)
    }


def held_volumes(config: Mapping[str, object]) -> set[str]:
    """Return the volid of everything that goes with a VM of that configuration."""
    others = {parse_drive(str(config[key]))[0] for key in _OTHERS if key in config}
    return {*test_slots(config).values(), *unused_volumes(config), *others}


def unused_volumes(config: Mapping[str, object]) -> dict[str, str]:
    """Return volid -> its unusedN key."""
    return {parse_drive(str(value))[0]: key for key, value in config.items() if UNUSED.match(key)}


def read_back(slot: str, text: str, *, scsihw: str, volume_format: str) -> dict[str, str]:
    """Return the options in force in the words of `Disk`, from the configuration in force.

    Options of the volume itself are at Proxmox's defaults: its API can make no others.
    """
    match = SLOT.match(slot)
    bus = match["bus"] if match else slot
    _, options = parse_drive(text)
    return {
        "bus": bus,
        "format": volume_format,
        "cache": options.get("cache", "none"),
        "aio": options.get("aio", "io_uring"),
        "iothread": _flag(options.get("iothread", "0")),
        # On unless told otherwise; see Proxmox's drive options.
        "detect_zeroes": _flag(options.get("detect_zeroes", "1")),
        "scsihw": scsihw if bus == Bus.SCSI else str(ScsiHw.SINGLE),
        "discard": _flag(options.get("discard", "ignore")),
        "ssd": _flag(options.get("ssd", "0")),
        "queues": options.get("queues", "0"),
        "iops": options.get("iops", "0"),
        "mbps": options.get("mbps", "0"),
        **{name: str(_DEFAULTS[name]) for name in VOLUME_OPTIONS},
    }


_DEFAULTS: Final = {
    name: option_text(Disk.__dataclass_fields__[name].default, size=name == "cluster_size")
    for name in VOLUME_OPTIONS
}


def _flag(text: str) -> str:
    return option_text(text in _TRUE)


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
