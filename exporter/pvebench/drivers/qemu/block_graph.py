"""From a `Disk` to QEMU's block nodes and devices. Pure; the way back is in `readback.py`.

The mapping is what Proxmox VE 9 gives QEMU for the same options: cache and aio decide the
nodes, bus, scsihw and iothread decide the devices, the write cache is the device's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.shapes import count, fields, rows, text
from pvebench.errors import HypervisorGone, SwitchFailed
from pvebench.model.disk import Bus, Disk, ScsiHw
from pvebench.model.units import MIB
from pvebench.model.volume import BlockCounters


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
        """Node that understands the format."""
        return f"test{self.number}"

    @property
    def throttle(self) -> str:
        """Node that limits the disk."""
        return f"limit{self.number}"

    @property
    def group(self) -> str:
        """Object with the limits."""
        return f"limits{self.number}"

    @property
    def device(self) -> str:
        """The disk."""
        return f"disk{self.number}"

    @property
    def controller(self) -> str:
        """The disk's own controller."""
        return f"controller{self.number}"

    @property
    def iothread(self) -> str:
        """The disk's own I/O thread."""
        return f"io{self.number}"

    @property
    def serial(self) -> str:
        """What the guest knows the disk by."""
        return f"pvebench{self.number}"

    def top(self, disk: Disk) -> str:
        """Return the node that the device sits on."""
        return self.throttle if is_limited(disk) else self.format


def is_limited(disk: Disk) -> bool:
    """Return whether a throttle is needed."""
    return bool(disk.iops or disk.mbps)


def objects(names: Names, disk: Disk) -> list[dict[str, Any]]:
    """Return the arguments of the object-add commands."""
    made: list[dict[str, Any]] = []
    if is_limited(disk):
        limits = {"iops-total": disk.iops, "bps-total": disk.mbps * MIB}
        limits = {key: value for key, value in limits.items() if value}
        made.append({"qom-type": "throttle-group", "id": names.group, "limits": limits})
    if disk.iothread:
        made.append({"qom-type": "iothread", "id": names.iothread})
    return made


def block_nodes(names: Names, disk: Disk, file: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of the blockdev-add commands, in order.

    Args:
        file: the storage's node for the volume, without name and cache flags.
    """
    common = {
        "cache": {"direct": disk.cache.direct, "no-flush": disk.cache.no_flush},
        "discard": "unmap" if disk.discard else "ignore",
    }
    nodes = [
        {**common, **file, "node-name": names.file},
        {
            **common,
            "driver": str(disk.format),
            "node-name": names.format,
            "file": names.file,
            "detect-zeroes": _detect_zeroes(disk),
        },
    ]
    if is_limited(disk):
        nodes.append(
            {
                **common,
                "driver": "throttle",
                "node-name": names.throttle,
                "throttle-group": names.group,
                "file": names.format,
            }
        )
    return nodes


def _detect_zeroes(disk: Disk) -> str:
    # As Proxmox does it: with discard on, zeros become discards.
    if not disk.detect_zeroes:
        return "off"
    return "unmap" if disk.discard else "on"


def devices(names: Names, disk: Disk) -> list[dict[str, Any]]:
    """Return the arguments of the device_add commands, in order: controller first."""
    common = {
        "id": names.device,
        "drive": names.top(disk),
        "serial": names.serial,
        "write-cache": "on" if disk.cache.write_cache else "off",
    }
    thread = {"iothread": names.iothread} if disk.iothread else {}
    # 1 says "not rotating"; 0, QEMU's default, says nothing.
    rotation = {"rotation_rate": 1} if disk.ssd else {}
    match disk.bus:
        case Bus.VIRTIO:
            return [{"driver": "virtio-blk-pci", **common, **thread}]
        case Bus.SCSI:
            return [
                _scsi_controller(names, disk) | thread,
                {"driver": "scsi-hd", **_scsi_place(names, disk), **common, **rotation},
            ]
        case Bus.SATA:
            place = {"bus": f"{names.controller}.0"}
            ahci = {"driver": "ahci", "id": names.controller}
            return [ahci, {"driver": "ide-hd", **place, **common, **rotation}]
        case Bus.IDE:
            # The machine type pc has its own IDE controller.
            return [{"driver": "ide-hd", "bus": "ide.0", "unit": 0, **common, **rotation}]
        case Bus.HOST | Bus.LXC:
            raise SwitchFailed("a row without a VM has no device in one")


def _scsi_controller(names: Names, disk: Disk) -> dict[str, Any]:
    if disk.scsihw is ScsiHw.LSI:
        return {"driver": "lsi", "id": names.controller}
    queues = {"num_queues": disk.queues} if disk.queues else {}
    return {"driver": "virtio-scsi-pci", "id": names.controller, **queues}


def _scsi_place(names: Names, disk: Disk) -> dict[str, Any]:
    """Return where Proxmox puts its scsi1 on each kind of controller."""
    bus = {"bus": f"{names.controller}.0"}
    if disk.scsihw is ScsiHw.LSI:
        return {**bus, "scsi-id": 1}
    return {**bus, "channel": 0, "scsi-id": 0, "lun": 1}


def command_line(names: Names, disk: Disk, file: Mapping[str, Any]) -> list[str]:
    """Return the options of QEMU's command line that plug the disk at power-on."""
    options: list[str] = []
    for flag, entries in (
        ("-object", objects(names, disk)),
        ("-blockdev", block_nodes(names, disk, file)),
        ("-device", devices(names, disk)),
    ):
        for entry in entries:
            options += [flag, json.dumps(entry)]
    return options


STATISTICS: Final = rows(
    fields(
        node__name_=text,
        stats=fields(
            rd_operations=count,
            wr_operations=count,
            flush_operations=count,
            rd_bytes=count,
            wr_bytes=count,
            unmap_operations_=count,
        ),
    )
)
"""An answer of query-blockstats."""


def block_counters(names: Names, disk: Disk, stats: Sequence[Mapping[str, Any]]) -> BlockCounters:
    """Return the disk's counters from `STATISTICS`.

    Raises:
        HypervisorGone: QEMU does not say.
    """
    node = names.top(disk)
    mine = next((entry["stats"] for entry in stats if entry.get("node-name") == node), None)
    if mine is None:
        raise HypervisorGone(
            f"QEMU tells nothing of {node}", cause="the disk was taken away from it"
        )
    return BlockCounters(
        read_operations=mine["rd_operations"],
        write_operations=mine["wr_operations"],
        flush_operations=mine["flush_operations"],
        read_bytes=mine["rd_bytes"],
        write_bytes=mine["wr_bytes"],
        unmap_operations=mine.get("unmap_operations") or 0,
    )
