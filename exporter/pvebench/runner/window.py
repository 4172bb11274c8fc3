"""Samples of host and hypervisor activity during the measured window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pvebench.model import run_metrics
from pvebench.model.ports import HostSnapshot, StorageNetwork
from pvebench.model.run import Sample
from pvebench.model.volume import BlockCounters
from pvebench.model.workload import Case, Direction


@dataclass(frozen=True, slots=True)
class Mark:
    """Host and block counters at one moment."""

    host: HostSnapshot
    block: BlockCounters | None


@dataclass(slots=True)
class Activity:
    """The tool's I/O as seen in QEMU's counters; host times in seconds.

    Attributes:
        quiet: start of the last look before its I/O.
        marked: start of the measured window.
        last: its last I/O, or without a counter of idle time, the end of the tool.
        lag: maximum delay of the window's start after the end of the tool's ramp.
    """

    quiet: float
    last: float
    marked: float = 0.0
    lag: float = 0.0

    def samples(self) -> list[Sample]:
        """Return the maximum length of the I/O, if any was seen, and the delay."""
        length = self.last - self.quiet
        both = [run_metrics.IO_TIME.sample(length), run_metrics.WINDOW_LAG.sample(self.lag)]
        return both if length > 0 else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Measured window within a longer job.

    Attributes:
        disturb: called when `QUIET_SHARE` of it is over.
        wait: waits during the window; None: the clock does.
        ended: called at its end, while the job may still run.
        depth: maximum number of operations in flight.
        uncached: whether QEMU sees all I/O of the job; otherwise pauses say nothing.
    """

    ramp_seconds: float
    runtime_seconds: float
    disturb: Callable[[], None] = lambda: None
    wait: Callable[[float], None] | None = None
    ended: Callable[[], None] = lambda: None
    depth: int = 1
    uncached: bool = True


def window_samples(start: Mark, end: Mark) -> list[Sample]:
    """Return host CPU, bytes and QEMU's block counters between two marks.

    A counter that is missing at either end, or that decreased, gives no sample.
    """
    seconds = end.host.monotonic - start.host.monotonic
    if seconds <= 0:
        return []
    samples = [run_metrics.WINDOW.sample(seconds)]
    for component, after in end.host.cpu_seconds.items():
        used = after - start.host.cpu_seconds.get(component, after + 1)
        if used >= 0 and component == "vcpu_wait":  # waiting for a CPU is not CPU use
            samples.append(run_metrics.GUEST_CPU_WAIT.sample(used / seconds))
        elif used >= 0:
            samples.append(run_metrics.HOST_CPU.sample(used / seconds, part=component))
    for name, count in end.host.bytes.items():
        moved = count - start.host.bytes.get(name, count + 1)
        if moved >= 0:
            samples.append(run_metrics.HOST_BYTES.sample(moved, part=name))
    host = {
        run_metrics.HOST_CONTEXT_SWITCHES: (start.host.context_switches, end.host.context_switches),
        run_metrics.VM_EXITS: (start.host.vm_exits, end.host.vm_exits),
    }
    # Zero means a counter that could not be read: every running host has switched contexts.
    samples += [figure.sample(now - was) for figure, (was, now) in host.items() if 0 < was <= now]
    samples += _pressures(start.host, end.host, seconds)
    return samples + _block_samples(start.block, end.block)


def condition_samples(case: Case, conditions: Mapping[str, float], *, local: bool) -> list[Sample]:
    """Return the conditions of a run that can affect its case.

    A change of any other condition would be no cause.

    Args:
        conditions: metric -> value, of the host and of the storage.
        local: whether the volume is on devices of the host.
    """
    relevant = {
        # Only where reads may come from the ARC, because it cannot be emptied.
        run_metrics.ZFS_CACHE.name: case.scenario.host_cache.warm,
        # Free space in small pieces is harder to find (`fragmentation` in zpoolprops(7)).
        run_metrics.ZFS_FRAGMENTATION.name: Direction.WRITE in case.workload.directions,
        run_metrics.ZFS_SCAN.name: bool(case.workload.directions),
        run_metrics.MD_SYNC.name: local and bool(case.workload.directions),
        run_metrics.DISK_WEAR.name: local and bool(case.workload.directions),
    }
    return [
        run_metrics.FIGURES[name].sample(value)
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
        samples.append(run_metrics.NETWORK_LIMIT.sample(limit))
    seconds = network.round_trip()
    if seconds is not None:
        samples.append(run_metrics.NETWORK_ROUND_TRIP.sample(seconds))
    return samples


def _pressures(start: HostSnapshot, end: HostSnapshot, seconds: float) -> list[Sample]:
    """Return the waiting time of tasks, and values that are known as averages only."""
    samples = []
    for resource, after in end.pressure_seconds.items():
        waited = after - start.pressure_seconds.get(resource, after + 1)
        if waited >= 0:
            samples.append(run_metrics.HOST_PRESSURE.sample(waited / seconds, part=resource))
    for name, value in end.averages.items():
        figure = run_metrics.HOST_PRESSURE if name.startswith("vm_") else run_metrics.HOST_CPU
        samples.append(figure.sample(value, part=name))
    return samples


def _block_samples(start: BlockCounters | None, end: BlockCounters | None) -> list[Sample]:
    if start is None or end is None:
        return []
    counts = {
        (run_metrics.QEMU_OPERATIONS, "read"): end.read_operations - start.read_operations,
        (run_metrics.QEMU_OPERATIONS, "write"): end.write_operations - start.write_operations,
        (run_metrics.QEMU_OPERATIONS, "flush"): end.flush_operations - start.flush_operations,
        (run_metrics.QEMU_BYTES, "read"): end.read_bytes - start.read_bytes,
        (run_metrics.QEMU_BYTES, "write"): end.write_bytes - start.write_bytes,
        (run_metrics.QEMU_BYTES, "trim"): end.unmap_bytes - start.unmap_bytes,
    }
    return [
        figure.sample(count, part=part) for (figure, part), count in counts.items() if count >= 0
    ]
