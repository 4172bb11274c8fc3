"""hdparm -t and -T: sequential reads from the start of a device, and from the cache.

`-T` never reads the disk: it measures memory and bus, so it has the caveat CACHE.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from pydantic import StrictBool

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.run_metrics import BANDWIDTH, BYTES, RUNTIME
from pvebench.model.units import MIB
from pvebench.model.workload import Caveat, Direction, Workload, WorksOn
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    Target,
    Tool,
    ToolOptions,
    number_in,
    only_one,
    program,
    refuse,
    shell_job,
)

SECONDS: Final = 6.0
"""Expected duration: hdparm reads for three seconds, plus its overhead."""
_RESULT: Final = re.compile(
    r"Timing (?P<what>[\w ]+ reads):\s+(?P<mib>[\d.,]+) MB in\s+(?P<seconds>[\d.,]+) seconds = "
    r"\s*(?P<rate>[\d.,]+) (?P<unit>[kM])B/sec"
)


class HdparmOptions(ToolOptions):
    """Options of hdparm. The pack's times are not used: hdparm has its own.

    Attributes:
        cached: read from the cache (`-T`) instead of the disk (`-t`).
    """

    cached: StrictBool = False
    direct: StrictBool = False

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload; it requires a block device."""
        kind = "cached" if self.cached else "buffered"
        slug = self.slug("hdparm", kind, "direct" if self.direct else "")
        return Workload(
            slug=slug,
            tool=Hdparm.tool,
            title=self.heading(slug),
            parameters={"rw": "read", **self.model_dump(exclude={"title"})},
            directions=(Direction.READ,),
            place=WorksOn.DEVICE,
            caveats=(Caveat.CACHE,) if self.cached else (),
        )


class Hdparm(Tool):
    """hdparm. Stateless."""

    tool = "hdparm"
    program = "hdparm"
    options = HdparmOptions
    seconds_step = 0.01  # significant, since a run can take only 70 ms

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return hdparm's fixed duration; it only reads."""
        return Estimate(seconds=SECONDS, bytes_written=0)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the command."""
        parameters, output = workload.parameters, f"{target.work}/hdparm.txt"
        options = ["-T" if parameters["cached"] else "-t"]
        options += ["--direct"] if parameters["direct"] else []
        arguments = shlex.join([*options, target.device])
        command = f"{program('hdparm')} {arguments} >{shlex.quote(output)} 2>&1"
        return shell_job(command, target, output)

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in hdparm's line. Raises as `Tool.parse`."""
        match = only_one(_RESULT.finditer(output), evidence=output[-500:])
        if match is None:
            errors = [
                line.strip() for line in output.splitlines() if "failed" in line or "EOF" in line
            ]
            if errors:
                raise ToolFailed(f"hdparm: {errors[-1][:200]}", evidence=output[-500:])
            raise OutputUnreadable("hdparm printed no timing", evidence=output[-500:])
        moved, seconds = number_in(match["mib"]) * MIB, number_in(match["seconds"])
        rate = number_in(match["rate"]) * (MIB if match["unit"] == "M" else 1024)
        named = {"size": moved, "time": seconds, "rate": rate}
        refuse([f"{name} is 0" for name, value in named.items() if not value], evidence=match[0])
        return Parsed(
            samples=(
                BANDWIDTH.sample(rate, Direction.READ),
                BYTES.sample(moved, Direction.READ),
                RUNTIME.sample(seconds, Direction.READ),
            )
        )
