"""Read-back of the test disk: its options as QEMU and the guest report them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pvebench.drivers.qemu.block_graph import Names, devices, is_limited
from pvebench.drivers.qemu.machine import QemuMachine
from pvebench.drivers.qemu.qmp import Channel
from pvebench.drivers.responses import Shape, count, fields, rows, text, truth
from pvebench.model.disk import (
    BUSES,
    DEFAULT_CLUSTER,
    OVERLAY_CLUSTER,
    Aio,
    Bus,
    Cache,
    ChainKind,
    Disk,
    Format,
    ScsiHw,
    option_text,
)
from pvebench.model.units import MIB

UNVERIFIED: Final = ("aio", "discard", "preallocation")
"""Options that QEMU does not report. Of a file on this machine, Linux shows the aio mode."""
_RINGS: Final = {Aio.IO_URING: "anon_inode:[io_uring]", Aio.NATIVE: "/[aio]"}
"""aio mode -> name of its memory in /proc/PID/maps."""
_FALLBACK: Final = "falling back to thread pool"

_SCSIHW_OF_TYPE: Final = {"virtio-scsi-pci": ScsiHw.SINGLE, "lsi53c895a": ScsiHw.LSI}
_OVERLAYS: Final = {(OVERLAY_CLUSTER, True): "0", (DEFAULT_CLUSTER, False): str(DEFAULT_CLUSTER)}
"""Cluster size and extended L2 of an overlay -> `Disk.overlay_cluster`."""
_NODES: Final = rows(
    fields(
        node__name_=text,
        drv=text,
        detect_zeroes=text,
        cache=fields(direct=truth, no__flush=truth),
        backing_file_depth_=count,
        image=fields(
            cluster__size_=count,
            format__specific_=fields(data_=fields(extended__l2_=truth)),
            snapshots_=rows(fields()),
        ),
    )
)
_BLOCKS: Final = rows(fields(inserted_=fields(node__name_=text, cache=fields(writeback=truth))))
_LIMITS: Final = fields(iops__total_=count, bps__total_=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """State of QEMU and the guest after a switch.

    Attributes:
        nodes: response to query-named-block-nodes.
        blocks: response to query-block.
        device_type, controller_type: QOM types; the latter is empty without a controller.
        iothread: QOM path of the disk's or controller's I/O thread; empty: none.
        queues: `num_queues` of the controller.
        limits: those of the throttle group; empty: none.
        opened_direct: whether the file is open with O_DIRECT; None: unknown.
        aio: aio mode of the file; empty: unknown.
        guest: from the guest's kernel: `write_cache`, `rotational`, `driver` ….
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
    aio: str = ""


def read_back(names: Names, disk: Disk, seen: Seen) -> dict[str, str]:
    """Return the effective options, in the terms of `Disk`.

    The requested `disk` only determines the names of the nodes, and which of two equivalent values
    to return.

    Raises KeyError, StopIteration: QEMU does not report the nodes, or one without an image.
    """
    layout = next(node for node in seen.nodes if node["node-name"] == names.format)
    limits = seen.limits if is_limited(disk) else {}
    return {
        "bus": _bus(seen),
        "scsihw": _scsihw(disk, seen),
        "format": str(layout["drv"]),
        "cache": _cache(names, disk, seen),
        "iothread": option_text(bool(seen.iothread)),
        "detect_zeroes": option_text(layout["detect_zeroes"] != "off"),
        "ssd": option_text(BUSES[disk.bus].rotation and seen.guest.get("rotational") == "0"),
        "queues": str(seen.queues if disk.queues else 0),
        "iops": str(limits.get("iops-total", 0)),
        "mbps": str(limits.get("bps-total", 0) // MIB),
        **({"aio": seen.aio} if seen.aio else {}),
        **_chain(names, disk, layout, seen),
        **_qcow2(names, disk, layout, seen),
    }


def _chain(names: Names, disk: Disk, layout: Mapping[str, Any], seen: Seen) -> dict[str, str]:
    """Return the options of the chain. Each level but the oldest is an overlay."""
    image, levels = layout["image"], _levels(names, seen)
    depth, internal = len(levels), len(image.get("snapshots") or ())
    counted = layout.get("backing_file_depth", 0) if disk.chain else depth
    clean = counted == depth and not (depth and internal)
    kind = ChainKind.INTERNAL if internal else ChainKind.VOLUME
    shapes = {_clusters(node["image"]) for node in (layout, *levels)[:depth]}
    found = {_OVERLAYS.get(shape, f"{shape}") for shape in shapes} or {"0"}
    return {
        "chain": str(depth or internal) if clean else f"{counted} overlays, {internal} internal",
        "chain_kind": str(kind),
        "overlay_cluster": " and ".join(sorted(found)),
    }


def _levels(names: Names, seen: Seen) -> list[Mapping[str, Any]]:
    """Return the nodes of the snapshots, newest first."""
    nodes = {node.get("node-name"): node for node in seen.nodes}
    levels: list[Mapping[str, Any]] = []
    while (name := names.level(len(levels))) in nodes:
        levels.append(nodes[name])
    return levels


def _clusters(image: Mapping[str, Any]) -> tuple[int, bool]:
    data = image.get("format-specific", {}).get("data", {})
    return int(image.get("cluster-size", 0)), bool(data.get("extended-l2", False))


def _qcow2(names: Names, disk: Disk, layout: Mapping[str, Any], seen: Seen) -> dict[str, str]:
    """Return the options of the volume, which is the oldest level of a chain."""
    if disk.format is not Format.QCOW2:
        return {"cluster_size": "0", "extended_l2": "0", "backing": "0"}
    image = (layout, *_levels(names, seen))[-1]["image"]
    size, extended = _clusters(image)
    usual = size == DEFAULT_CLUSTER and not disk.cluster_size
    return {
        "cluster_size": "0" if usual else str(size),
        "extended_l2": option_text(extended),
        "backing": option_text("backing-filename" in image),
    }


def _bus(seen: Seen) -> str:
    found = (
        name
        for name, bus in BUSES.items()
        if bus.device == seen.device_type and bus.controller in seen.controller_type
    )
    return next(found, seen.device_type)


def _scsihw(disk: Disk, seen: Seen) -> str:
    if disk.bus is not Bus.SCSI:
        return str(ScsiHw.SINGLE)
    hardware = _SCSIHW_OF_TYPE.get(seen.controller_type)
    # One controller per disk and one for several are the same device; only its use differs.
    if hardware is ScsiHw.SINGLE and disk.scsihw is ScsiHw.SHARED:
        hardware = ScsiHw.SHARED
    return str(hardware or seen.controller_type)


def _cache(names: Names, disk: Disk, seen: Seen) -> str:
    file = next(node for node in seen.nodes if node["node-name"] == names.file)
    inserted = next(
        block["inserted"]
        for block in seen.blocks
        if block.get("inserted", {}).get("node-name") == names.top(disk)
    )
    direct = bool(file["cache"]["direct"])
    if seen.opened_direct is not None:
        direct = seen.opened_direct
    # QEMU and guest must agree: the guest's view of the write cache determines its flushes.
    write_cache: bool | None = bool(inserted["cache"]["writeback"])
    word = "write-back" if write_cache else "write-through"
    if seen.guest.get("write_cache", "") not in ("", word):
        write_cache = None
    no_flush = bool(file["cache"]["no-flush"])
    for cache in Cache:
        if (cache.direct, cache.no_flush, cache.write_cache) == (direct, no_flush, write_cache):
            return str(cache)
    return f"direct={direct},no-flush={no_flush},write-cache={write_cache}"


def look(
    vm: QemuMachine, names: Names, disk: Disk, *, guest: dict[str, str], opened: str, old: int = 0
) -> Seen:
    """Return the state of QEMU and guest that shows the effective options.

    Args:
        opened: path with which QEMU opened the volume; empty: not a file.
        old: bytes of QEMU's output from before the attach.
    """
    qmp = vm.qmp
    arguments = devices(names, disk)
    controller = names.controller if len(arguments) > 1 else ""
    virtio = disk.bus is Bus.VIRTIO or arguments[0]["driver"] == "virtio-scsi-pci"
    holder, group = controller or names.device, f"/objects/{names.group}"
    return Seen(
        # With `flat`, QEMU does not count the images below a node.
        nodes=qmp.ask("query-named-block-nodes", {"flat": not disk.chain}, shape=_NODES),
        blocks=qmp.ask("query-block", shape=_BLOCKS),
        device_type=_property(qmp, names.device, "type", text),
        controller_type=_property(qmp, controller, "type", text) if controller else "",
        iothread=_property(qmp, holder, "iothread", text) if virtio else "",
        queues=_property(qmp, controller, "num_queues", count) if disk.queues else 0,
        limits=_property(qmp, group, "limits", _LIMITS) if is_limited(disk) else {},
        opened_direct=opened_direct(vm.pid, Path(opened)) if opened else None,
        aio=used_aio(vm.pid, disk, vm.messages(old)) if opened else "",
        guest=guest,
    )


def _property(qmp: Channel, owner: str, name: str, shape: Shape) -> Any:
    """Return a property of an object; a path without a slash is the id of a device."""
    path = owner if owner.startswith("/") else f"/machine/peripheral/{owner}"
    return qmp.ask("qom-get", {"path": path, "property": name}, shape=shape)


def used_aio(pid: int | None, disk: Disk, messages: str) -> str:
    """Return the aio mode that QEMU uses for a file after its first I/O; empty: unknown.

    QEMU 10 reports a mode that it cannot use at that I/O, and uses threads (block/file-posix.c).
    """
    try:
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    except OSError:
        return ""
    used = _RINGS.get(disk.aio, "") in maps and _FALLBACK not in messages
    return str(disk.aio if used else Aio.THREADS)


def opened_direct(pid: int | None, path: Path) -> bool | None:
    """Return whether a process has `path` open with O_DIRECT; None: unknown."""
    if pid is None:
        return None
    target = str(path.resolve())
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if str(fd.readlink()) == target:
                info = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text("ascii")
                flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDWR:
                    return bool(int(flags.split()[1], 8) & os.O_DIRECT)
    except OSError:
        return None
    return None
