"""Looking at an attached disk from all sides: QEMU, the host's kernel, the guest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pvebench.drivers.qemu.agent import AgentGuest
from pvebench.drivers.qemu.blocks import Names, devices, is_limited
from pvebench.drivers.qemu.machine import QemuMachine
from pvebench.drivers.qemu.qmp import Channel
from pvebench.drivers.qemu.readback import Seen
from pvebench.errors import GuestSilent
from pvebench.model.disk import Bus, Disk
from pvebench.model.ports import Clock


def find_in_guest(
    guest: AgentGuest, names: Names, clock: Clock, *, seconds: float
) -> dict[str, str]:
    """Wait until the guest has the disk; return what it says of it (`device=…` words).

    Raises:
        GuestSilent: it does not show up within `seconds`.
    """
    deadline = clock.monotonic() + seconds
    while True:
        done = guest.run(["/usr/bin/pvebench-disk", names.serial], timeout=seconds)
        if done.exit_code == 0:
            words = done.stdout.decode("utf-8", "replace").split()
            return dict(word.split("=", 1) for word in words)
        if clock.monotonic() > deadline:
            raise GuestSilent(f"the guest does not see the disk within {seconds:.0f} s")
        clock.sleep(0.1)


def look(
    vm: QemuMachine, names: Names, disk: Disk, *, guest: Mapping[str, str], opened: str
) -> Seen:
    """Return everything that tells which options are in force.

    Args:
        opened: path under which QEMU has the volume open; empty: not as a file.
    """
    qmp = vm.qmp
    made = devices(names, disk)
    controller = names.controller if len(made) > 1 else ""
    virtio = disk.bus is Bus.VIRTIO or made[0]["driver"] == "virtio-scsi-pci"
    holder = controller or names.device
    return Seen(
        nodes=qmp.execute("query-named-block-nodes", {"flat": True}),
        blocks=qmp.execute("query-block"),
        device_type=str(_property(qmp, names.device, "type")),
        controller_type=str(_property(qmp, controller, "type")) if controller else "",
        iothread=str(_property(qmp, holder, "iothread")) if virtio else "",
        queues=int(_property(qmp, controller, "num_queues")) if disk.queues else 0,
        limits=_limits(qmp, names) if is_limited(disk) else {},
        opened_direct=opened_direct(vm.pid, Path(opened)) if opened else None,
        guest=guest,
    )


def _property(qmp: Channel, device: str, name: str) -> Any:
    path = f"/machine/peripheral/{device}"
    return qmp.execute("qom-get", {"path": path, "property": name})


def _limits(qmp: Channel, names: Names) -> dict[str, Any]:
    path = f"/objects/{names.group}"
    found: dict[str, Any] = qmp.execute("qom-get", {"path": path, "property": "limits"})
    return found


def opened_direct(pid: int | None, path: Path) -> bool | None:
    """Return whether a process has `path` open with O_DIRECT; None if that cannot be seen."""
    if pid is None:
        return None
    wanted = str(path.resolve())
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if str(fd.readlink()) == wanted:
                info = Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text("ascii")
                flags = next(line for line in info.splitlines() if line.startswith("flags:"))
                if int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDWR:
                    return bool(int(flags.split()[1], 8) & os.O_DIRECT)
    except OSError:
        return None
    return None
