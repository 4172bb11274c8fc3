"""What the benchmark VM is, in Proxmox's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pvebench.model.disk import ScsiHw
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class VmOptions:
    """What the benchmark VM is, beside what scenarios say.

    Attributes:
        iso_storage: where the guest's image is kept; its content must allow `iso`.
        cpu: CPU type; `host` hides nothing from the guest.
        machine: machine type; empty: the newest that the node has.
        keep: it stays, switched off, with its filled volumes from one start to the next.
        kvm: False only where nested virtualisation is missing; results carry accel=tcg.
    """

    iso_storage: str
    cpu: str = "host"
    machine: str = ""
    kvm: bool = True
    keep: bool = False


def vm_options(node: str, given: VmOptions, machine: Machine) -> dict[str, Any]:
    """Return the options that a new VM is made with: no network, no disk but the guest's image."""
    options: dict[str, Any] = {
        "name": f"pvebench-{node}",
        "ostype": "l26",
        "memory": machine.memory_bytes // MIB,
        "balloon": 0,
        "cores": machine.cpus,
        "cpu": given.cpu,
        "machine": given.machine or None,
        "scsihw": str(ScsiHw.SINGLE),
        # Both versions know the older name; a freeze in mid-run would be measured.
        "agent": "enabled=1,freeze-fs-on-backup=0",
        "hotplug": "disk",
        "boot": "order=ide2",
        "serial0": "socket",
        "vga": "serial0",
        "tablet": 0,
        "onboot": 0,
    }
    if not given.kvm:
        options["kvm"] = 0
    return {key: value for key, value in options.items() if value is not None}
