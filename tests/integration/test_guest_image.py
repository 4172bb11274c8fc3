"""The built image, booted for real, both ways."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.conftest import MACHINE, Lab
from pvebench.guest import GuestImage, build_image

TOOLS = (
    "fio --version", "ioping -v", "sysbench --version", "hdparm -V", "mkfs.ext4 -V", "mkfs.xfs -V",
    "mkfs.btrfs --version", "bonnie++ -h; test $? -le 1", "busybox true",
    "fio --enghelp=libaio", "fio --enghelp=io_uring",
)  # fmt: skip


@pytest.mark.parametrize("line", TOOLS)
def test_every_tool_runs_in_the_guest(shared_lab: Lab, line: str) -> None:
    done = shared_lab.qemu.boot(MACHINE).run(["/bin/sh", "-c", line])
    assert done.exit_code == 0, done.stderr.decode()


def test_every_module_that_the_guest_wants_is_loaded(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    loaded = guest.run(["/bin/lsmod"]).stdout.decode()
    for module in (
        "virtio_blk",
        "virtio_scsi",
        "ahci",
        "ata_piix",
        "sym53c8xx",
        "ext4",
        "xfs",
        "btrfs",
    ):
        assert f"\n{module} " in loaded, module


def test_the_guest_has_no_network(shared_lab: Lab) -> None:
    guest = shared_lab.qemu.boot(MACHINE)
    assert guest.run(["/bin/ls", "/sys/class/net"]).stdout.split() in ([], [b"lo"])


def seconds_to_agent(directory: Path, arguments: Sequence[str], limit: float) -> float:
    path = directory / "agent.sock"
    command = [
        "qemu-system-x86_64", "-machine", "pc,accel=tcg", "-cpu", "max", "-m", "768", "-nodefaults",
        "-display", "none", "-no-reboot", *arguments,
        "-chardev", "socket,id=a,path=agent.sock,server=on,wait=off",
        "-device", "virtio-serial-pci",
        "-device", "virtserialport,chardev=a,name=org.qemu.guest_agent.0",
    ]  # fmt: skip
    begun = time.monotonic()
    with subprocess.Popen(command, cwd=directory) as qemu:
        try:
            while not path.exists():
                assert qemu.poll() is None
                time.sleep(0.02)
            with socket.socket(socket.AF_UNIX) as agent:
                agent.settimeout(limit)
                agent.connect(str(path))
                agent.sendall(b'{"execute": "guest-ping"}\n')
                assert json.loads(agent.recv(4096)) == {"return": {}}
            return time.monotonic() - begun
        finally:
            qemu.kill()


def test_the_iso_boots_through_the_bios_into_the_same_guest(
    image: GuestImage, tmp_path: Path
) -> None:
    seconds = seconds_to_agent(tmp_path, ["-cdrom", str(image.iso), "-boot", "d"], 90)
    print(f"agent answered {seconds:.1f} s after power-on from the ISO")


def test_the_agent_answers_soon_after_a_direct_boot(shared_lab: Lab, image: GuestImage) -> None:
    """The aim is 12 s on an idle machine; the bound leaves room for a busy one."""
    arguments = ["-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", "quiet"]
    seconds = seconds_to_agent(shared_lab.directory, arguments, 60)
    print(f"agent answered {seconds:.1f} s after power-on by direct boot")


def test_the_same_packages_give_the_same_image_bit_for_bit(
    image: GuestImage, tmp_path: Path
) -> None:
    shutil.copytree(image.directory / "packages", tmp_path / "packages")
    again = build_image(tmp_path)
    if again.manifest["packages"] != image.manifest["packages"]:
        again, image = build_image(tmp_path, force=True), again  # the mirror has moved on
    assert again.digest == image.digest
