"""sysbench fileio: six patterns on its own files.

Without `--validate` sysbench writes only zeros, so compression or holes of the storage would affect
the results. Therefore it creates its files with this option and keeps it during the measurement
(checking the reads costs a little CPU in the guest). sysbench 1.0 has no warm-up: the same load
runs unmeasured during the ramp. Its report uses MiB, and its latencies cover all operations.
"""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from pydantic import Field, StrictBool, StrictInt, model_validator

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.fields import OneOf, Size
from pvebench.model import run_metrics
from pvebench.model.consistency import RATE_TOLERANCE, Figures, Spread, contradictions, impossible
from pvebench.model.run import Sample
from pvebench.model.units import KIB, MIB, format_size
from pvebench.model.workload import Caveat, Direction, Workload, WorksOn
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    Target,
    Tool,
    ToolOptions,
    each_once,
    number_in,
    refuse,
    shell_job,
)

READ, WRITE = (Direction.READ,), (Direction.WRITE,)
MODES: Final[dict[str, tuple[Direction, ...]]] = {
    "seqwr": WRITE,
    "seqrewr": WRITE,
    "seqrd": READ,
    "rndrd": READ,
    "rndwr": WRITE,
    "rndrw": READ + WRITE,
}
MIXED_SHARES: Final = {Direction.READ: 0.6, Direction.WRITE: 0.4}
"""Shares of reads and writes in `rndrw`, sysbench's default."""
ASSUMED_BYTES_PER_SECOND: Final = 500 * MIB
_PREPARE_BYTES_PER_SECOND: Final = 50 * MIB
MINIMUM_INTERVALS: Final = 3
MILLISECONDS: Final = 1000
"""Milliseconds per second."""
STEP: Final = 0.01
"""Resolution of the printed rates and latencies."""
PERCENTILE: Final = {99.0: "99th percentile"}
BIN_SHARE: Final = 0.01
"""Half width of a bin relative to its value: `sb_logger.c` uses 1024 bins of equal ratio."""
BINS_END: Final = 1e5
"""Upper end of the bins in milliseconds."""
_LINE: Final = re.compile(r"^\s+(?P<name>[\w/, ]+?):\s+(?P<value>[\d.]+)s?$", re.MULTILINE)
_INTERVAL: Final = re.compile(
    r"^\[ \d+s \] reads: (?P<read>[\d.]+) MiB/s writes: (?P<write>[\d.]+) MiB/s", re.MULTILINE
)
_MESSAGE: Final = re.compile(r"^(FATAL|WARNING): (?P<text>.+)$", re.MULTILINE)


class SysbenchOptions(ToolOptions):
    """Options of sysbench. Times are whole seconds; the window has at least three.

    Attributes:
        fsync_freq: requests between two syncs; 0: no syncs.
        validated: whether blocks are random data that is checked when it is read.
    """

    mode: Annotated[str, OneOf(*MODES)]
    size: Annotated[Size, Field(ge=MIB, le=1 << 50)]
    bs: Annotated[Size, Field(ge=512, le=64 * MIB)] = 16 * KIB
    threads: Annotated[StrictInt, Field(ge=1, le=256)] = 1
    files: Annotated[StrictInt, Field(ge=1, le=1024)] = 1
    fsync_freq: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 100
    direct: StrictBool = False
    validated: Annotated[StrictBool, Field(alias="validate")] = True

    @model_validator(mode="after")
    def _whole_blocks(self) -> SysbenchOptions:
        if self.size % (self.files * self.bs):
            raise ValueError(
                f"size: {self.size} bytes is not a whole number of blocks of {self.bs} bytes in "
                f"each of {self.files} files"
            )
        return self

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload, with the parameter names of all tools (`numjobs`, `rw`)."""
        slug = self._slug()
        caveats = [] if self.direct else [Caveat.CACHE]
        caveats += [] if self.validated else [Caveat.ZEROES]
        return Workload(
            slug=slug,
            tool=Sysbench.tool,
            title=self.heading(slug),
            parameters={
                **self.model_dump(exclude={"title", "threads"}, by_alias=True),
                "rw": self.mode,
                "numjobs": self.threads,
                "iodepth": 1,
            },
            directions=MODES[self.mode],
            ramp_seconds=float(round(ramp_seconds)),
            runtime_seconds=float(max(3, round(runtime_seconds))),
            place=WorksOn.DIRECTORY,
            caveats=tuple(caveats),
        )

    def _slug(self) -> str:
        return self.slug(
            f"sysbench-{self.mode}-{format_size(self.bs)}",
            f"t{self.threads}" if self.threads != 1 else "",
            f"f{self.files}" if self.files != 1 else "",
            f"size{format_size(self.size)}",
            f"fsync{self.fsync_freq}" if self.fsync_freq != 100 else "",
            "direct" if self.direct else "",
            "" if self.validated else "unchecked",
        )


class Sysbench(Tool):
    """sysbench fileio. Stateless."""

    tool = "sysbench"
    program = "sysbench"
    options = SysbenchOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the time of the window and of creating the files."""
        size = int(workload.parameters["size"])
        window = workload.ramp_seconds + workload.runtime_seconds
        writes = Direction.WRITE in workload.directions
        return Estimate(
            seconds=window + size / _PREPARE_BYTES_PER_SECOND,
            bytes_written=size + round(window * ASSUMED_BYTES_PER_SECOND * writes),
        )

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the commands: create the files, warm up, measure, remove the files."""
        output, directory = f"{target.work}/sysbench.txt", f"{target.scratch}/sysbench"
        quoted_output = shlex.quote(output)
        inside = f"cd {shlex.quote(directory)} &&"
        options = shlex.join(_options(workload))
        ramp, runtime = round(workload.ramp_seconds), round(workload.runtime_seconds)
        warm = f"sysbench --time={ramp} {options} run >{quoted_output} &&" if ramp else ""
        return shell_job(
            f"{inside} {warm} exec sysbench --time={runtime} {options} run >{quoted_output}",
            target,
            output,
            deadline_seconds=2 * (ramp + runtime) + 120,
            timed=True,
            prepare=(
                ("rm", "-rf", directory),
                ("mkdir", directory),
                ("/bin/sh", "-c", f"{inside} sysbench {options} prepare >{quoted_output} && sync"),
            ),
            cleanup=("rm", "-rf", directory),
        )

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in sysbench's report. Raises as `Tool.parse`."""
        messages = [match["text"].strip() for match in _MESSAGE.finditer(output)]
        if "FATAL:" in output:
            raise ToolFailed(
                f"sysbench: {messages[0] if messages else 'fatal error'}",
                cause=messages[-1] if messages else "",
                evidence=output[-1000:],
            )
        lines = _LINE.finditer(output)
        values = each_once([(line["name"].strip(), number_in(line["value"])) for line in lines])
        seconds = _need(values, "total time", output)
        refuse(_faults(workload, values, seconds), evidence=output[-500:])
        samples: list[Sample] = []
        intervals = _intervals(workload, output)
        for direction in workload.directions:
            samples += _rates(workload, direction, values, seconds, output)
            samples += _variation(direction, intervals.get(direction, ()))
        samples += _latencies(workload, values)
        fsyncs = values.get("fsyncs/s", 0.0) * seconds
        if fsyncs:
            samples.append(run_metrics.SYNC_OPERATIONS.sample(fsyncs))
        return Parsed(
            samples=tuple(samples),
            intervals={str(key): value for key, value in intervals.items()},
            notes=tuple(f"sysbench reported: {text}" for text in dict.fromkeys(messages)),
        )


def _options(workload: Workload) -> list[str]:
    parameters = workload.parameters
    return [
        f"--threads={parameters['numjobs']}",
        "--percentile=99",
        "--report-interval=1",
        f"--validate={'on' if parameters['validate'] else 'off'}",
        "fileio",
        f"--file-num={parameters['files']}",
        f"--file-total-size={parameters['size']}",
        f"--file-block-size={parameters['bs']}",
        f"--file-test-mode={parameters['mode']}",
        f"--file-fsync-freq={parameters['fsync_freq']}",
        *(["--file-extra-flags=direct"] if parameters["direct"] else []),
    ]


def _faults(workload: Workload, values: dict[str, float], seconds: float) -> Iterator[str]:
    """Yield contradictions in a report."""
    if seconds <= 0:
        yield f"total time is {seconds:.10g} s"
    rates = [values[name] for name in ("reads/s", "writes/s", "fsyncs/s") if name in values]
    counted, events = sum(rates) * seconds, values.get("total number of events")
    # Each file is synced once more at the end.
    slack = len(rates) * STEP * seconds
    slack += 2 * int(workload.parameters["numjobs"]) + int(workload.parameters["files"])
    if events is not None and abs(counted - events) > RATE_TOLERANCE * events + slack:
        yield f"{counted:.10g} operations in {seconds:.10g} s are not {events:.10g} events"
    for direction, moved in ((Direction.READ, "read, MiB/s"), (Direction.WRITE, "written, MiB/s")):
        figures = Figures(
            direction=direction,
            iops=values.get(f"{direction}s/s"),
            bandwidth=values[moved] * MIB if moved in values else None,
            block_bytes=int(workload.parameters["bs"]),
            iops_step=STEP,
            bandwidth_step=STEP * MIB,
        )
        yield from (implausibility.text for implausibility in contradictions(figures))
    yield from impossible(
        Spread(
            what="latency in ms",
            minimum=values.get("min"),
            mean=values.get("avg"),
            maximum=values.get("max"),
            percentiles={rank: values[key] for rank, key in PERCENTILE.items() if key in values},
            step=STEP,
            bin_share=BIN_SHARE,
            bins_end=BINS_END,
        )
    )


def _need(values: dict[str, float], name: str, output: str) -> float:
    if name not in values:
        raise OutputUnreadable(
            f"sysbench's report has no {name}",
            cause="sysbench was stopped, or its version is not 1.0",
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
    # The rate per second has more digits than the MiB/s next to it.
    bandwidth = iops * int(workload.parameters["bs"])
    return [
        run_metrics.IOPS.sample(iops, direction),
        run_metrics.BANDWIDTH.sample(bandwidth, direction),
        run_metrics.OPERATIONS.sample(iops * seconds, direction),
        run_metrics.BYTES.sample(bandwidth * seconds, direction),
        run_metrics.RUNTIME.sample(seconds, direction),
    ]


def _latencies(workload: Workload, values: dict[str, float]) -> list[Sample]:
    """Return the latencies of the only direction, or of the whole run if there are several."""
    direction = workload.directions[0] if len(workload.directions) == 1 else None
    names = {"min": "min", "mean": "avg", "max": "max"}
    samples = [
        run_metrics.LATENCIES["clat", statistic].sample(values[name] / MILLISECONDS, direction)
        for statistic, name in names.items()
        if name in values
    ]
    if "99th percentile" in values:
        value = values["99th percentile"] / MILLISECONDS
        samples.append(run_metrics.CLAT_PERCENTILE.sample(value, direction, "99"))
    return samples


def _intervals(workload: Workload, output: str) -> dict[Direction, tuple[float, ...]]:
    bs = int(workload.parameters["bs"])
    matches = list(_INTERVAL.finditer(output))
    return {
        direction: tuple(number_in(match[str(direction)]) * MIB / bs for match in matches)
        for direction in workload.directions
        if matches
    }


def _variation(direction: Direction, steps: tuple[float, ...]) -> list[Sample]:
    if len(steps) < MINIMUM_INTERVALS or not statistics.fmean(steps):
        return []
    ratio = statistics.stdev(steps) / statistics.fmean(steps)
    return [run_metrics.IOPS_VARIATION.sample(ratio, direction)]
