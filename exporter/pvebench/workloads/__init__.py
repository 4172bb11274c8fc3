"""Benchmark tools. A new tool is one module and one line in `TOOLS`."""

from __future__ import annotations

from typing import Final

from pvebench.workloads.bonnie import Bonnie
from pvebench.workloads.dd import Dd
from pvebench.workloads.fio import Fio
from pvebench.workloads.hdparm import Hdparm
from pvebench.workloads.idle import Boot, Idle
from pvebench.workloads.ioping import Ioping
from pvebench.workloads.sysbench import Sysbench
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    SimulatedOutput,
    Target,
    Tool,
    ToolOptions,
)

__all__ = ["TOOLS", "Estimate", "Job", "Parsed", "SimulatedOutput", "Target", "Tool", "ToolOptions"]

TOOLS: Final[dict[str, Tool]] = {
    adapter.tool: adapter
    for adapter in (Fio(), Ioping(), Sysbench(), Bonnie(), Dd(), Hdparm(), Idle(), Boot())
}
