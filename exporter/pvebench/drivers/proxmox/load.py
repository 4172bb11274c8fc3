"""How busy a node is: its counters, and how much of it is too much for measuring.

node_exporter's counters are joined by what the API can tell.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from pvebench.model.guard import Hold, HoldKind
from pvebench.model.host import HostSnapshot
from pvebench.model.ports import Clock, HostProbe
from pvebench.model.workload import Case

AGAIN_SECONDS: Final = 10.0
"""After so long is looked again whether what holds a run has ended."""
_LOOK_SECONDS: Final = 2.0
_PRESSURES: Final = {
    "pressurecpusome": "vm_cpu_some",
    "pressureiosome": "vm_io_some",
    "pressureiofull": "vm_io_full",
    "pressurememorysome": "vm_memory_some",
    "pressurememoryfull": "vm_memory_full",
}
"""Field of status/current, from version 9 on: percent over ten seconds -> its name here."""


class Averages(Protocol):
    """What gives the API's own averages; `ProxmoxNode` does."""

    def averages(self, *, cpu: bool) -> Mapping[str, float]:
        """Return name -> ratio or cores, nothing where it cannot be known. Never raises."""


class NodeProbe:
    """`model.ports.HostProbe` of a node.

    Args:
        node: asked for the VM's pressure and, without node_exporter, for the node's CPU.
        exporter: None where the node has no node_exporter: figures are coarse then.
    """

    def __init__(self, node: Averages, exporter: HostProbe | None) -> None:
        self._node = node
        self._exporter = exporter

    def snapshot(self) -> HostSnapshot:
        """Return the counters now, and the API's averages of the last seconds."""
        averages = self._node.averages(cpu=self._exporter is None)
        if self._exporter is None:
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={}, averages=averages)
        return replace(self._exporter.snapshot(), averages=averages)


def vm_pressure(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the VM's pressure as ratios from an answer of status/current."""
    return {
        name: float(status[field]) / 100 for field, name in _PRESSURES.items() if field in status
    }


def coarse_cpu(status: Mapping[str, Any]) -> dict[str, float]:
    """Return the busy cores of a node from an answer of its status.

    It is what one process of the server saw since it was last asked; 0 when it never was, which
    is no figure.
    """
    busy = float(status.get("cpu", 0.0)) * int(status.get("cpuinfo", {}).get("cpus", 0))
    return {"total_coarse": busy} if busy > 0 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLimits:
    """What is too much for measuring. None: no limit.

    Attributes:
        cpu_ratio: share of all CPUs that is busy.
        io_pressure_ratio: share of time in which some task waits for I/O (Linux PSI).
    """

    cpu_ratio: float | None = None
    io_pressure_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LoadGuard:
    """`model.guard.Guard` by a host's counters, in the pauses before and after a run."""

    probe: HostProbe
    clock: Clock
    limits: LoadLimits

    def enter(self, case: Case) -> Hold | None:
        busy = self._look()
        return Hold(kind=HoldKind.LOAD, reason=busy, seconds=AGAIN_SECONDS) if busy else None

    def leave(self, case: Case) -> str:
        return self._look()

    def _look(self) -> str:
        start = self.probe.snapshot()
        self.clock.sleep(_LOOK_SECONDS)
        return too_busy(start, self.probe.snapshot(), self.limits)


def too_busy(start: HostSnapshot, end: HostSnapshot, limits: LoadLimits) -> str:
    """Return what is above its limit between two snapshots; what cannot be known is not."""
    seconds = end.monotonic - start.monotonic
    if seconds <= 0:
        return ""
    if limits.cpu_ratio is not None and end.cpus and {"total"} <= {*start.cpu_seconds}:
        used = end.cpu_seconds.get("total", 0.0) - start.cpu_seconds["total"]
        ratio = used / seconds / end.cpus
        if ratio > limits.cpu_ratio:
            return f"{ratio:.0%} of the host's CPUs are busy, more than {limits.cpu_ratio:.0%}"
    limit, name = limits.io_pressure_ratio, "io_some"
    if limit is not None and name in start.pressure_seconds and name in end.pressure_seconds:
        ratio = (end.pressure_seconds[name] - start.pressure_seconds[name]) / seconds
        if ratio > limit:
            return f"tasks of the host wait for I/O {ratio:.0%} of the time, more than {limit:.0%}"
    return ""
