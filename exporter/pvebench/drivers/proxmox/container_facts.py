"""What a node tells of a container that runs: is it what was asked for, and what is below it?"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from pvebench.drivers.host.remote_machine import parse_device
from pvebench.drivers.lxc.container_disk import mounts
from pvebench.errors import OutputUnreadable, SwitchFailed
from pvebench.guest import MOUNT_POINT
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB


def check_limits(told: Mapping[str, str], machine: Machine) -> None:
    """Raise SwitchFailed unless it has what the machine of a VM would have.

    To which memory the kernel holds it is told where the node has control groups of version 2
    alone; on which CPUs it may run, by its first process.
    """
    memory = machine.memory_bytes // MIB
    found = (told.get("memory"), told.get("cores"), told.get("limit") or str(memory * MIB))
    if found != (str(memory), str(machine.cpus), str(memory * MIB)):
        raise SwitchFailed(
            f"the container has {found[0]} MiB of memory, held to {found[2]} bytes, and "
            f"{found[1]} CPUs, not {memory} MiB and {machine.cpus}",
            cause="somebody changed its configuration",
            next_step="remove it, so that another is made: pvebench sweep",
        )
    allowed, share = told.get("cpus", ""), told.get("cpulimit", "0")
    if share != "0" or _cpus_in(allowed) != machine.cpus:
        limit = f" for {share} of their time" if share != "0" else ""
        raise SwitchFailed(
            f"the container may run on CPUs {allowed or 'unknown'}{limit}, not on {machine.cpus}",
            cause="the node has fewer, or somebody changed what it may use while it runs",
            next_step="make guest.cpus of the pack smaller, or remove it: pvebench sweep",
        )


def _cpus_in(text: str) -> int:
    """Return how many CPUs a list of the kernel names, such as `0-2,4` (cpuset(7)); 0: not one."""
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text):
        return 0
    parts = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts)


def mounted_device(told: Mapping[str, str]) -> int:
    """Return the number of the device that is mounted. Raises SwitchFailed."""
    major, _, minor = _mounted(told)[0].partition(":")
    return os.makedev(int(major), int(minor))


def filesystem(told: Mapping[str, str]) -> str:
    """Return the kind of what is mounted. Raises SwitchFailed."""
    return _mounted(told)[1]


def _mounted(told: Mapping[str, str]) -> tuple[str, str]:
    for device, place, kind in mounts(told.get("mount", "")):
        if place == MOUNT_POINT:
            return device, kind
    raise SwitchFailed(f"nothing is mounted at {MOUNT_POINT} of the container")


def devices_of(told: Mapping[str, str], volid: str) -> tuple[int, ...]:
    """Return the devices that the volume is or lies on; where that has no path, what is mounted.

    Raises:
        SwitchFailed: the volume is a device, and another one is mounted.
    """
    mounted = mounted_device(told)
    try:
        found, below = parse_device(told.get("below", "").encode(), volid)
    except OutputUnreadable:
        return (mounted,)
    if found.is_device and below != (mounted,):
        raise SwitchFailed(
            f"{volid} is not what is mounted: {told.get('mount')}",
            cause="something else was mounted over it in the container",
        )
    return below
