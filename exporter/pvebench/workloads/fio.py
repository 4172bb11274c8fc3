"""fio: the main tool. Random and sequential, mixed, synced; latency kept apart by kind.

Options are in `fio_options.py`, job files in `fio_job.py`, parsing in `fio_parse.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pvebench.errors import ToolFailed
from pvebench.model.units import MIB
from pvebench.model.workload import Direction, Workload
from pvebench.workloads.base import Estimate, Job, Parsed, Target
from pvebench.workloads.fio_job import fill_job, measure_job
from pvebench.workloads.fio_json import number, read_report
from pvebench.workloads.fio_options import (
    DIRECTIONS,
    is_mixed,
    resolve_options,
    slug_of,
    title_of,
)
from pvebench.workloads.fio_parse import parse

__all__ = ["Fio", "check_fill", "fill_job"]

ASSUMED_BYTES_PER_SECOND: Final = 1000 * MIB
ASSUMED_IOPS: Final = 100_000
"""A fast NVMe drive behind virtio; real writes stay below, which is right for a wear guard."""


class Fio:
    """The room of fio, a `Room`. It has no state."""

    tool = "fio"
    open_ended = True
    fresh_boot = False

    def resolve(
        self, options: Mapping[str, Any], *, ramp_seconds: float, runtime_seconds: float
    ) -> Workload:
        """Return the workload that a pack's options mean. Raises ValueError, `option: …`."""
        parameters = resolve_options(options)
        slug = slug_of(parameters)
        return Workload(
            slug=slug,
            tool=self.tool,
            title=title_of(options, slug),
            parameters=parameters,
            directions=DIRECTIONS[str(parameters["rw"])],
            ramp_seconds=ramp_seconds,
            runtime_seconds=runtime_seconds,
        )

    def estimate(
        self, workload: Workload, size_bytes: int
    ) -> Estimate:  # time-based: the size does not matter
        """Return the window's time, and what a fast device would be made to write in it."""
        parameters, seconds = workload.parameters, workload.ramp_seconds + workload.runtime_seconds
        if Direction.WRITE not in workload.directions:
            return Estimate(seconds=seconds, bytes_written=0)
        iops = int(parameters["rate_iops"]) or ASSUMED_IOPS
        speed = min(iops * int(parameters["bs"]), ASSUMED_BYTES_PER_SECOND)
        mixed = is_mixed(str(parameters["rw"]))
        share = 1 - int(parameters["rwmixread"]) / 100 if mixed else 1.0
        return Estimate(seconds=seconds, bytes_written=round(seconds * speed * share))

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the job file and the command. Raises ToolFailed if no block fits the device."""
        return measure_job(workload, target)

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in fio's JSON and IOPS log. Raises as `Room.parse`."""
        return parse(workload, output, logs)


def check_fill(output: str, target: Target) -> None:
    """Make sure that a fill wrote the whole device.

    Raises:
        ToolFailed: fio failed, or wrote less or more than the device's size.
        OutputUnreadable: as `Room.parse`.
    """
    report = read_report(output)
    written = sum(number(job, "write", "io_bytes") or 0.0 for job in report.jobs)
    if written != target.size_bytes:
        raise ToolFailed(
            f"the fill wrote {written:.0f} of {target.size_bytes} bytes",
            cause=report.said or "the device is not as big as it was said to be",
            next_step="reads from the unfilled rest would not reach the storage; fill again",
            evidence=report.said,
        )
