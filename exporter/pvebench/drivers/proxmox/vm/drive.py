"""Proxmox drive strings, and the volumes that each storage type supports per version."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import StrictBool, StrictStr

from pvebench.drivers.proxmox.vm.description import system_slots
from pvebench.errors import SwitchFailed
from pvebench.fields import Size, Strict
from pvebench.model.disk import (
    BUSES,
    VOLUME_OPTIONS,
    Aio,
    Bus,
    Cache,
    Disk,
    Format,
    HostCache,
    ScsiHw,
    option_text,
)
from pvebench.model.rules import StorageKind
from pvebench.model.scenario import Filesystem
from pvebench.model.units import MIB

# --- Drive strings, `STORAGE:VOLUME,key=value…`
#
# The server sorts the keys, turns booleans into 1 and 0, adds `size` and drops keys. So strings
# are never compared, only their parsed values.

SLOT: Final = re.compile(
    rf"(?P<bus>{'|'.join(name for name, bus in BUSES.items() if bus.slots)})(?P<index>\d+)\Z"
)
UNUSED: Final = re.compile(r"unused\d+\Z")
OTHER_VOLUMES: Final = ("efidisk0", "tpmstate0")
"""Keys of volumes that are not guest disks but are removed with their VM."""
ISO_SLOT: Final = "ide2"
"""Slot of the guest image; never a test disk."""

VOLUME_CHAINS: Final = 10
"""First major version of a machine type with volume chains (qemu-server 9.0.17)."""
_SERIAL_START: Final = "pvebench"


def slot_name(bus: Bus, index: int, taken: Collection[str] = ()) -> str:
    """Return the slot for the `index`-th attempt on a bus: `scsi1`, `ide0`.

    Args:
        taken: slots of a clone's own disks and drives.
    """
    slots = [name for slot in BUSES[bus].slots if (name := f"{bus}{slot}") not in taken]
    if not slots:
        raise SwitchFailed(f"no free slot for test disks on {bus}: the template uses all of them")
    return slots[index % len(slots)]


def serial_of(number: int) -> str:
    """Return the serial number of the `number`-th attachment, at most 20 characters."""
    return f"{_SERIAL_START}{number}"


def drive_text(disk: Disk, volid: str, serial: str, storage: str) -> str:
    """Return the value of a slot, with all relevant options explicit instead of default.

    Args:
        storage: type of the volume's storage.
    """
    options = {
        "cache": str(disk.cache),
        "aio": "" if STORAGE_TYPES[storage].network else str(disk.aio),
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
    """Return slot -> volid of every guest disk, except the guest image and a clone's own disks."""
    others = {*OTHER_VOLUMES, *system_slots(config)}
    return {key: volid for key, volid in disks_in(config).items() if key not in others}


def disks_in(config: Mapping[str, object]) -> dict[str, str]:
    """Return key -> volid of every disk in a configuration, also of OTHER_VOLUMES."""
    return {
        key: parse_drive(str(value))[0]
        for key, value in config.items()
        if key in OTHER_VOLUMES or (SLOT.match(key) and "media=cdrom" not in str(value))
    }


def held_volumes(config: Mapping[str, object]) -> set[str]:
    """Return the volids that are removed with a VM of that configuration."""
    return {*disks_in(config).values(), *unused_volumes(config)}


def unused_volumes(config: Mapping[str, object]) -> dict[str, str]:
    """Return volid -> its unusedN key."""
    return {parse_drive(str(value))[0]: key for key, value in config.items() if UNUSED.match(key)}


def is_on(text: str) -> bool:
    """Return whether a boolean of a configuration is true, as Proxmox parses it."""
    return text.lower() in ("1", "on", "yes", "true")


def effective(
    slot: str, options: Mapping[str, str], *, scsihw: str, storage: Mapping[str, str]
) -> dict[str, str]:
    """Return the meaning of a drive's options as in `Disk`, with Proxmox VE's defaults.

    They are those of `print_drive_commandline_full` and DriveDevice.pm in qemu-server 8.4 and 9.2.
    Options of the volume itself are not included.

    Args:
        scsihw: the VM's option.
        storage: configuration of the drive's storage, as far as it is known.

    Returns:
        Empty `aio`: QEMU's driver has none. Empty `scsihw`: not of this bus.
    """
    bus = slot.rstrip("0123456789")
    page_cache = storage.get("type") == "btrfs" and not is_on(storage.get("nocow", ""))
    cache = options.get("cache", str(Cache.WRITEBACK if page_cache else Cache.NONE))
    threaded = BUSES[bus].iothread or (bus == Bus.SCSI and scsihw == ScsiHw.SINGLE)
    return {
        "bus": bus,
        "cache": cache,
        "aio": _aio(options, storage, direct=cache in DIRECT),
        "iothread": option_text(threaded and is_on(options.get("iothread", ""))),
        "detect_zeroes": option_text(is_on(options.get("detect_zeroes", "1"))),
        "scsihw": scsihw if bus == Bus.SCSI else "",
        "discard": option_text(options.get("discard") == "on"),
        "ssd": option_text(is_on(options.get("ssd", ""))),
        "queues": options.get("queues", "0"),
        "iops": options.get("iops", "0"),
        "mbps": options.get("mbps", "0"),
    }


def _aio(options: Mapping[str, str], storage: Mapping[str, str], *, direct: bool) -> str:
    kind = kind_of(storage)
    if kind.network and not is_krbd(storage):
        return ""
    if asked := options.get("aio"):
        return asked
    if kind.uring_hangs:
        return str(Aio.NATIVE if direct else Aio.THREADS)
    return str(Aio.THREADS if is_krbd(storage) and not direct else Aio.IO_URING)


def kind_of(storage: Mapping[str, object]) -> StorageType:
    """Return the traits of a storage's type, also of types that hold no test volume."""
    name = str(storage.get("type", ""))
    return STORAGE_TYPES.get(name) or StorageType(network=name == "iscsidirect")


def is_thin(storage: Mapping[str, str], volume_format: str) -> bool:
    """Return whether deleted data of a volume keeps its space unless the disk has discard."""
    kind = kind_of(storage)
    if "sparse" in kind.options:
        return is_on(storage.get("sparse", ""))
    allocated = storage.get("preallocation") in ("falloc", "full")
    return kind.thin or (kind.extension and volume_format == Format.QCOW2 and not allocated)


def is_krbd(storage: Mapping[str, str]) -> bool:
    """Return whether the node's kernel opens the volumes of a Ceph cluster, not QEMU."""
    return storage.get("type") == "rbd" and is_on(storage.get("krbd", ""))


DIRECT: Final = frozenset(str(cache) for cache in Cache if cache.direct)


def read_back(
    slot: str, text: str, *, scsihw: str, volume_format: str, storage: Mapping[str, str]
) -> dict[str, str]:
    """Return the effective options in the format of `Disk`, from the effective configuration.

    Options of the volume itself have Proxmox's defaults: its API cannot set them. Args as
    `effective`.
    """
    _, options = parse_drive(text)
    found = effective(slot, options, scsihw=scsihw, storage=storage)
    return {
        **found,
        "format": volume_format,
        "scsihw": found["scsihw"] or str(ScsiHw.SINGLE),
        **{name: _default(name) for name in VOLUME_OPTIONS},
    }


def _default(name: str) -> str:
    return option_text(Disk.__dataclass_fields__[name].default, size=name == "cluster_size")


_FILES: Final = frozenset({Format.RAW, Format.QCOW2, Format.VMDK})
_RAW: Final = frozenset({Format.RAW})
_CHAIN: Final = frozenset({Format.RAW, Format.QCOW2})


@dataclass(frozen=True, slots=True)
class StorageType:
    """Storage plugin of Proxmox.

    Attributes:
        formats: formats of disk volumes, up to version 8.
        later: formats from version 9 on; None: the same.
        network: QEMU implements the protocol, so the aio option has no effect.
        of_server: several nodes write to the same disks, unless the settings say otherwise.
        extension: volumes are files, whose names end with their format.
        thick: its snapshots have the size of the volume (`alloc_lvm_image` in LVMPlugin.pm).
        thin: all its volumes are thin; those of ZFS only with `sparse`.
        chained: has the option snapshot-as-volume-chain, from version 9 on (pve-storage 9.0.5).
        snapshots: takes snapshots of raw volumes itself (`volume_has_feature` of the plugin).
        uring_hangs: Proxmox uses native or threads instead of io_uring, because of known hangs.
        options: those of storage.cfg that affect a volume's speed, or that of an operation on it.
            They are in `options` of the plugin; the place of the data, such as `thinpool`, belongs
            to the identity of the storage (`storage_options._KEYS`).
        drive_use: use of its drives in `disks/list`; empty: not unique; None: not on drives of the
            node.
        cache: how a volume's node page cache is emptied before a run with the API alone.
        no_container: why containers are not supported; empty: they are.
    """

    formats: frozenset[Format] = _RAW
    later: frozenset[Format] | None = None
    network: bool = False
    of_server: bool = False
    extension: bool = False
    thick: bool = False
    thin: bool = False
    chained: bool = False
    snapshots: bool = False
    uring_hangs: bool = False
    options: tuple[str, ...] = ()
    drive_use: str | None = None
    cache: HostCache = HostCache.REOPENED
    no_container: str = ""


# A direct write removes the written pages of a file from the page cache
# (`kiocb_invalidate_post_direct_write` in Linux's mm/filemap.c; nfs, cifs and btrfs do the same in
# their own `direct` paths). A block device loses its pages with its last user (`blkdev_put_whole`
# in block/bdev.c), and librbd's cache is part of the image that QEMU opens.
_BY_WRITING: Final = HostCache.REWRITTEN

# As `alloc_disk` and `run_with_loopdev` in PVE/LXC.pm of pve-container do it. Which types have
# content `rootdir` at all is in `plugindata` of each plugin of pve-storage.
_LOOP: Final = (
    "Proxmox uses a loop device with the node's page cache for a container there; a container's "
    "configuration has cache none"
)
_DATASET: Final = "Proxmox uses a ZFS dataset for a container there, not a volume with ext4"
_ON_FILES: Final[Any] = {"extension": True, "cache": _BY_WRITING, "no_container": _LOOP}
_CHAINED: Final[Any] = {**_ON_FILES, "formats": _FILES, "chained": True}
_NONE: Final = "Proxmox does not support containers on this storage type"

_OPTIONS: Final = ("preallocation", "snapshot-as-volume-chain", "bwlimit")
STORAGE_TYPES: Final[dict[str, StorageType]] = {
    "dir": StorageType(options=_OPTIONS, drive_use="", **_CHAINED),
    "nfs": StorageType(of_server=True, options=("options", *_OPTIONS), **_CHAINED),
    "cifs": StorageType(
        of_server=True, uring_hangs=True, options=("options", "smbversion", *_OPTIONS), **_CHAINED
    ),
    "btrfs": StorageType(
        snapshots=True,
        options=("nocow", "preallocation", "bwlimit"),
        drive_use="btrfs",
        **_ON_FILES,
    ),
    "glusterfs": StorageType(
        _FILES,
        frozenset(),
        network=True,
        of_server=True,
        extension=True,
        cache=HostCache.WARM,
        no_container=_NONE,
    ),
    # qcow2 only if the storage has snapshot-as-volume-chain; `check` verifies it.
    "lvm": StorageType(
        later=_CHAIN,
        thick=True,
        chained=True,
        uring_hangs=True,
        options=("snapshot-as-volume-chain", "saferemove", "saferemove_throughput", "bwlimit"),
        drive_use="LVM",
    ),
    "lvmthin": StorageType(thin=True, snapshots=True, options=("bwlimit",), drive_use="LVM"),
    # `zvol_read` in zvol_os.c of OpenZFS reads through the ARC, whatever the flags of the request.
    "zfspool": StorageType(
        snapshots=True,
        options=("blocksize", "sparse", "bwlimit"),
        drive_use="ZFS",
        cache=HostCache.ARC,
        no_container=_DATASET,
    ),
    # QEMU implements iSCSI: the node's cache is not involved.
    "zfs": StorageType(
        network=True,
        of_server=True,
        options=("blocksize", "sparse", "nowritecache", "bwlimit"),
        cache=HostCache.DROPPED,
        no_container=_NONE,
    ),
    "rbd": StorageType(
        network=True, of_server=True, thin=True, snapshots=True, options=("krbd", "bwlimit")
    ),
}
"""Types that can hold a test volume. iscsi, iscsidirect, pbs, cephfs and esxi cannot."""


if TYPE_CHECKING:
    TypeName = str
else:
    TypeName = Literal[tuple(STORAGE_TYPES)]  # derived from the table, to list types once


class ClusterStorage(Strict):
    """Storage of the cluster; `ClusterStorageSettings` describes its attributes."""

    type: TypeName
    id: StrictStr = ""
    shared: StrictBool | None = None
    min_free: Size | None = None

    @property
    def is_shared(self) -> bool:
        """Whether several nodes write to the same disks."""
        return STORAGE_TYPES[self.type].of_server if self.shared is None else self.shared


def storage_kind(name: str, *, major: int = 9) -> StorageKind:
    """Return the capabilities of storage type `name` on that version, for the planner.

    The API sets neither preallocation nor qcow2's own options per volume, hence `files` and
    `qcow2_options` are false.

    Raises KeyError: no such type.
    """
    kind = STORAGE_TYPES[name]
    return StorageKind(
        name=name,
        formats=kind.formats if major < 9 or kind.later is None else kind.later,
        network=kind.network,
        qcow2_options=False,
        host_cache=kind.cache,
        thick=kind.thick,
        no_container=kind.no_container,
        container_filesystem=Filesystem.EXT4,
        boots="template",
    )


class OperationTargets(Strict):
    """Where operations write, in the settings; `OperationSettings` describes its attributes."""

    backup_storage: StrictStr = ""
    fleecing_storage: StrictStr = ""
    move_storage: StrictStr = ""
    move_rate: Size = 0

    def on(self, storage: str) -> dict[str, tuple[str, ...]]:
        """Return operation -> storages of its copies of a volume on `storage`."""
        return {
            "backup": (self.backup_storage,),
            "backup-fleecing": (self.backup_storage, self.fleecing_storage),
            "restore": (self.backup_storage, storage),
            "move": (self.move_storage,),
        }


def vmstate_bytes(memory_bytes: int) -> int:
    """Return the size of the volume for the memory of a VM (PVE/QemuConfig.pm).

    Proxmox allocates it on the storage of the VM's disk (`find_vmstate_storage` there).
    """
    return 2 * memory_bytes + 500 * MIB


def volume_name(vmid: int, mark: str, kind: Format, number: int, *, extension: bool) -> str:
    """Return a file name that no other VM's volume has; Proxmox requires the prefix `vm-ID-`.

    The VM ID alone proves nothing: on a storage that two clusters share, it may be another VM's.

    Args:
        mark: ownership marker of the VM.
    """
    name = f"{volume_prefix(vmid, mark)}{kind}-{number}"
    # The name of a qcow2 volume on LVM also contains its format.
    return f"{name}.{kind}" if extension or kind is not Format.RAW else name


def volume_prefix(vmid: int, mark: str) -> str:
    """Return the prefix of the volume names of the VM with this marker."""
    return f"vm-{vmid}-pvebench-{mark[:_DIGITS]}-"


def belongs(volid: str, vmid: int, mark: str) -> bool:
    """Return whether a volume's name shows that it was created for the VM with this marker."""
    return re.split("[:/]", volid)[-1].startswith(volume_prefix(vmid, mark))


def is_moved(drive: str, vmid: int) -> bool:
    """Return whether a slot has a volume that Proxmox moved there from a volume of pvebench.

    The new volume has a name given by Proxmox, but keeps the serial number that pvebench set.
    """
    volid, options = parse_drive(drive)
    ours = _SERIAL.fullmatch(options.get("serial", ""))
    return bool(ours and is_given(volid, vmid))


def is_given(volid: str, vmid: int) -> bool:
    """Return whether Proxmox named a volume, as the disk or fleecing image of a VM with that ID."""
    name = re.split("[:/]", volid)[-1]
    return bool(re.match(rf"vm-{vmid}-(disk|fleece)-\d+(\.|\Z)", name))


_SERIAL: Final = re.compile(rf"{_SERIAL_START}\d+", re.ASCII)
_DIGITS: Final = 12
"""Digits of the VM's marker in volume names: 48 bits, as the name length is limited."""
