"""The built image, booted for real, both ways."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from integration.conftest import MACHINE, Lab
from pvebench.config.pack_keys import MIN_MEMORY
from pvebench.drivers.qemu.machine import EMULATED_CPU
from pvebench.guest.archives import unpack_archive
from pvebench.guest.build import build_image
from pvebench.guest.image import GuestImage
from pvebench.guest.recipe import FILESYSTEM_MODULES, KERNEL_ARGUMENTS, MODULE_PLACE
from pvebench.model.units import MIB
from testing.packs import ROOT

TOOLS = (
    "fio --version",
    "ioping -v",
    "sysbench --version",
    "hdparm -V",
    "mkfs.ext4 -V",
    "mkfs.xfs -V",
    "mkfs.btrfs --version",
    "bonnie++ -h; test $? -le 1",
    "busybox true",
    "/bin/dd --version",
    "fio --enghelp=libaio",
    "fio --enghelp=io_uring",
)


@pytest.mark.parametrize("line", TOOLS)
def test_every_tool_runs_in_the_guest(shared_lab: Lab, line: str) -> None:
    done = shared_lab.qemu.boot(MACHINE).run(["/bin/sh", "-c", line])
    assert done.exit_code == 0, done.stderr.decode()


IN_GUESTS = (
    "model/ports.py",
    "runner",
    "workloads",
    "guest",
    "../pvebench_lab/durability",
    "../pvebench_lab/lxc/container_disk.py",
    "../pvebench_lab/tools",
)
IN_GUESTS += ("drivers/qemu/disk_readback.py", "drivers/proxmox/vm")


def test_every_program_that_is_started_by_its_path_is_in_the_image(
    image: GuestImage, tmp_path: Path
) -> None:
    """The paths are those in the sources of what runs in guests and containers."""
    unpack_archive(image.initramfs.read_bytes(), tmp_path, but=MODULE_PLACE)
    top = ROOT / "exporter/pvebench"
    places = [path for name in IN_GUESTS for path in [top / name, *(top / name).rglob("*.*")]]
    texts = [path.read_text("utf-8") for path in places if path.suffix in {".py", ".sh"}]
    started = {path for text in texts for path in re.findall(r"(?<![\w/])/s?bin/[\w.-]+", text)}
    assert {"/bin/dd", "/bin/kill", "/bin/busybox"} <= started
    lacking = [path for path in started if not os.access(tmp_path / path[1:], os.X_OK)]
    assert lacking == []


def test_every_module_that_the_guest_needs_is_loaded(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    loaded = guest.run(["/bin/lsmod"]).stdout.decode()
    for module in ("virtio_blk", "virtio_scsi", "ahci", "ata_piix", "sym53c8xx", "ext4"):
        assert f"\n{module} " in loaded, module


def test_a_filesystem_that_is_rarely_used_is_loaded_when_it_is(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    for name in FILESYSTEM_MODULES:
        # The mount fails, as there is no such device; by then the kernel knows the filesystem.
        guest.run(["/usr/bin/pvebench-filesystem", "mount", "/dev/none", name])
        known = guest.run(["/bin/cat", "/proc/filesystems"]).stdout.decode().split()
        assert name in known


def test_the_least_memory_holds_the_image_and_its_unpacked_content(image: GuestImage) -> None:
    """Linux limits a tmpfs to half of the memory that is free (`shmem_default_max_blocks`)."""
    size = image.initramfs.stat().st_size
    assert image.kernel.stat().st_size + size + 2 * size < MIN_MEMORY


def test_the_guest_has_no_network(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    assert guest.run(["/bin/ls", "/sys/class/net"]).stdout.split() in ([], [b"lo"])


class BareGuest:
    """The image in a QEMU of its own, and its agent: nothing of pvebench's drivers between."""

    def __init__(self, directory: Path, arguments: Sequence[str], limit: float) -> None:
        path = directory / "agent.sock"
        command = [
            "qemu-system-x86_64",
            "-machine",
            "pc,accel=tcg",
            "-cpu",
            EMULATED_CPU,
            "-m",
            "768",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            *arguments,
            "-chardev",
            "socket,id=a,path=agent.sock,server=on,wait=off",
            "-device",
            "virtio-serial-pci",
            "-device",
            "virtserialport,chardev=a,name=org.qemu.guest_agent.0",
        ]
        begun = time.monotonic()
        self.qemu = subprocess.Popen(command, cwd=directory)
        self.agent = socket.socket(socket.AF_UNIX)
        try:
            self.agent.settimeout(limit)
            # The socket has its path some time before QEMU listens on it.
            while self.agent.connect_ex(str(path)):
                assert self.qemu.poll() is None
                time.sleep(0.02)
            self._answers = self.agent.makefile("rb")
            assert self.call("guest-ping") == {}
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - begun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.agent.close()
        self.qemu.kill()
        self.qemu.wait()

    def say(self, command: str, **arguments: object) -> None:
        self.agent.sendall(
            json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        )

    def call(self, command: str, **arguments: object) -> Any:
        self.say(command, **arguments)
        return json.loads(self._answers.readline())["return"]

    def run(self, *argv: str) -> tuple[int, str, str]:
        """Return exit code, output and error output of a program in the guest."""
        started = self.call("guest-exec", path=argv[0], arg=argv[1:], **{"capture-output": True})
        while not (status := self.call("guest-exec-status", pid=started["pid"]))["exited"]:
            time.sleep(0.1)
        out, err = (
            base64.b64decode(status.get(key, "")).decode() for key in ("out-data", "err-data")
        )
        return status["exitcode"], out, err


def direct(image: GuestImage) -> list[str]:
    return [
        "-kernel",
        str(image.kernel),
        "-initrd",
        str(image.initramfs),
        "-append",
        KERNEL_ARGUMENTS,
    ]


def test_the_iso_boots_through_the_bios_into_the_same_guest(
    image: GuestImage, tmp_path: Path
) -> None:
    """From IDE, where Proxmox VE has it."""
    drive = f"file={image.iso},format=raw,if=none,id=iso,media=cdrom,read-only=on"
    arguments = ["-drive", drive, "-device", "ide-cd,bus=ide.1,unit=0,drive=iso,bootindex=1"]
    with BareGuest(tmp_path, arguments, limit=300) as guest:
        print(f"agent answered {guest.seconds:.1f} s after power-on from the ISO")
        modules = guest.run("/bin/lsmod")[1]
        assert "\nsr_mod " in modules
        assert "\next4 " in modules


def test_direct_boot_is_given_a_kernel_that_need_not_unpack_itself(image: GuestImage) -> None:
    with image.kernel.open("rb") as file:
        assert file.read(4) == b"\x7fELF"


DISKS = {
    "on-virtio": ("virtio_blk", (), "virtio-blk-pci"),
    "on-scsi": ("sd", ("-device", "virtio-scsi-pci,id=scsi"), "scsi-hd,bus=scsi.0"),
    "on-lsi": ("sd", ("-device", "lsi53c895a,id=lsi"), "scsi-hd,bus=lsi.0"),
    "on-ide": ("sd", (), "ide-hd,bus=ide.0"),
    "on-sata": ("sd", ("-device", "ahci,id=sata"), "ide-hd,bus=sata.0"),
}
"""Serial -> driver in the guest, controller, disk."""


def test_disks_are_found_by_serial_on_every_bus_and_the_agent_powers_off(
    image: GuestImage, tmp_path: Path
) -> None:
    """The agent also answers soon after a direct boot.

    The aim is 12 s; the bound only tells a guest that hangs from one on a busy machine.
    """
    arguments = direct(image)
    for number, (serial, (_, controller, disk)) in enumerate(DISKS.items()):
        # The sizes tell the disks apart.
        with (tmp_path / f"{number}.raw").open("wb") as file:
            file.truncate((16 + number) * MIB)
        arguments += ["-drive", f"file={number}.raw,format=raw,if=none,id=d{number}"]
        arguments += [*controller, "-device", f"{disk},drive=d{number},serial={serial}"]
    with BareGuest(tmp_path, arguments, limit=300) as guest:
        print(f"agent answered {guest.seconds:.1f} s after power-on by direct boot")
        for number, (serial, (driver, *_)) in enumerate(DISKS.items()):
            code, out, err = guest.run("/usr/bin/pvebench-disk", serial)
            assert code == 0, err
            words = dict(word.split("=", 1) for word in out.split())
            assert words["size_bytes"] == str((16 + number) * MIB), serial
            assert words["driver"] == driver
            assert words["write_cache"] == "write-back"
            assert words["device"].startswith("/dev/vd" if driver == "virtio_blk" else "/dev/sd")
        code, out, err = guest.run("/usr/bin/pvebench-disk", "absent")
        assert (code, out) == (1, "")
        assert "absent" in err
        guest.say("guest-shutdown")
        assert guest.qemu.wait(timeout=120) == 0


def test_the_same_packages_give_the_same_image_bit_for_bit(
    image: GuestImage, tmp_path: Path
) -> None:
    shutil.copytree(image.directory / "packages", tmp_path / "packages")
    again = build_image(tmp_path)
    if again.manifest["packages"] != image.manifest["packages"]:
        again, image = build_image(tmp_path, force=True), again  # the mirror has moved on
    assert again.digest == image.digest
