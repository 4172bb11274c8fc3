"""Samples of host and hypervisor activity during the measured window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.model.ports import HostSnapshot, StorageNetwork
from pvebench.model.run import Sample, Unit
from pvebench.model.volume import BlockCounters
from pvebench.model.workload import Case, Direction

_CONDITIONS: Final = {"disk_margin": Unit.CELSIUS, "zfs_cache": Unit.BYTES}
"""Units of conditions that are not ratios."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Host and block counters at one moment."""

    host: HostSnapshot
    block: BlockCounters | None


def window_samples(start: Mark, end: Mark) -> list[Sample]:
    """Return host CPU, bytes and QEMU's block counters between two marks.

    A counter that is missing at either end, or that decreased, gives no sample.
    """
    seconds = end.host.monotonic - start.host.monotonic
    if seconds <= 0:
        return []
    samples = [Sample("window", None, seconds, Unit.SECONDS)]
    for component, after in end.host.cpu_seconds.items():
        used = after - start.host.cpu_seconds.get(component, after + 1)
        if used >= 0 and component == "vcpu_wait":  # waiting for a CPU is not CPU use
            samples.append(Sample("guest_cpu_wait", None, used / seconds, Unit.CORES))
        elif used >= 0:
            samples.append(Sample("host_cpu", None, used / seconds, Unit.CORES, component))
    for name, count in end.host.bytes.items():
        moved = count - start.host.bytes.get(name, count + 1)
        if moved >= 0:
            samples.append(Sample("host_bytes", None, float(moved), Unit.BYTES, name))
    switches = end.host.context_switches - start.host.context_switches
    # Zero means a counter that could not be read: every running host has switched contexts.
    if start.host.context_switches and end.host.context_switches and switches >= 0:
        samples.append(Sample("host_context_switches", None, float(switches), Unit.OPERATIONS))
    exits = end.host.vm_exits - start.host.vm_exits
    if start.host.vm_exits and end.host.vm_exits and exits >= 0:
        samples.append(Sample("vm_exits", None, float(exits), Unit.OPERATIONS))
    samples += _pressures(start.host, end.host, seconds)
    return samples + _block_samples(start.block, end.block)


def condition_samples(case: Case, conditions: Mapping[str, float], *, local: bool) -> list[Sample]:
    """Return the conditions of a run that can affect its case.

    A change of any other condition would be no cause.

    Args:
        found: metric -> value, of the host and of the storage.
        local: whether the volume is on devices of the host.
    """
    relevant = {
        # Only where reads may come from the ARC, because it cannot be emptied.
        "zfs_cache": case.scenario.host_cache.warm,
        # Free space in small pieces is harder to find (`fragmentation` in zpoolprops(7)).
        "zfs_fragmentation": Direction.WRITE in case.workload.directions,
        "zfs_scan": bool(case.workload.directions),
        "md_sync": local and bool(case.workload.directions),
        "disk_wear": local and bool(case.workload.directions),
    }
    return [
        Sample(name, None, value, _CONDITIONS.get(name, Unit.RATIO))
        for name, value in conditions.items()
        if relevant.get(name, True)
    ]


def network_samples(network: StorageNetwork | None) -> list[Sample]:
    """Return the capacity of the link to the storage's server, and a round trip time.

    Call it before the run: on a busy link, the round trip would measure queues.
    """
    if network is None:
        return []
    samples = []
    if network.link_bits_per_second:
        limit = network.link_bits_per_second / 8
        samples.append(Sample("network_limit", None, limit, Unit.BYTES_PER_SECOND))
    seconds = network.round_trip()
    if seconds is not None:
        samples.append(Sample("network_round_trip", None, seconds, Unit.SECONDS))
    return samples


def _pressures(start: HostSnapshot, end: HostSnapshot, seconds: float) -> list[Sample]:
    """Return the waiting time of tasks, and values that are known as averages only."""
    samples = []
    for resource, after in end.pressure_seconds.items():
        waited = after - start.pressure_seconds.get(resource, after + 1)
        if waited >= 0:
            samples.append(Sample("host_pressure", None, waited / seconds, Unit.RATIO, resource))
    for name, value in end.averages.items():
        pressure = name.startswith("vm_")
        metric, unit = ("host_pressure", Unit.RATIO) if pressure else ("host_cpu", Unit.CORES)
        samples.append(Sample(metric, None, value, unit, name))
    return samples


def _block_samples(start: BlockCounters | None, end: BlockCounters | None) -> list[Sample]:
    if start is None or end is None:
        return []
    counts = {
        ("qemu_operations", "read", Unit.OPERATIONS): end.read_operations - start.read_operations,
        ("qemu_operations", "write", Unit.OPERATIONS): end.write_operations
        - start.write_operations,
        ("qemu_operations", "flush", Unit.OPERATIONS): end.flush_operations
        - start.flush_operations,
        ("qemu_bytes", "read", Unit.BYTES): end.read_bytes - start.read_bytes,
        ("qemu_bytes", "write", Unit.BYTES): end.write_bytes - start.write_bytes,
    }
    return [
        Sample(metric, None, float(count), unit, part)
        for (metric, part, unit), count in counts.items()
        if count >= 0
    ]
