"""From what QEMU and the guest say of a disk back to the words of `Disk`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pvebench.drivers.qemu.blocks import Names, is_limited
from pvebench.model.disk import Bus, Cache, Disk, Format, ScsiHw, option_text
from pvebench.model.units import MIB

UNVERIFIED: Final = ("aio", "discard", "preallocation")
"""QEMU tells these nowhere. It refuses an aio mode that it cannot do."""

_BUS_OF_TYPE: Final = {"virtio-blk-pci": Bus.VIRTIO, "scsi-hd": Bus.SCSI}
_SCSIHW_OF_TYPE: Final = {"virtio-scsi-pci": ScsiHw.SINGLE, "lsi53c895a": ScsiHw.LSI}
_QCOW2_CLUSTER: Final = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was asked of QEMU and the guest after a switch.

    Attributes:
        nodes: answer of query-named-block-nodes.
        blocks: answer of query-block.
        device_type, controller_type: QOM types; the controller's is empty where there is none.
        iothread: QOM path of the disk's or controller's I/O thread, empty if none.
        queues: `num_queues` of the controller.
        limits: the throttle group's, empty if there is none.
        opened_direct: whether the kernel has the file open with O_DIRECT; None if unknown.
        guest: what the guest's kernel says: `write_cache`, `rotational`, `driver` ….
    """

    nodes: Sequence[Mapping[str, Any]]
    blocks: Sequence[Mapping[str, Any]]
    device_type: str
    guest: Mapping[str, str]
    controller_type: str = ""
    iothread: str = ""
    queues: int = 0
    limits: Mapping[str, Any] = field(default_factory=dict)
    opened_direct: bool | None = None


def read_back(names: Names, disk: Disk, seen: Seen) -> dict[str, str]:
    """Return the options that are really in force, in the words of `Disk`.

    `disk`, what was asked for, only tells the names of the nodes to look at, and which of two
    equal spellings to use.

    Raises:
        KeyError, StopIteration: QEMU does not know the nodes, or one without an image.
    """
    layout = next(node for node in seen.nodes if node["node-name"] == names.format)
    image = layout["image"]
    limits = seen.limits if is_limited(disk) else {}
    return {
        "bus": str(_bus(seen)),
        "scsihw": _scsihw(disk, seen),
        "format": str(layout["drv"]),
        "cache": _cache(names, disk, seen),
        "iothread": option_text(bool(seen.iothread)),
        "detect_zeroes": option_text(layout["detect_zeroes"] != "off"),
        "ssd": option_text(disk.bus is not Bus.VIRTIO and seen.guest.get("rotational") == "0"),
        "queues": str(seen.queues if disk.queues else 0),
        "iops": str(limits.get("iops-total", 0)),
        "mbps": str(limits.get("bps-total", 0) // MIB),
        **_qcow2(disk, image),
    }


def _qcow2(disk: Disk, image: Mapping[str, Any]) -> dict[str, str]:
    if disk.format is not Format.QCOW2:
        return {"cluster_size": "0", "extended_l2": "0", "backing": "0"}
    size = int(image.get("cluster-size", 0))
    usual = size == _QCOW2_CLUSTER and not disk.cluster_size
    data = image.get("format-specific", {}).get("data", {})
    return {
        "cluster_size": "0" if usual else str(size),
        "extended_l2": option_text(bool(data.get("extended-l2", False))),
        "backing": option_text("backing-filename" in image),
    }


def _bus(seen: Seen) -> str:
    if seen.device_type == "ide-hd":
        return str(Bus.SATA if "ahci" in seen.controller_type else Bus.IDE)
    return str(_BUS_OF_TYPE.get(seen.device_type, seen.device_type))


def _scsihw(disk: Disk, seen: Seen) -> str:
    if disk.bus is not Bus.SCSI:
        return str(ScsiHw.SINGLE)
    found = _SCSIHW_OF_TYPE.get(seen.controller_type)
    # One controller a disk and one for several are the same device; only its use differs.
    if found is ScsiHw.SINGLE and disk.scsihw is ScsiHw.SHARED:
        found = ScsiHw.SHARED
    return str(found or seen.controller_type)


def _cache(names: Names, disk: Disk, seen: Seen) -> str:
    file = next(node for node in seen.nodes if node["node-name"] == names.file)
    inserted = next(
        block["inserted"] for block in seen.blocks
        if block.get("inserted", {}).get("node-name") == names.top(disk)
    )  # fmt: skip
    direct = bool(file["cache"]["direct"])
    if seen.opened_direct is not None:
        direct = seen.opened_direct
    # Both must agree; a guest that sees another write cache sends other flushes.
    write_cache = _both(bool(inserted["cache"]["writeback"]), seen.guest.get("write_cache", ""))
    no_flush = bool(file["cache"]["no-flush"])
    for cache in Cache:
        if (cache.direct, cache.no_flush, cache.write_cache) == (direct, no_flush, write_cache):
            return str(cache)
    return f"direct={direct},no-flush={no_flush},write-cache={write_cache}"


def _both(qemu_says: bool, guest_says: str) -> bool | None:
    return qemu_says if guest_says == ("write-back" if qemu_says else "write-through") else None
