"""Benchmark tools. A new tool is one module, and one line in `TOOLS` or an entry point."""

from __future__ import annotations

from typing import Final

from pvebench.plugins import Registry
from pvebench.workloads.tool import Estimate, Job, Parsed, Target, Tool, ToolOptions

__all__ = ["TOOLS", "Estimate", "Job", "Parsed", "Target", "Tool", "ToolOptions"]

TOOLS: Final = Registry[Tool](
    "tools",
    lambda plugin: isinstance(plugin, Tool),
    {
        "fio": "pvebench.workloads.fio:Fio",
        "idle": "pvebench.workloads.idle:Idle",
        "boot": "pvebench.workloads.idle:Boot",
    },
)
"""Name in packs -> the tool."""
