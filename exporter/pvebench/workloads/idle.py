"""Workloads without I/O: CPU cost of an idle VM, boot time of the guest.

Real upgrades have changed both, and nothing in the guest can measure them. The metrics are the
host CPU in the window, and the time from power-on to the agent's first response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pvebench.model.workload import Workload
from pvebench.workloads.tool import (
    BOOT_SECONDS,
    WORK_DIR,
    Estimate,
    Job,
    Parsed,
    Target,
    Tool,
    ToolOptions,
)


class IdleOptions(ToolOptions):
    """Options of `idle`."""

    tool: ClassVar[str] = "idle"
    default_title: ClassVar[str] = "Idle VM"

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload."""
        return Workload(
            slug=self.slug(self.tool),
            tool=self.tool,
            title=self.title or self.default_title,
            parameters={},
            directions=(),
            ramp_seconds=ramp_seconds,
            runtime_seconds=runtime_seconds,
        )


class BootOptions(IdleOptions):
    """Options of `boot`. The pack's times are not used: a boot has no fixed duration."""

    tool = "boot"
    default_title = "Boot of the guest"

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload, without a window."""
        return super().workload(ramp_seconds=0.0, runtime_seconds=0.0)


class Idle(Tool):
    """An idle guest with its disk attached."""

    tool = IdleOptions.tool
    options: type[IdleOptions] = IdleOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the length of the window; nothing is written."""
        seconds = workload.ramp_seconds + workload.runtime_seconds
        return Estimate(seconds=seconds + BOOT_SECONDS * self.fresh_boot, bytes_written=0)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return a sleep as long as the window."""
        # Whole seconds, because busybox sleep accepts no others. A little longer than the window.
        seconds = int(workload.ramp_seconds + workload.runtime_seconds) + 1
        output = f"{WORK_DIR}/nothing"
        return Job(
            argv=["/bin/sleep", str(seconds)],
            files={output: b""},
            output=output,
            deadline_seconds=seconds + 60,
            moves_data=False,
        )

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return no samples: all metrics are measured outside the guest."""
        return Parsed(samples=())


class Boot(Idle):
    """The guest's boot, from power-on to the agent's first response; nothing follows it."""

    tool = BootOptions.tool
    options = BootOptions
    fresh_boot = True
