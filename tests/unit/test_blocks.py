from __future__ import annotations

import pytest

from pvebench.drivers.qemu.blocks import Names, block_nodes, devices, read_back
from pvebench.model.disk import Aio, Bus, Cache, Disk, Format

NAMES = Names(3)

# cache mode -> direct, no-flush, write-cache: what Proxmox VE 9 gives QEMU (qemu-server 9.2.6)
TABLE = {
    Cache.NONE: (True, False, "on"),
    Cache.DIRECTSYNC: (True, False, "off"),
    Cache.WRITETHROUGH: (False, False, "off"),
    Cache.WRITEBACK: (False, False, "on"),
    Cache.UNSAFE: (False, True, "on"),
}


@pytest.mark.parametrize("cache", list(Cache))
def test_a_cache_mode_is_given_to_qemu_as_proxmox_gives_it(cache: Cache) -> None:
    disk = Disk(bus=Bus.SCSI, format=Format.RAW, cache=cache)
    file, layout = block_nodes(NAMES, disk, "/v")
    direct, no_flush, write_cache = TABLE[cache]
    assert file["cache"] == layout["cache"] == {"direct": direct, "no-flush": no_flush}
    assert file["aio"] == "io_uring"
    assert layout["detect-zeroes"] == "off"
    assert devices(NAMES, disk)[-1]["write-cache"] == write_cache


def test_virtio_is_one_device_and_scsi_has_its_own_controller() -> None:
    virtio = Disk(bus=Bus.VIRTIO, format=Format.RAW, cache=Cache.NONE, iothread=True)
    scsi = Disk(bus=Bus.SCSI, format=Format.RAW, cache=Cache.NONE, iothread=True, aio=Aio.THREADS)
    assert [device["driver"] for device in devices(NAMES, virtio)] == ["virtio-blk-pci"]
    assert devices(NAMES, virtio)[0]["iothread"] == "io3"
    controller, disk = devices(NAMES, scsi)
    assert (controller["driver"], controller["iothread"]) == ("virtio-scsi-pci", "io3")
    assert (disk["driver"], disk["bus"], disk["lun"]) == ("scsi-hd", "scsihw3.0", 1)
    assert "iothread" not in disk


def answers(cache: Cache) -> dict[str, object]:
    direct, no_flush, write_cache = TABLE[cache]
    flags = {"direct": direct, "no-flush": no_flush, "writeback": True}
    return {
        "nodes": [
            {"node-name": "test3", "drv": "raw", "detect_zeroes": "off", "cache": flags},
            {"node-name": "file3", "drv": "file", "detect_zeroes": "off", "cache": flags},
        ],
        "blocks": [
            {"device": "other"},
            {"inserted": {"node-name": "test3", "cache": {"writeback": write_cache == "on"}}},
        ],
        "device_type": "scsi-hd", "iothread": "", "opened_direct": direct,
        "guest_write_cache": "write-back" if write_cache == "on" else "write-through",
    }  # fmt: skip


@pytest.mark.parametrize("cache", list(Cache))
def test_what_was_given_is_read_back_as_the_same_mode(cache: Cache) -> None:
    assert read_back(NAMES, **answers(cache))["cache"] == str(cache)  # type: ignore[arg-type] # answers


def test_a_file_that_the_kernel_has_open_otherwise_is_not_taken_for_none() -> None:
    told = answers(Cache.NONE) | {"opened_direct": False}
    assert read_back(NAMES, **told)["cache"] == "writeback"  # type: ignore[arg-type] # answers


def test_a_guest_that_sees_another_write_cache_is_a_mismatch() -> None:
    told = answers(Cache.NONE) | {"guest_write_cache": "write-through"}
    assert read_back(NAMES, **told)["cache"] == "direct=True,no-flush=False,write-cache=None"  # type: ignore[arg-type] # answers
