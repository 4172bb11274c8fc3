"""A running host in a VM: its disks are files that it may break, and ssh is the way to it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host_vm.image import Image, VmMissing
from support.prometheus import free_port

SCSI_DISKS: Final = 17
"""sda, sdb …: on one virtio-scsi controller."""
DISK_BYTES: Final = 1 << 30
BOOT_SECONDS: Final = 600.0
"""Under emulation on a busy machine a minute was usual."""


@dataclass(frozen=True, slots=True)
class HostVm:
    """A machine that answers."""

    image: Image
    directory: Path
    port: int

    @property
    def known_hosts(self) -> Path:
        """Its host key, as ssh keeps it."""
        return self.directory / "known_hosts"

    def sh(self, script: str, *, seconds: float = 300.0, check: bool = True) -> str:
        """Run a script of the shell as root there; return what it says."""
        options = [
            *("-i", str(self.image.key), "-p", str(self.port), "-o", "BatchMode=yes"),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "ConnectTimeout=10"),
            *("-o", "StrictHostKeyChecking=yes", "-F", "none"),
        ]
        done = subprocess.run(
            ["ssh", *options, "root@127.0.0.1", "sh -eu"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        if check and done.returncode:
            raise RuntimeError(f"{script}\n{done.stdout}\n{done.stderr}")
        return done.stdout


@contextmanager
def running_host(image: Image, directory: Path) -> Iterator[HostVm]:
    """Yield a machine that was just booted; its disks are gone afterwards."""
    port = free_port()
    host_key = image.host_key.with_suffix(".pub").read_text("ascii").split()
    vm = HostVm(image, directory, port)
    vm.known_hosts.write_text(f"[127.0.0.1]:{port} {host_key[0]} {host_key[1]}\n", "ascii")
    with (directory / "qemu.log").open("wb") as log:
        command = [*("setpriv", "--pdeathsig", "KILL", "nice"), *_command(vm)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(vm, process)
        yield vm
    finally:
        process.kill()
        process.wait()


def _wait(vm: HostVm, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while True:
        if process.poll() is not None:
            raise VmMissing((vm.directory / "qemu.log").read_text("utf-8", "replace"))
        try:
            if "up" in vm.sh("echo up", seconds=30, check=False):
                return
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() > deadline:
            console = (vm.directory / "console.log").read_text("utf-8", "replace")
            raise VmMissing(f"the VM does not answer: {console[-2000:]}")
        time.sleep(2)


def _command(vm: HostVm) -> list[str]:
    image = vm.image
    command = [
        *("qemu-system-x86_64", "-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "2"),
        *("-m", "2G", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{vm.directory}/console.log"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initramfs)),
        *("-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet"),
        # What it writes to its own disk is forgotten.
        *("-drive", f"file={image.disk},format=raw,if=virtio,snapshot=on"),
        *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{vm.port}-:22"),
        *("-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"),
        *("-device", "virtio-scsi-pci,id=scsi"),
    ]
    for number in range(SCSI_DISKS):
        disk = _disk(vm.directory / f"disk{number}.raw")
        command += ["-drive", f"file={disk},format=raw,if=none,id=d{number},discard=unmap"]
        command += ["-device", f"scsi-hd,bus=scsi.0,scsi-id={number},drive=d{number}"]
    # An ATA drive, with a write cache that can be switched off.
    ata = _disk(vm.directory / "ata.raw")
    command += ["-device", "ahci,id=ahci", "-drive", f"file={ata},format=raw,if=none,id=ata"]
    return [*command, "-device", "ide-hd,bus=ahci.0,drive=ata,serial=pvebenchata"]


def _disk(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(DISK_BYTES)
    return path
