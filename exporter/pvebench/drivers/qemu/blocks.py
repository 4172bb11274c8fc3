"""From a `Disk` to QEMU's block nodes and devices, and back. Pure.

The mapping is what Proxmox VE 9 gives QEMU for the same options: cache and aio decide the
nodes, bus and iothread decide the devices, the write cache is the device's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pvebench.model.disk import Bus, Cache, Disk, Format, option_text
from pvebench.model.ports import BlockCounters


@dataclass(frozen=True, slots=True)
class Names:
    """QEMU ids of one attachment. A number in each: a late reply must never hit its successor."""

    number: int

    @property
    def file(self) -> str:
        """Node that opens the file."""
        return f"file{self.number}"

    @property
    def format(self) -> str:
        """Node that understands the format; the device sits on it."""
        return f"test{self.number}"

    @property
    def device(self) -> str:
        """The disk."""
        return f"disk{self.number}"

    @property
    def controller(self) -> str:
        """The disk's own SCSI controller."""
        return f"scsihw{self.number}"

    @property
    def iothread(self) -> str:
        """The disk's own I/O thread."""
        return f"io{self.number}"

    @property
    def serial(self) -> str:
        """What the guest knows the disk by."""
        return f"pvebench{self.number}"


def block_nodes(names: Names, disk: Disk, path: str) -> list[dict[str, Any]]:
    """Return the arguments of the blockdev-add commands, in order."""
    cache = {"direct": disk.cache.direct, "no-flush": disk.cache.no_flush}
    file = {
        "driver": "file",
        "node-name": names.file,
        "filename": path,
        "aio": str(disk.aio),
        "cache": cache,
        "discard": "ignore",
    }
    layout = {
        "driver": str(disk.format),
        "node-name": names.format,
        "file": names.file,
        "cache": cache,
        "discard": "ignore",
        "detect-zeroes": "on" if disk.detect_zeroes else "off",
    }
    return [file, layout]


def devices(names: Names, disk: Disk) -> list[dict[str, Any]]:
    """Return the arguments of the device_add commands, in order: controller first."""
    common = {
        "id": names.device,
        "drive": names.format,
        "serial": names.serial,
        "write-cache": "on" if disk.cache.write_cache else "off",
    }
    thread = {"iothread": names.iothread} if disk.iothread else {}
    match disk.bus:
        case Bus.VIRTIO:
            return [{"driver": "virtio-blk-pci", **common, **thread}]
        case Bus.SCSI:
            controller = {"driver": "virtio-scsi-pci", "id": names.controller, **thread}
            place = {"bus": f"{names.controller}.0", "channel": 0, "scsi-id": 0, "lun": 1}
            return [controller, {"driver": "scsi-hd", **place, **common}]


_BUS_OF_TYPE = {"virtio-blk-pci": Bus.VIRTIO, "scsi-hd": Bus.SCSI}


def read_back(
    names: Names,
    *,
    nodes: Sequence[Mapping[str, Any]],
    blocks: Sequence[Mapping[str, Any]],
    device_type: str,
    iothread: str,
    opened_direct: bool | None,
    guest_write_cache: str,
) -> dict[str, str]:
    """Return the options that are really in force, in the words of `Disk`.

    Args:
        nodes: answer of query-named-block-nodes.
        blocks: answer of query-block.
        device_type: QOM type of the disk.
        iothread: QOM path of the disk's or controller's I/O thread, empty if none.
        opened_direct: whether the kernel has the file open with O_DIRECT; None if unknown.
        guest_write_cache: what the guest's kernel says: `write-back` or `write-through`.
    """
    by_name = {str(node["node-name"]): node for node in nodes}
    layout, file = by_name[names.format], by_name[names.file]
    inserted = next(
        block["inserted"] for block in blocks
        if block.get("inserted", {}).get("node-name") == names.format
    )  # fmt: skip
    direct = bool(file["cache"]["direct"])
    if opened_direct is not None:
        direct = opened_direct
    bus = _BUS_OF_TYPE.get(device_type)
    return {
        "bus": str(bus or device_type),
        "format": str(layout["drv"]),
        "cache": _cache_name(
            direct=direct,
            no_flush=bool(file["cache"]["no-flush"]),
            # Both must agree; a guest that sees another write cache sends other flushes.
            write_cache=_both(bool(inserted["cache"]["writeback"]), guest_write_cache),
        ),
        "iothread": option_text(bool(iothread)),
        "detect_zeroes": option_text(layout["detect_zeroes"] != "off"),
    }


def _both(qemu_says: bool, guest_says: str) -> bool | None:
    return qemu_says if guest_says == ("write-back" if qemu_says else "write-through") else None


def _cache_name(*, direct: bool, no_flush: bool, write_cache: bool | None) -> str:
    for cache in Cache:
        if (cache.direct, cache.no_flush, cache.write_cache) == (direct, no_flush, write_cache):
            return str(cache)
    return f"direct={direct},no-flush={no_flush},write-cache={write_cache}"


def block_counters(names: Names, stats: Sequence[Mapping[str, Any]]) -> BlockCounters:
    """Return the disk's counters from an answer of query-blockstats."""
    mine = next(entry["stats"] for entry in stats if entry.get("node-name") == names.format)
    return BlockCounters(
        read_operations=int(mine["rd_operations"]),
        write_operations=int(mine["wr_operations"]),
        flush_operations=int(mine["flush_operations"]),
        read_bytes=int(mine["rd_bytes"]),
        write_bytes=int(mine["wr_bytes"]),
        unmap_operations=int(mine.get("unmap_operations", 0)),
    )


def create_options(kind: Format) -> list[str]:
    """Return qemu-img's options for a new volume, as Proxmox creates it on a directory."""
    match kind:
        case Format.RAW:
            return ["-f", "raw", "-o", "preallocation=off"]
        case Format.QCOW2:
            return ["-f", "qcow2", "-o", "preallocation=metadata"]
