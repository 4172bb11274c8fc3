"""sysbench's report -> samples. Its MiB are MiB, its latencies are of all operations together."""

from __future__ import annotations

import re
import statistics
from typing import Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB
from pvebench.model.workload import Direction, Workload
from pvebench.workloads.base import Parsed

MINIMUM_INTERVALS: Final = 3
MILLISECONDS: Final = 1000
"""In a second."""
_LINE: Final = re.compile(r"^\s+(?P<name>[\w/, ]+?):\s+(?P<value>[\d.]+)s?$", re.MULTILINE)
_INTERVAL: Final = re.compile(
    r"^\[ \d+s \] reads: (?P<read>[\d.]+) MiB/s writes: (?P<write>[\d.]+) MiB/s", re.MULTILINE
)
_COMPLAINT: Final = re.compile(r"^(FATAL|WARNING): (?P<text>.+)$", re.MULTILINE)


def parse(workload: Workload, output: str) -> Parsed:
    """Return the samples in sysbench's report. Raises as `Room.parse`."""
    complaints = [found["text"].strip() for found in _COMPLAINT.finditer(output)]
    if "FATAL:" in output:
        raise ToolFailed(
            f"sysbench: {complaints[0]}", cause=complaints[-1], evidence=output[-1000:]
        )
    values = {found["name"].strip(): float(found["value"]) for found in _LINE.finditer(output)}
    seconds = _need(values, "total time", output)
    samples: list[Sample] = []
    intervals = _intervals(workload, output)
    for direction in workload.directions:
        samples += _rates(workload, direction, values, seconds, output)
        samples += _variation(direction, intervals.get(direction, ()))
    samples += _latencies(workload, values)
    fsyncs = values.get("fsyncs/s", 0.0) * seconds
    if fsyncs:
        samples.append(Sample("sync_operations", None, fsyncs, Unit.OPERATIONS))
    return Parsed(
        samples=tuple(samples),
        intervals={str(key): value for key, value in intervals.items()},
        notes=tuple(f"sysbench said: {text}" for text in dict.fromkeys(complaints)),
    )


def _need(values: dict[str, float], name: str, output: str) -> float:
    if name not in values:
        raise OutputUnreadable(
            f"sysbench's report has no {name}",
            cause="it was stopped, or is another version than 1.0",
            evidence=output[-500:],
        )
    return values[name]


def _rates(
    workload: Workload, direction: Direction, values: dict[str, float], seconds: float, output: str
) -> list[Sample]:
    reads = direction is Direction.READ
    iops = _need(values, "reads/s" if reads else "writes/s", output)
    if not iops:
        raise ToolFailed(f"sysbench did not complete a single {direction}", evidence=output[-500:])
    # The rate per second has more digits than the MiB/s beside it.
    bandwidth = iops * int(workload.parameters["bs"])
    return [
        Sample("iops", direction, iops, Unit.IOPS),
        Sample("bandwidth", direction, bandwidth, Unit.BYTES_PER_SECOND),
        Sample("operations", direction, iops * seconds, Unit.OPERATIONS),
        Sample("bytes", direction, bandwidth * seconds, Unit.BYTES),
        Sample("runtime", direction, seconds, Unit.SECONDS),
    ]


def _latencies(workload: Workload, values: dict[str, float]) -> list[Sample]:
    """Return latencies: of one direction where there is only one, else of the whole run."""
    direction = workload.directions[0] if len(workload.directions) == 1 else None
    figures = {"clat_min": "min", "clat_mean": "avg", "clat_max": "max"}
    samples = [
        Sample(metric, direction, values[name] / MILLISECONDS, Unit.SECONDS)
        for metric, name in figures.items()
        if name in values
    ]
    if "99th percentile" in values:
        value = values["99th percentile"] / MILLISECONDS
        samples.append(Sample("clat_percentile", direction, value, Unit.SECONDS, "99"))
    return samples


def _intervals(workload: Workload, output: str) -> dict[Direction, tuple[float, ...]]:
    bs = int(workload.parameters["bs"])
    found = list(_INTERVAL.finditer(output))
    return {
        direction: tuple(float(match[str(direction)]) * MIB / bs for match in found)
        for direction in workload.directions
        if found
    }


def _variation(direction: Direction, steps: tuple[float, ...]) -> list[Sample]:
    if len(steps) < MINIMUM_INTERVALS or not statistics.fmean(steps):
        return []
    ratio = statistics.stdev(steps) / statistics.fmean(steps)
    return [Sample("iops_variation", direction, ratio, Unit.RATIO)]
