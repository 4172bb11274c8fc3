"""QEMU's command line for the benchmark VM."""

from __future__ import annotations

from typing import Final

from pvebench.drivers.qemu.accel import Accelerator
from pvebench.guest import KERNEL_ARGUMENTS, GuestImage
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB

BINARY: Final = "qemu-system-x86_64"


def arguments(
    identity: str, image: GuestImage, machine: Machine, accelerator: Accelerator
) -> list[str]:
    """Return QEMU's command line for the benchmark VM, run in the VM's directory."""
    cpu = "host" if accelerator is Accelerator.KVM else "max"
    return [
        BINARY,
        "-name", f"pvebench-{identity[:8]},debug-threads=on",
        "-uuid", identity,
        # i440fx is what Proxmox gives a Linux guest unless told otherwise.
        "-machine", f"type=pc,accel={accelerator},usb=off",
        "-cpu", cpu,
        "-smp", str(machine.cpus),
        "-m", f"{machine.memory_bytes // MIB}M",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-kernel", str(image.kernel),
        "-initrd", str(image.initramfs),
        "-append", KERNEL_ARGUMENTS,
        "-chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off",
        "-mon", "chardev=qmp,mode=control",
        "-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off",
        "-device", "virtio-serial-pci",
        "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
        "-chardev", "file,id=console,path=console.log",
        "-device", "isa-serial,chardev=console",
        "-device", "virtio-rng-pci",
    ]  # fmt: skip
