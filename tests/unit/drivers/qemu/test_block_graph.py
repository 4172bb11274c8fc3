from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from typing import Any

import pytest

from pvebench.drivers.qemu.block_graph import Names, block_nodes, command_line, devices, objects
from pvebench.drivers.qemu.disk_readback import UNVERIFIED, Seen, read_back, used_aio
from pvebench.drivers.storages.qemu_img import create_options
from pvebench.model.disk import (
    DISK_OPTIONS,
    HOST_OPTIONS,
    Aio,
    Bus,
    Cache,
    Disk,
    Format,
    Preallocation,
    ScsiHw,
)

NAMES = Names(3)
FILE = {"driver": "file", "filename": "/v", "aio": "io_uring"}

# cache mode -> direct, no-flush, write-cache: what Proxmox VE 9 gives QEMU (qemu-server 9.2.6)
TABLE = {
    Cache.NONE: (True, False, "on"),
    Cache.DIRECTSYNC: (True, False, "off"),
    Cache.WRITETHROUGH: (False, False, "off"),
    Cache.WRITEBACK: (False, False, "on"),
    Cache.UNSAFE: (False, True, "on"),
}


def disk(bus: Bus = Bus.SCSI, kind: Format = Format.RAW, **options: object) -> Disk:
    return Disk(bus=bus, format=kind, **{"cache": Cache.NONE, **options})  # type: ignore[arg-type] # options by name


@pytest.mark.parametrize("cache", list(Cache))
def test_a_cache_mode_is_given_to_qemu_as_proxmox_gives_it(cache: Cache) -> None:
    file, layout = block_nodes(NAMES, disk(cache=cache), FILE)
    direct, no_flush, write_cache = TABLE[cache]
    assert file["cache"] == layout["cache"] == {"direct": direct, "no-flush": no_flush}
    assert file["aio"] == "io_uring"
    assert layout["detect-zeroes"] == "off"
    assert devices(NAMES, disk(cache=cache))[-1]["write-cache"] == write_cache


def test_an_iothread_belongs_to_the_disk_on_virtio_and_to_the_controller_on_scsi() -> None:
    (virtio,) = devices(NAMES, disk(Bus.VIRTIO, aio=Aio.NATIVE, iothread=True))
    controller, scsi = devices(NAMES, disk(Bus.SCSI, aio=Aio.NATIVE, iothread=True))
    assert virtio["iothread"] == controller["iothread"] == NAMES.iothread
    assert "iothread" not in scsi
    assert objects(NAMES, disk(iothread=True)) == [{"qom-type": "iothread", "id": NAMES.iothread}]


def test_discard_reaches_every_node_and_makes_zeros_discards() -> None:
    nodes = block_nodes(NAMES, disk(discard=True, detect_zeroes=True), FILE)
    assert {node["discard"] for node in nodes} == {"unmap"}
    assert nodes[-1]["detect-zeroes"] == "unmap"


def test_limits_are_a_throttle_between_the_disk_and_its_image() -> None:
    limited = disk(iops=500, mbps=10)
    (group,) = objects(NAMES, limited)
    assert group["limits"] == {"iops-total": 500, "bps-total": 10 * 1024 * 1024}
    *_, throttle = block_nodes(NAMES, limited, FILE)
    assert throttle["throttle-group"] == group["id"]
    assert devices(NAMES, limited)[-1]["drive"] == throttle["node-name"]


@pytest.mark.parametrize(
    ("options", "controller", "drive"),
    [
        ({"bus": Bus.SATA}, "ahci", "ide-hd"),
        ({"bus": Bus.SCSI, "scsihw": ScsiHw.LSI}, "lsi", "scsi-hd"),
        ({"bus": Bus.SCSI, "scsihw": ScsiHw.SHARED}, "virtio-scsi-pci", "scsi-hd"),
    ],
)
def test_each_controller_is_the_one_that_proxmox_uses(
    options: dict[str, object], controller: str, drive: str
) -> None:
    made = devices(NAMES, disk(**options))  # type: ignore[arg-type] # options by name
    assert [device["driver"] for device in made] == [controller, drive]


def test_a_cold_disk_is_plugged_by_the_command_line_in_the_same_words() -> None:
    cold = disk(Bus.IDE, iops=100)
    line = command_line(NAMES, cold, FILE)
    assert line[::2] == ["-object", "-blockdev", "-blockdev", "-blockdev", "-device"]
    assert json.loads(line[-1]) == devices(NAMES, cold)[0]


def test_ssd_is_reported_as_a_rotation_rate_of_one_and_queues_to_the_controller() -> None:
    controller, drive = devices(NAMES, disk(ssd=True, queues=4))
    assert (controller["num_queues"], drive["rotation_rate"]) == (4, 1)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (disk(), ["-f", "raw"]),
        (disk(preallocation=Preallocation.FULL), ["-f", "raw", "-o", "preallocation=full"]),
        (disk(kind=Format.QCOW2), ["-f", "qcow2", "-o", "preallocation=metadata"]),
        (
            disk(kind=Format.QCOW2, cluster_size=131072, extended_l2=True),
            ["-f", "qcow2", "-o", "cluster_size=131072,extended_l2=on,preallocation=metadata"],
        ),
        (disk(kind=Format.VMDK), ["-f", "vmdk"]),
    ],
)
def test_a_volume_is_created_with_its_options(made: Disk, options: list[str]) -> None:
    assert create_options(made) == options


def test_an_overlay_is_not_preallocated_and_names_its_base() -> None:
    options = create_options(disk(kind=Format.QCOW2, backing=True), base="/b.raw")
    assert options == ["-f", "qcow2", "-o", "preallocation=off", "-b", "/b.raw", "-F", "raw"]


def seen(**changes: object) -> Seen:
    given: dict[str, object] = {
        "nodes": [
            {"node-name": "file3", "cache": {"direct": True, "no-flush": False}},
            {"node-name": "test3", "drv": "raw", "detect_zeroes": "off", "image": {}},
        ],
        "blocks": [{}, {"inserted": {"node-name": "test3", "cache": {"writeback": True}}}],
        "device_type": "virtio-blk-pci",
        "guest": {"write_cache": "write-back"},
    }
    return Seen(**{**given, **changes})  # type: ignore[arg-type] # a mixture on purpose


def test_what_qemu_and_the_guest_say_is_read_in_the_words_of_the_disk() -> None:
    found = read_back(NAMES, disk(Bus.VIRTIO), seen())
    assert {key: found[key] for key in ("bus", "format", "cache", "iothread", "iops")} == {
        "bus": "virtio",
        "format": "raw",
        "cache": "none",
        "iothread": "0",
        "iops": "0",
    }


def test_every_option_of_the_disk_is_read_back_or_said_to_be_unverified() -> None:
    found = read_back(NAMES, disk(Bus.VIRTIO), seen())
    # Those of the device below are read back where they are set: drivers.host.tuning.
    assert set(DISK_OPTIONS) == {*found, *UNVERIFIED, *HOST_OPTIONS}


def test_a_guest_that_sees_another_write_cache_than_qemu_is_no_known_cache_mode() -> None:
    found = read_back(NAMES, disk(Bus.VIRTIO), seen(guest={"write_cache": "write-through"}))
    assert found["cache"] == "direct=True,no-flush=False,write-cache=None"


def test_a_file_that_the_kernel_has_open_without_o_direct_is_not_cache_none() -> None:
    found = read_back(NAMES, disk(Bus.VIRTIO), seen(opened_direct=False))
    assert found["cache"] == "writeback"


def rings() -> dict[Aio, mmap.mmap | int]:
    """Return an empty context of each interface to the kernel, as QEMU has one."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(ctypes.c_long(425), 4, ctypes.create_string_buffer(120))  # io_uring_setup
    context = ctypes.c_ulong(0)
    assert libc.syscall(ctypes.c_long(206), 4, ctypes.byref(context)) == 0  # io_setup
    return {Aio.IO_URING: mmap.mmap(ring, mmap.PAGESIZE), Aio.NATIVE: context.value}


def test_the_aio_mode_is_the_one_of_which_the_kernel_shows_the_memory() -> None:
    """The witness is this process, as real as a QEMU; its message is that of QEMU 10.0.13."""
    said = "qemu: Unable to use linux io_uring, falling back to thread pool: failed to init\n"
    modes = [disk(aio=mode) for mode in (Aio.IO_URING, Aio.NATIVE)]
    program = [sys.executable, "-c", "input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as other:
        assert [used_aio(other.pid, one, "") for one in modes] == ["threads", "threads"]
        other.communicate(b"\n")
    held = rings()
    assert [used_aio(os.getpid(), one, "") for one in modes] == list(held)
    assert [used_aio(os.getpid(), one, said) for one in modes] == ["threads", "threads"]
    assert used_aio(os.getpid(), disk(aio=Aio.THREADS), "") == "threads"
    assert used_aio(None, disk(aio=Aio.THREADS), "") == ""  # QEMU ended


def test_an_aio_mode_that_is_known_is_read_back() -> None:
    assert read_back(NAMES, disk(Bus.VIRTIO), seen(aio="threads"))["aio"] == "threads"
    assert "aio" not in read_back(NAMES, disk(Bus.VIRTIO), seen())


def test_snapshots_are_nested_with_the_cache_of_the_volume() -> None:
    chained = disk(kind=Format.QCOW2, chain=2)
    below = [{"driver": "file", "filename": name, "aio": "threads"} for name in ("new", "old")]
    top = block_nodes(NAMES, chained, {"driver": "file", "filename": "top"}, below)[1]
    newest, oldest = top["backing"], top["backing"]["backing"]
    assert [one["node-name"] for one in (newest, oldest)] == ["level3-0", "level3-1"]
    assert [one["file"]["filename"] for one in (newest, oldest)] == ["new", "old"]
    assert "backing" not in oldest
    cache = {"direct": True, "no-flush": False}
    for one in (newest, oldest):
        assert one["cache"] == one["file"]["cache"] == cache


def image(name: str, *, cluster: int = 131072, extended: bool = True, **more: object) -> Any:
    data = {"cluster-size": cluster, "format-specific": {"data": {"extended-l2": extended}}}
    about = {"drv": "qcow2", "detect_zeroes": "off", "image": {**data, **more}}
    return {"node-name": name, "backing_file_depth": 2, **about}


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        (
            [image("test3"), image("level3-0"), image("level3-1", cluster=65536, extended=False)],
            {"chain": "2", "overlay_cluster": "0", "cluster_size": "0", "extended_l2": "0"},
        ),
        (
            [image("test3"), image("level3-0", cluster=65536, extended=False), image("level3-1")],
            {"chain": "2", "overlay_cluster": "0 and 65536", "cluster_size": "131072"},
        ),
        (
            [image("test3"), image("level3-0")],  # QEMU counts two
            {"chain": "2 overlays, 0 internal"},
        ),
        (
            [{**image("test3", snapshots=[{}, {}]), "backing_file_depth": 0}],
            {"chain": "2", "chain_kind": "internal"},
        ),
        (
            [image("test3", snapshots=[{}]), image("level3-0"), image("level3-1")],
            {"chain": "2 overlays, 1 internal"},
        ),
    ],
)
def test_depth_and_form_of_each_level_are_read_back(
    levels: list[dict[str, object]], found: dict[str, str]
) -> None:
    file = {"node-name": "file3", "cache": {"direct": True, "no-flush": False}}
    back = read_back(NAMES, disk(Bus.VIRTIO, Format.QCOW2, chain=2), seen(nodes=[file, *levels]))
    assert {key: back[key] for key in found} == found
