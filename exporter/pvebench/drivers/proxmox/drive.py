"""A test disk as Proxmox writes it: `STORAGE:VOLUME,key=value…`, and back. Pure.

The server sorts the keys, turns booleans into 1 and 0, adds `size` and drops what it likes:
strings are never compared, only what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pvebench.model.disk import VOLUME_OPTIONS, Bus, Disk, ScsiHw, option_text

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
