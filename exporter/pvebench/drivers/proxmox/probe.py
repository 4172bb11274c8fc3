"""What a node does beside the VM: node_exporter's counters, and what the API itself can tell."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from pvebench.model.host import HostSnapshot
from pvebench.model.ports import HostProbe

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
