"""QEMU's block nodes and devices for a `Disk`, and its statistics of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pvebench.drivers.qemu.qmp import Channel
from pvebench.drivers.responses import count, fields, rows, text
from pvebench.errors import HypervisorGone, SwitchFailed
from pvebench.model.disk import BUSES, Bus, Disk, ScsiHw
from pvebench.model.units import MIB
from pvebench.model.volume import QEMU_TIMES, BlockCounters

# --- block nodes and devices of a `Disk`
#
# The mapping is that of Proxmox VE 9 for the same options: cache and aio determine the nodes; bus,
# scsihw and iothread determine the devices; the write cache belongs to the device.


class Names:
    """QEMU ids of one attachment, numbered so that a late reply never matches a later one.

    Attributes:
        file, format: nodes that open the file and the image.
        throttle, group: node that limits the disk, and the object with the limits.
        device, controller, iothread: the disk, its own controller and I/O thread.
        serial: serial number by which the guest identifies the disk.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.file, self.format = f"file{number}", f"test{number}"
        self.throttle, self.group = f"limit{number}", f"limits{number}"
        self.device, self.controller = f"disk{number}", f"controller{number}"
        self.iothread, self.serial = f"io{number}", f"pvebench{number}"

    def level(self, number: int) -> str:
        """Return the node of a snapshot below the volume, numbered from the newest."""
        return f"level{self.number}-{number}"

    def top(self, disk: Disk) -> str:
        """Return the node that the device uses."""
        return self.throttle if is_limited(disk) else self.format


def is_limited(disk: Disk) -> bool:
    """Return whether the disk has limits."""
    return bool(disk.iops or disk.mbps)


def objects(names: Names, disk: Disk) -> list[dict[str, Any]]:
    """Return the arguments of the object-add commands."""
    arguments: list[dict[str, Any]] = []
    if is_limited(disk):
        limits = {"iops-total": disk.iops, "bps-total": disk.mbps * MIB}
        limits = {key: value for key, value in limits.items() if value}
        arguments.append({"qom-type": "throttle-group", "id": names.group, "limits": limits})
    if disk.iothread:
        arguments.append({"qom-type": "iothread", "id": names.iothread})
    return arguments


def block_nodes(
    names: Names, disk: Disk, file: Mapping[str, Any], below: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the arguments of the blockdev-add commands, in order.

    Args:
        file: the storage's node for the volume, without name and cache flags.
        below: such nodes for its snapshots, newest first.
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
            **_backing(names, common, below),
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


def _backing(
    names: Names, common: Mapping[str, Any], below: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the nested nodes of a chain, all with the volume's cache and aio as in Proxmox."""
    backing: dict[str, Any] = {}
    for number, file in reversed(list(enumerate(below))):
        node = {"driver": "qcow2", "node-name": names.level(number), "file": {**common, **file}}
        backing = {"backing": {**common, **node, **backing}}
    return backing


def _detect_zeroes(disk: Disk) -> str:
    # As in Proxmox: with discard on, zeros become discards.
    if not disk.detect_zeroes:
        return "off"
    return "unmap" if disk.discard else "on"


def devices(names: Names, disk: Disk) -> list[dict[str, Any]]:
    """Return the arguments of the device_add commands, in order: controller first."""
    common = {
        "driver": BUSES[disk.bus].device,
        "id": names.device,
        "drive": names.top(disk),
        "serial": names.serial,
        "write-cache": "on" if disk.cache.write_cache else "off",
    }
    thread = {"iothread": names.iothread} if disk.iothread else {}
    # 1 means "not rotating"; 0, QEMU's default, means "not reported".
    rotation = {"rotation_rate": 1} if disk.ssd else {}
    match disk.bus:
        case Bus.VIRTIO:
            return [{**common, **thread}]
        case Bus.SCSI:
            return [
                _scsi_controller(names, disk) | thread,
                {**_scsi_place(names, disk), **common, **rotation},
            ]
        case Bus.SATA:
            place = {"bus": f"{names.controller}.0"}
            ahci = {"driver": "ahci", "id": names.controller}
            return [ahci, {**place, **common, **rotation}]
        case Bus.IDE:
            # The machine type pc has its own IDE controller.
            return [{"bus": "ide.0", "unit": 0, **common, **rotation}]
        case Bus.HOST | Bus.LXC:
            raise SwitchFailed("host and container cases have no device in a VM")


def _scsi_controller(names: Names, disk: Disk) -> dict[str, Any]:
    if disk.scsihw is ScsiHw.LSI:
        return {"driver": "lsi", "id": names.controller}
    queues = {"num_queues": disk.queues} if disk.queues else {}
    return {"driver": "virtio-scsi-pci", "id": names.controller, **queues}


def _scsi_place(names: Names, disk: Disk) -> dict[str, Any]:
    """Return the address of Proxmox's scsi1 on each kind of controller."""
    bus = {"bus": f"{names.controller}.0"}
    if disk.scsihw is ScsiHw.LSI:
        return {**bus, "scsi-id": 1}
    return {**bus, "channel": 0, "scsi-id": 0, "lun": 1}


def command_line(
    names: Names, disk: Disk, file: Mapping[str, Any], below: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Return the options of QEMU's command line that attach the disk at power-on."""
    options: list[str] = []
    for flag, entries in (
        ("-object", objects(names, disk)),
        ("-blockdev", block_nodes(names, disk, file, below)),
        ("-device", devices(names, disk)),
    ):
        for entry in entries:
            options += [flag, json.dumps(entry)]
    return options


STATISTICS: Final = rows(
    fields(
        node__name_=text,
        qdev_=text,
        stats=fields(
            rd_latency_histogram_=fields(bins=rows(count)),
            wr_latency_histogram_=fields(bins=rows(count)),
            rd_operations=count,
            wr_operations=count,
            flush_operations=count,
            rd_bytes=count,
            wr_bytes=count,
            unmap_operations_=count,
            unmap_bytes_=count,
            **{f"{key}_": count for key in QEMU_TIMES},
        ),
    )
)
"""Shape of a response to query-blockstats."""


LATENCIES: Final = ("rd_latency_histogram", "wr_latency_histogram")
"""Keys of the latency histograms, once they were requested."""


def own_statistics(names: Names, disk: Disk, qmp: Channel) -> Mapping[str, Any]:
    """Return QEMU's statistics of the disk. Raises as `block_counters`."""
    return _own(names, disk, qmp.ask("query-blockstats", shape=STATISTICS))


def _own(names: Names, disk: Disk, stats: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the disk's statistics; its node changes with operations such as a snapshot."""
    node = names.top(disk)
    for entry in stats:
        if names.device in entry.get("qdev", "").split("/") or entry.get("node-name") == node:
            own: Mapping[str, Any] = entry["stats"]
            return own
    raise HypervisorGone(
        f"QEMU does not report {node}", cause="the disk was detached outside pvebench"
    )


def block_counters(names: Names, disk: Disk, stats: Sequence[Mapping[str, Any]]) -> BlockCounters:
    """Return the disk's counters from `STATISTICS`.

    Raises HypervisorGone: QEMU does not report them.
    """
    return BlockCounters.of_qemu(_own(names, disk, stats))
