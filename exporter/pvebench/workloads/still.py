"""Workloads that move no data: what an idle VM costs, how long the guest takes to boot.

Both have been moved by real upgrades, and nothing in the guest can measure them: the numbers
are the host's CPU in the window, and the time from power-on to the agent's first answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pvebench.model.workload import Workload
from pvebench.workloads.base import WORK_DIR, Estimate, Job, Parsed, Target

_OPTIONS: Final = ("version", "title")
BOOT_SECONDS: Final = 10.0


class Still:
    """What the two rooms share: no parameters, no output to read."""

    tool = ""
    title = ""
    open_ended = False
    fresh_boot = False

    def resolve(
        self, options: Mapping[str, Any], *, ramp_seconds: float, runtime_seconds: float
    ) -> Workload:
        """Return the workload; its only options are `version` and `title`."""
        for key in options:
            if key not in _OPTIONS:
                raise ValueError(f"{key}: unknown; known: {', '.join(_OPTIONS)}")
        version = options.get("version", 1)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise ValueError(f"version: {version!r} is not a whole number of 1 or more")
        return Workload(
            slug=self.tool if version == 1 else f"{self.tool}@{version}",
            tool=self.tool,
            title=str(options.get("title", self.title)),
            parameters={},
            directions=(),
            ramp_seconds=ramp_seconds,
            runtime_seconds=runtime_seconds,
        )

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the window's time; nothing is written."""
        seconds = workload.ramp_seconds + workload.runtime_seconds
        return Estimate(seconds=seconds + BOOT_SECONDS * self.fresh_boot, bytes_written=0)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return a sleep as long as the window."""
        # Whole seconds: busybox sleep knows no others. A little longer than the window.
        seconds = int(workload.ramp_seconds + workload.runtime_seconds) + 1
        output = f"{WORK_DIR}/nothing"
        return Job(
            argv=["/bin/sleep", str(seconds)], files={output: b""}, output=output,
            deadline_seconds=seconds + 60, moves_data=False,
        )  # fmt: skip

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return nothing: what counts is measured outside the guest."""
        return Parsed(samples=())


class Idle(Still):
    """A booted guest that does nothing, its disk plugged in."""

    tool = "idle"
    title = "Idle VM"


class Boot(Still):
    """The guest's boot, from power-on to the agent's first answer."""

    tool = "boot"
    title = "Boot of the guest"
    fresh_boot = True

    def resolve(
        self, options: Mapping[str, Any], *, ramp_seconds: float, runtime_seconds: float
    ) -> Workload:
        """Return the workload. The pack's times do not matter: the boot takes what it takes."""
        return super().resolve(options, ramp_seconds=0.0, runtime_seconds=0.0)
