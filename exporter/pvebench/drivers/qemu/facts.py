"""What of this machine, its QEMU and the guest may move a number."""

from __future__ import annotations

from typing import Any

from pvebench.drivers.host import host_facts
from pvebench.drivers.qemu.accel import Accelerator
from pvebench.drivers.qemu.machine import QemuMachine
from pvebench.guest import GuestImage
from pvebench.model.environment import Environment


def environment(
    node: str, image: GuestImage, accelerator: Accelerator, vm: QemuMachine | None
) -> Environment:
    """Return the environment of `node`.

    QEMU is in it only while a VM runs: what is installed says nothing about what is running.
    """
    facts = host_facts() | {
        "accel": str(accelerator),
        "guest_image": image.digest[:12],
        "guest_kernel": image.versions.get("kernel", ""),
        "fio": image.versions.get("fio", ""),
    }
    if vm is not None and vm.pid is not None:
        facts |= _qemu_facts(vm)
    return Environment(node=node, facts={key: value for key, value in facts.items() if value})


def _qemu_facts(vm: QemuMachine) -> dict[str, str]:
    version: dict[str, Any] = vm.qmp.execute("query-version")
    number = version["qemu"]
    machine = vm.qmp.execute("qom-get", {"path": "/machine", "property": "type"})
    return {
        "qemu": f"{number['major']}.{number['minor']}.{number['micro']}",
        "qemu_package": str(version.get("package", "")),
        "machine": str(machine).removesuffix("-machine"),
    }
