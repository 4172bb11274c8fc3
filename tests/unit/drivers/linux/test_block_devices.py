"""Which disk a block device is, and whether data is in memory only, from the kernel."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from pvebench.drivers.linux import block_devices
from pvebench.drivers.linux.block_devices import facts_of, flushes_ignored, identity, memory_below
from pvebench.files import Mount
from testing.devices import block_device
from testing.mounted_storage import MountedStorage
from testing.mounts import with_mounts

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


ASK = (
    "import sys, pathlib; from pvebench.drivers.linux.block_devices import {0}\n"
    "print({0}(pathlib.Path(sys.argv[1])))"
)
TMPFS = "mkdir m; mount -t tmpfs tmpfs m"
OVERLAY = "mkdir {0}/u {0}/w l o; mount -t overlay o -o lowerdir=l,upperdir={0}/u,workdir={0}/w o"
MOUNTS = {
    "a disk": ("mkdir m; touch m/file", "m/file", ""),
    "tmpfs": (f"{TMPFS}; touch m/file", "m/file", "tmpfs"),
    "ramfs": ("mkdir m; mount -t ramfs ramfs m", "m", "ramfs"),
    "a link to it": (f"{TMPFS}; ln -s m link", "link", "tmpfs"),
    "bound elsewhere": (f"{TMPFS}; mkdir m/a b; mount --bind m/a b", "b", "tmpfs"),
    "overlay in memory": (f"{TMPFS}; {OVERLAY.format('$PWD/m')}", "o", "tmpfs"),
    "overlay on a disk": (f"mkdir m; {OVERLAY.format('$PWD/m')}", "o", ""),
    "overlay in memory with a space": (
        "mkdir 'a b'; mount -t tmpfs tmpfs 'a b'; mkdir 'a b/u' 'a b/w' l o; "
        'mount -t overlay o -o "lowerdir=l,upperdir=$PWD/a b/u,workdir=$PWD/a b/w" o',
        "o",
        "tmpfs",
    ),
    "overlay with a comma": (
        f"{TMPFS}; mkdir m/a,b; {OVERLAY.format('$PWD/m')}".replace("/u,", r"/a\\,b,"),
        "o",
        "tmpfs",
    ),
    "no UTF-8": (
        rf"{TMPFS}; x=$PWD/m/$(printf '\377'); mkdir $x; {OVERLAY.format('$x')}",
        "o",
        "tmpfs",
    ),
    "two lines": (r"x=$(printf 'a\302\205\014c'); mkdir $x; mount -t tmpfs m $x", "a*", "tmpfs"),
    "overlay without an upper directory": (
        f"{TMPFS}; mkdir m/a m/b o; mount -t overlay o -o lowerdir=m/a:m/b o",
        "o",
        "",
    ),
}


@pytest.mark.parametrize("kind", MOUNTS)
def test_a_mount_in_memory_is_recognized(tmp_path: Path, kind: str) -> None:
    script, path, expected = MOUNTS[kind]
    assert answer(tmp_path, script, "memory_below", path) == f"{expected}\n"


def answer(directory: Path, script: str, function: str, path: str) -> str:
    asked = f"cd '{directory}'\n{script}\n'{sys.executable}' -c '{ASK.format(function)}' {path}"
    done = with_mounts(asked, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("option", "expected"), [(",volatile", "volatile"), ("", "")])
def test_a_mount_that_ignores_flushes_is_recognized(
    tmp_path: Path, option: str, expected: str
) -> None:
    script = f"mkdir m; {OVERLAY.format('$PWD/m').replace('/w o', f'/w{option} o')}"
    found = answer(tmp_path, script, "flushes_ignored", "o").strip()
    assert found.endswith(f"{expected} of {tmp_path}/o") if expected else not found


@pytest.mark.parametrize(
    ("sync", "expected"), [("disabled", "sync=disabled of p/d"), ("always", "")]
)
def test_a_dataset_of_zfs_that_ignores_flushes_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, expected: str
) -> None:
    program = tmp_path / "zfs"
    program.write_text(
        f'#!/bin/sh\n[ "$*" = "get -H -o value sync p/d" ] && echo {sync}\n', "ascii"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    mount = Mount("9", "0:50", "/p", "zfs", "p/d", "rw")
    monkeypatch.setattr("pvebench.drivers.linux.block_devices.mount_of", lambda _: mount)
    assert flushes_ignored(tmp_path) == expected


@pytest.mark.parametrize(
    ("command", "ignored"),
    [
        ("qemu-nbd\0-c\0/dev/nbd0\0--cache=unsafe\0disk.raw\0", True),
        ("qemu-nbd\0--cache\0unsafe\0-c\0/dev/nbd0\0", True),
        ("nbd-client\0server\0/dev/nbd0\0", False),
    ],
)
@pytest.mark.parametrize("parts", [("nbd0",), ("dm-0", "nbd0")], ids=" on ".join)
def test_an_nbd_server_here_that_ignores_flushes_is_recognized(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    ignored: bool,
    parts: tuple[str, ...],
) -> None:
    """The kernel's client is the program that attached the device: `pid` of the nbd driver."""
    monkeypatch.setattr("pvebench.drivers.linux.block_devices.devices_below", lambda _: (NUMBER,))
    for number, name in enumerate(parts, 1):
        below = disk(tmp_path, name, f"8:{number}", *parts[number:])
    (below / "pid").write_text("77\n", "ascii")
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/cmdline").write_text(command, "ascii")
    expected = "the NBD server of nbd0 with cache=unsafe" if ignored else ""
    assert flushes_ignored(tmp_path, root=tmp_path) == expected


def test_an_upper_directory_that_the_user_cannot_see_is_unknown(tmp_path: Path) -> None:
    found = Mount("1", "0:40", "/m", "overlay", "o", f"rw,lowerdir=/l,upperdir={tmp_path}/upper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_devices, "mount_of", {tmp_path: found}.__getitem__)
        patch.setattr(Path, "exists", Mock(side_effect=PermissionError(13, "Permission denied")))
        assert memory_below(tmp_path) == ""


def test_a_loop_device_is_in_memory_as_its_file_is(tmp_path: Path) -> None:
    shared = Path("/dev/shm") / f"pvebench-test-{os.getpid()}"
    try:
        with block_device(shared) as device:
            assert memory_below(device) == "tmpfs"
            shared.unlink()
            assert memory_below(device) == "tmpfs"
    finally:
        shared.unlink(missing_ok=True)
    with block_device(tmp_path / "file") as device:
        assert memory_below(device) == ""
        (tmp_path / "file").unlink()
        assert memory_below(device) == ""


def disk(root: Path, name: str, number: str, *parts: str) -> Path:
    """Make a device of the kernel's sysfs: Documentation/ABI/stable/sysfs-block has the names."""
    below = root / "sys/devices/virtual/block" / name
    for part in parts:
        (below / "slaves").mkdir(parents=True, exist_ok=True)
        (below / "slaves" / part).symlink_to(root / "sys/devices/virtual/block" / part)
    below.mkdir(parents=True, exist_ok=True)
    (below / "dev").write_text(f"{number}\n", "ascii")
    (root / "sys/dev/block").mkdir(parents=True, exist_ok=True)
    (root / "sys/dev/block" / number).symlink_to(below)
    return below


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("zram0",), "zram0"),
        (("ram15",), "ram15"),
        (("nullb0",), "nullb0"),
        (("sda",), ""),
        (("ramses",), ""),
        (("dm-0", "zram0"), "zram0"),
        (("md0", "ram0", "ram1"), "ram0 ram1"),
        (("md0", "ram0", "sda"), ""),
    ],
    ids=" on ".join,
)
def test_a_ram_disk_is_recognized_by_its_name_and_below_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(
        "pvebench.drivers.linux.block_devices.devices_below", lambda _: (os.makedev(8, 0),)
    )
    for number, name in enumerate(names):
        disk(tmp_path, name, f"8:{number}", *names[1:] if not number else ())
    assert memory_below(tmp_path, root=tmp_path) == expected


@pytest.mark.parametrize("parts", [("ram0",), ("md0", "ram0")], ids=" on ".join)
def test_a_partition_is_in_memory_as_its_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
) -> None:
    monkeypatch.setattr("pvebench.drivers.linux.block_devices.devices_below", lambda _: (NUMBER,))
    for number, name in enumerate(reversed(parts), 2):
        whole = disk(tmp_path, name, f"8:{number}", *parts[1:] if name == parts[0] else ())
    part = whole / f"{whole.name}p1"
    part.mkdir()
    (part / "partition").write_text("1\n", "ascii")
    (tmp_path / "sys/dev/block/8:1").symlink_to(part)
    assert memory_below(tmp_path, root=tmp_path) == "ram0"


@pytest.mark.parametrize("model", ["scsi_debug      ", "RAMDISK-MCP     "])
def test_a_scsi_disk_in_memory_is_recognized_by_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """INQUIRY of Linux' drivers/scsi/scsi_debug.c and drivers/target/target_core_rd.c."""
    monkeypatch.setattr("pvebench.drivers.linux.block_devices.devices_below", lambda _: (NUMBER,))
    below = disk(tmp_path, "sda", "8:1")
    (below / "device").mkdir()
    (below / "device/model").write_text(f"{model}\n", "ascii")
    assert memory_below(tmp_path, root=tmp_path) == model.strip()


def test_every_command_rejects_a_storage_in_memory_before_the_first_case(tmp_path: Path) -> None:
    here = MountedStorage(tmp_path)
    mount = f"mount -t tmpfs -o size=64m tmpfs '{here.mount}'\nmkdir '{here.path}'"
    for ended in here.do(mount, "plan", "check", "run --cycles 1"):
        assert ended.code in (3, 6), ended.said
        assert f"storage local: {here.path} is in memory (tmpfs), not on a disk" in ended.said
        assert "set `path` in the settings to a place on a disk" in ended.said
        assert ended.said.count("in memory") == 1
    assert not (tmp_path / "state").exists()


def test_setup_and_the_others_name_the_option_of_a_state_in_memory(tmp_path: Path) -> None:
    here = MountedStorage(tmp_path)
    config = tmp_path / "pvebench.yaml"
    settings = json.loads(config.read_text("utf-8"))
    state = here.mount / "state"
    config.write_text(json.dumps({**settings, "state": str(state), "storages": {}}), "utf-8")
    new = f"--yes --state '{state}' --pack '{tmp_path}/pack.yaml' --replace"
    mount = f"mount -t tmpfs -o size=64m tmpfs '{here.mount}'"
    commands = ("plan", "check", "run --cycles 1", f"setup host {new}")
    every = here.do(mount, *commands)
    for ended in every:
        assert ended.code in (3, 6), ended.said
        assert "is in memory (tmpfs), not on a disk" in ended.said
        assert "set --state (make run: STATE=) to a place on a disk" in ended.said
    assert "a reboot loses all results" in every[1].said
