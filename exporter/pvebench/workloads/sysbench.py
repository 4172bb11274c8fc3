"""sysbench fileio: six patterns over its own files.

Without `--validate` sysbench writes nothing but zeros, and a storage that compresses them or
leaves holes is measured at that; so its files are made with it, and it stays on while measuring
(reads are then checked, which costs the guest a little CPU). sysbench 1.0 has no warm-up of its
own: the same load runs before, unmeasured, for the ramp. In its report MiB are MiB, and latencies
are of all operations together.
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
from pvebench.model.plausibility import RATE_TOLERANCE, Figures, Spread, contradictions, impossible
from pvebench.model.run import Sample, Unit
from pvebench.model.units import KIB, MIB, format_size
from pvebench.model.workload import Caveat, Direction, Place, Workload
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    PlayDisk,
    Played,
    Target,
    Tool,
    ToolOptions,
    each_once,
    number_in,
    own_bytes,
    refuse,
    written_to,
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
"""What sysbench makes of `rndrw` unless it is told otherwise."""
ASSUMED_BYTES_PER_SECOND: Final = 500 * MIB
_PREPARE_BYTES_PER_SECOND: Final = 50 * MIB
MINIMUM_INTERVALS: Final = 3
MILLISECONDS: Final = 1000
"""In a second."""
STEP: Final = 0.01
"""The last digit of rates and latencies."""
PERCENTILE: Final = {99.0: "99th percentile"}
BIN_SHARE: Final = 0.01
"""Half a bin, in what is counted in it: 1024 of equal ratio, as `sb_logger.c` makes them …"""
BINS_END: Final = 1e5
"""… up to this many milliseconds."""
_LINE: Final = re.compile(r"^\s+(?P<name>[\w/, ]+?):\s+(?P<value>[\d.]+)s?$", re.MULTILINE)
_INTERVAL: Final = re.compile(
    r"^\[ \d+s \] reads: (?P<read>[\d.]+) MiB/s writes: (?P<write>[\d.]+) MiB/s", re.MULTILINE
)
_COMPLAINT: Final = re.compile(r"^(FATAL|WARNING): (?P<text>.+)$", re.MULTILINE)


class SysbenchOptions(ToolOptions):
    """What a pack says to sysbench. Times are whole seconds, at least three of them measured.

    Attributes:
        fsync_freq: requests between two syncs; 0: none.
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
                f"size: {self.size} bytes is not whole blocks of {self.bs} in {self.files} files"
            )
        return self

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload, in the words that all tools share (`numjobs`, `rw`)."""
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
            place=Place.DIRECTORY,
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
    """The room of sysbench fileio. It has no state."""

    tool = "sysbench"
    program = "sysbench"
    options = SysbenchOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the window's time and the making of the files."""
        size = own_bytes(workload, size_bytes)
        window = workload.ramp_seconds + workload.runtime_seconds
        writes = Direction.WRITE in workload.directions
        return Estimate(
            seconds=window + size / _PREPARE_BYTES_PER_SECOND,
            bytes_written=size + round(window * ASSUMED_BYTES_PER_SECOND * writes),
        )

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the commands: make the files, warm up, measure, remove the files."""
        output, directory = f"{target.work}/sysbench.txt", f"{target.scratch}/sysbench"
        kept = shlex.quote(output)
        inside = f"cd {shlex.quote(directory)} &&"
        options = shlex.join(_options(workload, target))
        ramp, runtime = round(workload.ramp_seconds), round(workload.runtime_seconds)
        warm = f"sysbench --time={ramp} {options} run >{kept} &&" if ramp else ""
        seconds = ramp + runtime
        return Job(
            argv=[
                "/bin/sh",
                "-c",
                f"{inside} {warm} exec sysbench --time={runtime} {options} run >{kept}",
            ],
            files={output: b""},
            output=output,
            work=target.work,
            deadline_seconds=2 * seconds + 120,
            drop_guest_cache=True,
            prepare=(
                ("rm", "-rf", directory),
                ("mkdir", directory),
                ("/bin/sh", "-c", f"{inside} sysbench {options} prepare >{kept} && sync"),
            ),
            cleanup=("rm", "-rf", directory),
        )

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in sysbench's report. Raises as `Room.parse`."""
        return _parse(workload, output)

    def play(self, argv: list[str], files: Mapping[str, bytes], disk: PlayDisk) -> Played | None:
        """Return what sysbench would report of a command; see `Room.play`."""
        output = written_to(argv, "sysbench.txt")
        return _play(argv[-1], output, disk) if output and " prepare " not in argv[-1] else None


def _play(command: str, output: str, disk: PlayDisk) -> Played:
    options = dict(re.findall(r"--?([\w-]+)=(\S+)", command))
    times = [int(text) for text in re.findall(r"--time=(\d+)", command)]
    bs, directions = int(options["file-block-size"]), MODES[options["file-test-mode"]]
    shares = dict.fromkeys(directions, 1.0) if len(directions) == 1 else MIXED_SHARES
    rates = {name: disk.rate(name, bs=bs) * share for name, share in shares.items()}
    both = {Direction.READ: 0.0, Direction.WRITE: 0.0, **rates}
    mib = {str(name): rate * bs / MIB for name, rate in both.items()}
    mean = MILLISECONDS / sum(rates.values())
    lines = [
        f"[ {tick}s ] reads: {mib['read']:.2f} MiB/s writes: {mib['write']:.2f} MiB/s fsyncs: 0/s"
        for tick in range(1, times[-1] + 1)
    ]
    lines += [
        f"    reads/s:  {both[Direction.READ]:.2f}",
        f"    writes/s:  {both[Direction.WRITE]:.2f}",
        "    fsyncs/s:  0.00",
        f"    total time:  {times[-1]:.4f}s",
        f"    min:  {mean / 2:.2f}",
        f"    avg:  {mean:.2f}",
        f"    max:  {mean * 9:.2f}",
        f"    99th percentile:  {mean * 3:.2f}",
    ]
    return Played(seconds=sum(times), output=output, text="\n".join(lines) + "\n")


def _options(workload: Workload, target: Target) -> list[str]:
    parameters = workload.parameters
    whole = int(parameters["files"]) * int(parameters["bs"])
    size = own_bytes(workload, target.size_bytes) // whole * whole
    return [
        f"--threads={parameters['numjobs']}",
        "--percentile=99",
        "--report-interval=1",
        f"--validate={'on' if parameters['validate'] else 'off'}",
        "fileio",
        f"--file-num={parameters['files']}",
        f"--file-total-size={size}",
        f"--file-block-size={parameters['bs']}",
        f"--file-test-mode={parameters['mode']}",
        f"--file-fsync-freq={parameters['fsync_freq']}",
        *(["--file-extra-flags=direct"] if parameters["direct"] else []),
    ]


def _parse(workload: Workload, output: str) -> Parsed:
    complaints = [found["text"].strip() for found in _COMPLAINT.finditer(output)]
    if "FATAL:" in output:
        raise ToolFailed(
            f"sysbench: {complaints[0] if complaints else 'it gave up'}",
            cause=complaints[-1] if complaints else "",
            evidence=output[-1000:],
        )
    lines = _LINE.finditer(output)
    values = each_once([(one["name"].strip(), number_in(one["value"])) for one in lines])
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
        samples.append(Sample("sync_operations", None, fsyncs, Unit.OPERATIONS))
    return Parsed(
        samples=tuple(samples),
        intervals={str(key): value for key, value in intervals.items()},
        notes=tuple(f"sysbench said: {text}" for text in dict.fromkeys(complaints)),
    )


def _faults(workload: Workload, values: dict[str, float], seconds: float) -> Iterator[str]:
    """Yield what cannot be true of a report."""
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
        direction: tuple(number_in(match[str(direction)]) * MIB / bs for match in found)
        for direction in workload.directions
        if found
    }


def _variation(direction: Direction, steps: tuple[float, ...]) -> list[Sample]:
    if len(steps) < MINIMUM_INTERVALS or not statistics.fmean(steps):
        return []
    ratio = statistics.stdev(steps) / statistics.fmean(steps)
    return [Sample("iops_variation", direction, ratio, Unit.RATIO)]
