"""Which disk a block device is, from the kernel's sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pvebench.drivers.linux.block_devices import facts_of, identity

NUMBER = os.makedev(8, 1)

# As Linux 6 has them: the files' names, and where they lie, are of drivers/scsi/scsi_sysfs.c,
# drivers/nvme/host/sysfs.c, drivers/block/virtio_blk.c, drivers/block/loop.c and
# Documentation/ABI/stable/sysfs-block.
DISKS = {
    "sata": (
        {
            "size": b"1953525168\n",
            "device/wwid": b"naa.5002538e40a1b2c3\n",
            "device/vpd_pg80": b"\0\x80\0\x14     S4EVNX0M123456 ",
        },
        "wwn naa.5002538e40a1b2c3, serial S4EVNX0M123456, sectors 1953525168",
    ),
    "nvme": (
        {
            "size": b"3907029168\n",
            "wwid": b"eui.0025385b01402d55\n",
            "device/serial": b"S5GXNX0R812345      \n",
        },
        "wwn eui.0025385b01402d55, serial S5GXNX0R812345, sectors 3907029168",
    ),
    "virtio": (
        {"size": b"2048\n", "serial": b"drive-virtio1"},
        "serial drive-virtio1, sectors 2048",
    ),
    "lvm": ({"size": b"2048\n", "dm/uuid": b"LVM-abc\n"}, "uuid LVM-abc, sectors 2048"),
    # Of an array of Debian 12's kernel (make e2e-host); by Documentation/admin-guide/md.rst.
    "md": (
        {"size": b"2048\n", "md/uuid": b"b019fd63-2108-67e0-7fb7-ca1eedd431e6\n"},
        "uuid b019fd63-2108-67e0-7fb7-ca1eedd431e6, sectors 2048",
    ),
    "loop": ({"size": b"8\n", "loop/backing_file": b"/x\n"}, "file /x, sectors 8"),
}


def put(root: Path, below: str, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / "sys/devices" / below / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/8:1").symlink_to(root / "sys/devices" / below)


@pytest.mark.parametrize("kind", DISKS)
def test_a_disk_is_known_by_what_its_maker_or_the_kernel_calls_it(
    tmp_path: Path, kind: str
) -> None:
    files, text = DISKS[kind]
    put(tmp_path, "block/x", files)
    assert identity(NUMBER, root=tmp_path) == text


def test_a_partition_is_known_by_its_disk_and_where_it_begins(tmp_path: Path) -> None:
    put(tmp_path, "sda/sda3", {"partition": b"3\n", "start": b"2048\n", "size": b"4096\n"})
    whole = tmp_path / "sys/devices/sda/device"
    whole.mkdir()
    (whole / "wwid").write_bytes(b"naa.5\n")
    assert identity(NUMBER, root=tmp_path) == "partition 3, start 2048, wwn naa.5, sectors 4096"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        # A disk of User-mode Linux (tests/integration/test_host_process.py): its driver prints a
        # null pointer as "%s".
        ("serial", b"(null)"),
        ("device/serial", b"0" * 20),
        ("device/vpd_pg80", b"\0\x80\0\x14                    "),
        ("serial", b"\xff" * 20),
        ("serial", b"ffffffffffff\n"),
        ("serial", b"0123456789ABCDEF\n"),
        ("serial", b"1234567890\n"),
        # drivers/nvme/host/core.c takes an identifier of zeros as none; older kernels show it.
        ("wwid", b"eui.0000000000000000\n"),
        ("device/wwid", b"naa.0000000000000000\n"),
        ("md/uuid", b"00000000-0000-0000-0000-000000000000\n"),
        # Words that GLPI's agent refuses (isInvalidBiosValue).
        ("serial", b"To Be Filled By O.E.M.\n"),
        ("serial", b"None\n"),
        ("serial", b"N/A\n"),
        ("serial", b"Default string\n"),
    ],
)
def test_a_placeholder_is_no_identity(tmp_path: Path, file: str, content: bytes) -> None:
    put(tmp_path, "block/x", {"size": b"2048\n", file: content})
    assert facts_of(NUMBER, root=tmp_path) == {}
    assert identity(NUMBER, root=tmp_path) == "sectors 2048"


def test_a_later_number_counts_where_the_first_is_a_placeholder(tmp_path: Path) -> None:
    put(tmp_path, "block/x", {"serial": b"(null)", "device/serial": b"S5GXNX0R812345"})
    assert facts_of(NUMBER, root=tmp_path) == {"serial": "S5GXNX0R812345"}


@pytest.mark.parametrize("serial", ["1000", "WD-000001", "2023456789", "aabb", "drive-virtio0"])
def test_a_number_with_few_different_digits_is_one(tmp_path: Path, serial: str) -> None:
    put(tmp_path, "block/x", {"serial": serial.encode()})
    assert facts_of(NUMBER, root=tmp_path) == {"serial": serial}


def test_the_file_of_a_loop_device_may_have_any_name(tmp_path: Path) -> None:
    put(tmp_path, "block/x", {"loop/backing_file": b"/0000\n"})
    assert facts_of(NUMBER, root=tmp_path) == {"file": "/0000"}


def test_a_device_that_reports_nothing_has_no_identity_and_what_it_reports_is_bounded(
    tmp_path: Path,
) -> None:
    assert identity(NUMBER, root=tmp_path) == ""
    put(tmp_path, "block/x", {"wwid": b"\x1b[31m" + b"x" * 10_000 + b"\nlast"})
    said = identity(NUMBER, root=tmp_path)
    assert said.isprintable()
    assert len(said) < 1000
