"""Traits of the buses of the test disk, for everything that depends on the bus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class BusTraits:
    """Traits of a bus.

    Attributes:
        hotplug: whether a disk can be attached to a running VM.
        iothread: whether a disk has an I/O thread of its own, whatever its controller is.
        rotation: whether a disk can report that it does not rotate (option ssd).
        device: QEMU's type of the disk.
        controller: part of the type of the controller of each disk; empty: any or none.
        slots: indexes of Proxmox's slots that test disks use. People use slot 0 for disks that they
            add; more slots of scsi need a newer machine type; ide2 is the guest image.
        modules: kernel modules of the guest.
    """

    hotplug: bool
    device: str
    slots: range
    modules: tuple[str, ...]
    iothread: bool = False
    rotation: bool = True
    controller: str = ""


_WITHOUT_VM: Final = BusTraits(hotplug=False, device="", slots=range(0), modules=())
BUSES: Final[Mapping[str, BusTraits]] = {
    "virtio": BusTraits(
        hotplug=True,
        device="virtio-blk-pci",
        slots=range(1, 16),
        modules=("virtio_blk",),
        iothread=True,
        rotation=False,
    ),
    "scsi": BusTraits(hotplug=True, device="scsi-hd", slots=range(1, 14), modules=("virtio_scsi",)),
    "sata": BusTraits(
        hotplug=False, device="ide-hd", controller="ahci", slots=range(1, 6), modules=("ahci",)
    ),
    "ide": BusTraits(hotplug=False, device="ide-hd", slots=range(2), modules=("ata_piix",)),
    "host": _WITHOUT_VM,
    "lxc": _WITHOUT_VM,
}
"""Bus -> its traits, in the order in which a device's bus is looked up."""


def modules_of(*, hotplug: bool) -> tuple[str, ...]:
    """Return the guest's modules for the buses with or without hot-plug."""
    return tuple(name for bus in BUSES.values() if bus.hotplug is hotplug for name in bus.modules)
