"""fio, the main tool: random and sequential, mixed and synced I/O, with separate latency types.

This module has its pack options, their rules and the slug; job files are in `fio_job.py`, the
fields of the output in `fio_report.py`, the samples in `fio_samples.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from pvebench.errors import ToolFailed
from pvebench.fields import Duration, OneOf, Size, Slug, Text
from pvebench.model.definition import DIRECTIONS
from pvebench.model.units import MIB, format_size, parse_duration
from pvebench.model.workload import (
    COPIES,
    DISK_OPERATIONS,
    MAX_VMS,
    NEIGHBOR,
    SNAPSHOT_RAM,
    Direction,
    Workload,
)
from pvebench.workloads.fault_dip import MIN_OPERATION_SECONDS, QUIET_SHARE, TOO_SHORT
from pvebench.workloads.fio_job import (
    EXPLAINED,
    PERCENTILES,
    fill_job,
    is_mixed,
    is_random,
    is_search,
    measure_job,
    search_seconds,
    writes_once,
)
from pvebench.workloads.fio_report import number, read_report
from pvebench.workloads.fio_samples import parse
from pvebench.workloads.tool import Estimate, Job, Parsed, Target, Tool, ToolOptions

__all__ = ["Fio", "check_fill", "fill_job"]

_THROTTLED: Final = (*COPIES, SNAPSHOT_RAM)
ENGINES: Final = ("libaio", "io_uring", "psync")
MIX_DEFAULT: Final = 50
WINDOW_DEFAULT: Final = 5.0
"""Default `latency_window` in seconds."""
_SKEWED: Final = re.compile(r"(?P<name>zipf|pareto|normal):(?P<value>\d+(\.\d+)?)\Z", re.ASCII)
_ZONED: Final = re.compile(r"zoned:\d+/\d+(:\d+/\d+)*\Z", re.ASCII)
_SEARCH: Final = ("latency_target", "latency_window", "latency_percentile")
_OPTIONAL: Final = ("compress", "fault", "during", "target_rate", "neighbor_iops")
ASSUMED_BYTES_PER_SECOND: Final = 1000 * MIB
ASSUMED_IOPS: Final = 100_000
"""Rate of a fast NVMe drive behind virtio: an upper limit, as a write budget requires."""


def _power_of_two(size: int) -> int:
    if not 512 <= size <= 64 * MIB or size & (size - 1):
        raise ValueError(f"{size} bytes is not a power of two from 512 to 64M")
    return size


def _no_count(value: object) -> object:
    if type(value) is int:  # a bool is none here
        hint = f"; to flush after writes, use fsync: {value}" if value else ""
        raise ValueError(f"expected true (O_SYNC) or false, found {value}{hint}")
    return value


def _distribution(text: str) -> str:
    if text != "random" and not _is_valid_distribution(text):
        raise ValueError(
            f"{text!r} is not one of random, zipf:THETA (above 0, not 1), "
            f"pareto:POWER (between 0 and 1), normal:DEVIATION (percent, below 100), "
            f"zoned:ACCESS/AREA:ACCESS/AREA… (percent, each summing to 100)"
        )
    return text


def _is_valid_distribution(text: str) -> bool:
    if _ZONED.match(text):
        shares = [pair.split("/") for pair in text.partition(":")[2].split(":")]
        return all(sum(int(share[side]) for share in shares) == 100 for side in (0, 1))
    match = _SKEWED.match(text)
    if not match:
        return False
    value, name = float(match["value"]), match["name"]
    limit = {"zipf": 100.0, "pareto": 1.0, "normal": 100.0}[name]
    return 0 < value < limit and not (name == "zipf" and value == 1)


def _microseconds(value: object) -> int:
    """Parse `500us` or a duration; return microseconds."""
    text = str(value).strip()
    short = re.fullmatch(r"([0-9]{1,9})us", text)
    exact = float(short[1]) if short else parse_duration(text) * 1e6
    count = round(exact)
    if abs(count - exact) > 1e-6:
        raise ValueError(f"{text!r} is not a whole number of microseconds")
    if not 1 <= count <= 60_000_000:
        raise ValueError(f"{text!r} is not a latency; use for example 500us or 2ms, at most 60s")
    return count


def _known_percentile(value: float) -> float:
    known = PERCENTILES.split(":")
    if f"{value:g}" not in known:
        raise ValueError(f"{value:g} is not one of the recorded percentiles: {', '.join(known)}")
    return value


def _show_latency(microseconds: int) -> str:
    for factor, suffix in ((1_000_000, "s"), (1000, "ms")):
        if microseconds % factor == 0:
            return f"{microseconds // factor}{suffix}"
    return f"{microseconds}us"


_Every = Annotated[StrictInt, Field(ge=0, le=1_000_000)]


class FioOptions(ToolOptions):
    """Options of fio in a pack, with fio's names.

    Attributes:
        rw: the pattern.
        bs: bytes of one operation.
        rwmixread: percentage of reads in a mixed pattern.
        fsync, fdatasync: writes between two syncs; 0: no syncs.
        size: used bytes of the disk; 0: all of it.
        rate_iops: limit for all jobs together; 0: no limit.
        compress: percentage of the written data that can be compressed away.
        latency_target: search for the highest depth, up to iodepth, at which latency_percentile
            percent of all operations finish within this time (microseconds); 0: no search. The
            rate is that of one latency_window (seconds) at that depth.
        fault: fault to inject after a third of the window, by its name in the settings of the
            storage; empty: none.
        touch: data of the newest level of a snapshot chain at the start. first: none, so reads get
            data from below all snapshots, and each block is written at most once. rewrite: all.
        during: operation on the disk that begins after a third of the window; empty: none.
        target_rate: bytes per second that the operation's target can write; default: no limit.
        neighbor_iops: limit of a neighbor, which runs the same job; 0: no limit.
        vms: number of VMs that run the job at the same time, each with its own volume.
        runtime: length of the measured window; default: `measure.runtime` of the pack.
        histogram: keep the whole distribution of completion latencies, which increases the output.
    """

    explained: ClassVar[Mapping[str, str]] = EXPLAINED
    # Many options of fio have names alike: only a slip of the pen is corrected.
    cutoff: ClassVar[float] = 0.85

    rw: Annotated[
        str,
        OneOf(*DIRECTIONS, "readwrite"),
        AfterValidator(lambda rw: "rw" if rw == "readwrite" else rw),
    ]
    bs: Annotated[Size, AfterValidator(_power_of_two)]
    iodepth: Annotated[StrictInt, Field(ge=1, le=4096)] = 1
    numjobs: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    rwmixread: Annotated[StrictInt, Field(ge=1, le=99)] = MIX_DEFAULT
    fsync: _Every = 0
    fdatasync: _Every = 0
    sync: Annotated[StrictBool, BeforeValidator(_no_count)] = False
    ioengine: Annotated[str, OneOf(*ENGINES)] = ENGINES[0]
    size: Size = 0
    rate_iops: Annotated[StrictInt, Field(ge=1, le=100_000_000)] = 0
    random_distribution: Annotated[Text, AfterValidator(_distribution)] = "random"
    compress: Annotated[StrictInt, Field(ge=0, le=99)] = 0
    latency_target: Annotated[
        int,
        BeforeValidator(_microseconds),
        WithJsonSchema({"type": "string", "examples": ["500us", "2ms"]}),
    ] = 0
    latency_window: Annotated[Duration, Field(ge=0.5, le=600)] = WINDOW_DEFAULT
    latency_percentile: Annotated[float, AfterValidator(_known_percentile)] = 99.0
    fault: Slug | Literal[""] = ""
    touch: Literal["first", "rewrite"] = "rewrite"
    during: Annotated[str, OneOf("", *DISK_OPERATIONS)] = ""
    target_rate: Annotated[Size, Field(ge=1)] = 0
    neighbor_iops: Annotated[StrictInt, Field(ge=0, le=100_000_000)] = 0
    vms: Annotated[StrictInt, Field(ge=1, le=MAX_VMS)] = 1
    runtime: Annotated[Duration, Field(ge=1)] | None = None
    histogram: StrictBool = False

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> FioOptions:
        for key in _SEARCH[1:]:
            if key in self.model_fields_set and not self.latency_target:
                raise ValueError(f"{key}: requires latency_target")
        if self.target_rate and self.during not in _THROTTLED:
            raise ValueError(f"target_rate: requires during: {', '.join(_THROTTLED)}")
        if self.neighbor_iops and self.during != NEIGHBOR:
            raise ValueError("neighbor_iops: requires during: neighbor")
        return self

    def _special(self) -> Iterator[tuple[object, str, tuple[str, ...]]]:
        """Yield whether the load is special, by which option, and the options that it excludes."""
        yield self.latency_target, "latency_target", ("rate_iops", "fault", "runtime")
        yield self.touch == "first", "touch first", ("fault", "latency_target")
        yield self.during, "during", ("fault", "latency_target")
        yield self.vms > 1, "several vms", ("fault", "latency_target", "during")

    @model_validator(mode="after")
    def _is_special_in_one_way(self) -> FioOptions:
        for applies, name, excluded in self._special():
            for key in excluded if applies else ():
                if getattr(self, key):
                    raise ValueError(f"{key}: cannot be combined with {name}")
        return self

    @model_validator(mode="after")
    def _can_be_special(self) -> FioOptions:
        if self.latency_target and self.numjobs != 1:
            raise ValueError(
                "numjobs: must be 1 with latency_target, as each job would search alone"
            )
        if self.latency_target and self.iodepth == 1:
            raise ValueError("iodepth: must be above 1 with latency_target: it limits the search")
        for key, limit in (("numjobs", 1), ("random_distribution", "random")):
            if self.touch == "first" and getattr(self, key) != limit:
                raise ValueError(f"{key}: must be {limit} with touch first: blocks would repeat")
        if self.during and (self.runtime or MIN_OPERATION_SECONDS) < MIN_OPERATION_SECONDS:
            raise ValueError(f"runtime: {TOO_SHORT}")
        if self.during and self._once:
            raise ValueError("touch: must be rewrite with during, or the writes could end first")
        return self

    @model_validator(mode="after")
    def _fits_the_pattern(self) -> FioOptions:
        explicit, rw = self.model_fields_set, self.rw
        if "rwmixread" in explicit and not is_mixed(rw):
            raise ValueError(f"rwmixread: only rw and randrw mix reads and writes, {rw} does not")
        if "random_distribution" in explicit and not is_random(rw):
            raise ValueError(
                f"random_distribution: {rw} is sequential; use a pattern with rand in its name"
            )
        for key in ("fsync", "fdatasync", "sync", "compress"):
            verb = "compressed" if key == "compress" else "flushed"
            if getattr(self, key) and Direction.WRITE not in DIRECTIONS[rw]:
                raise ValueError(f"{key}: {rw} writes no data that could be {verb}")
        return self

    @model_validator(mode="after")
    def _makes_one_job(self) -> FioOptions:
        if "size" in self.model_fields_set and (self.size < self.bs or self.size % self.bs):
            raise ValueError(
                f"size: {self.size} bytes is not a whole number of blocks of {self.bs} bytes"
            )
        if not is_random(self.rw) and self.size % (self.bs * self.numjobs):
            parts = f"{self.numjobs} jobs with whole blocks of {self.bs} bytes"
            raise ValueError(f"size: {self.size} bytes cannot be divided among {parts}")
        if self.fsync and self.fdatasync:
            raise ValueError(
                "fdatasync: cannot be combined with fsync, as fio would measure neither"
            )
        if self.ioengine == "psync" and self.iodepth != 1:
            raise ValueError("iodepth: psync does one operation at a time; use numjobs, or libaio")
        self._check_rates()
        return self

    def _check_rates(self) -> None:
        """Raise ValueError unless the rates can be divided among the jobs and directions."""
        share = self.numjobs * len(DIRECTIONS[self.rw])
        for key in ("rate_iops", "neighbor_iops"):
            rate = getattr(self, key)
            if rate and (rate % self.numjobs or rate < share):
                raise ValueError(
                    f"{key}: {rate} is the total and cannot be divided evenly among "
                    f"{self.numjobs} jobs; use a multiple of {self.numjobs}, at least {share}"
                )
            if is_mixed(self.rw) and rate // self.numjobs * self.rwmixread % 100:
                raise ValueError(
                    f"{key}: {rate} cannot be divided into {self.rwmixread}% reads and "
                    f"{100 - self.rwmixread}% writes for each of {self.numjobs} jobs"
                )

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload."""
        slug = self._slug()
        # Only if they apply: an additional parameter would end the histories of other workloads.
        applies = {
            **{key: getattr(self, key) for key in _OPTIONAL},
            **dict.fromkeys(_SEARCH, self.latency_target),
            "rwmixread": is_mixed(self.rw),
            "touch": self.touch == "first",
            "vms": self.vms > 1,
        }
        unused = {key for key in applies if not applies[key]}
        return Workload(
            slug=slug,
            tool=Fio.tool,
            title=self.heading(slug),
            parameters=self.model_dump(exclude={"title", "runtime", "histogram"} | unused),
            directions=DIRECTIONS[self.rw],
            # A search has no fixed duration; only its last window is measured.
            ramp_seconds=0.0 if self.latency_target or self._once else ramp_seconds,
            runtime_seconds=0.0 if self.latency_target else runtime_seconds,
            histogram=self.histogram,
        )

    @property
    def _once(self) -> bool:
        return self.touch == "first" and Direction.WRITE in DIRECTIONS[self.rw]

    def _slug(self) -> str:
        """Return for example `randwrite-4k-qd32`, and a part for each non-default option."""
        parts = {
            "numjobs": f"j{self.numjobs}",
            "rwmixread": f"mix{self.rwmixread}",
            "fsync": f"fsync{self.fsync}",
            "fdatasync": f"fdatasync{self.fdatasync}",
            "sync": "sync",
            "ioengine": self.ioengine,
            "size": f"size{format_size(self.size)}",
            "rate_iops": f"rate{self.rate_iops}",
            "random_distribution": "dist" + re.sub(r"[:./]", "_", self.random_distribution),
            "compress": f"compress{self.compress}",
            "latency_target": self._slug_of_search(),
            "fault": f"fault-{self.fault}",
            "touch": f"touch-{self.touch}",
            "during": f"during-{self.during}",
            "target_rate": f"target{format_size(self.target_rate)}",
            "neighbor_iops": f"iops{self.neighbor_iops}",
            "vms": f"vms{self.vms}",
            "runtime": f"run{_show_latency(round((self.runtime or 0) * 1e6))}",
        }
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        return self.slug(
            f"{self.rw}-{format_size(self.bs)}-qd{self.iodepth}",
            *(text for key, text in parts.items() if getattr(self, key) != defaults[key]),
        )

    def _slug_of_search(self) -> str:
        window, percentile = self.latency_window, f"{self.latency_percentile:g}".replace(".", "_")
        return self.slug(
            f"lat{_show_latency(self.latency_target)}-p{percentile}",
            f"win{_show_latency(round(window * 1e6))}" if window != WINDOW_DEFAULT else "",
        ).partition("@")[0]


def _written(workload: Workload, rate_iops: int, seconds: float) -> int:
    """Return the bytes that it writes in this time on a fast device; 0 I/O per second: no limit."""
    parameters = workload.parameters
    iops = rate_iops or ASSUMED_IOPS
    speed = min(iops * int(parameters["bs"]), ASSUMED_BYTES_PER_SECOND)
    mixed = is_mixed(str(parameters["rw"]))
    share = 1 - int(parameters["rwmixread"]) / 100 if mixed else 1.0
    return round(seconds * speed * share)


class Fio(Tool):
    """fio. Stateless."""

    tool = "fio"
    program = "fio"
    options = FioOptions
    open_ended = True

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the length of the window, and the bytes that a fast device would write in it."""
        parameters, seconds = workload.parameters, workload.ramp_seconds + workload.runtime_seconds
        if is_search(workload):
            seconds = search_seconds(parameters)
        if Direction.WRITE not in workload.directions:
            return Estimate(seconds=seconds, bytes_written=0)
        written = _written(workload, int(parameters["rate_iops"]), seconds)
        if writes_once(workload):
            written = min(written, int(parameters["size"]) or size_bytes)
        if workload.during == NEIGHBOR:
            rate, lasts = int(parameters.get("neighbor_iops", 0)), QUIET_SHARE * seconds
            written += _written(workload, rate, lasts)
        return Estimate(seconds=seconds, bytes_written=written * workload.vms)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the job file and the command. Raises ToolFailed if no block fits the device."""
        return measure_job(workload, target)

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in fio's JSON and IOPS log. Raises as `Tool.parse`."""
        return parse(workload, output, logs)


_DIFFERS: Final = re.compile(r"\bverify(: bad | failed )")
"""Messages of fio's verify.c."""


def check_fill(output: str, target: Target) -> None:
    """Check that a fill wrote the whole device, and read blocks back.

    Raises:
        ToolFailed: fio failed, or the written bytes differ from the device's size.
        OutputUnreadable: as `Tool.parse`.
    """
    report = read_report(output)
    written, read = (
        number(job, side, "io_bytes") or 0.0
        for job, side in ((report.jobs[0], "write"), (report.jobs[-1], "read"))
    )
    if written != target.size_bytes:
        raise ToolFailed(
            f"the fill wrote {written:.0f} of {target.size_bytes} bytes",
            cause=report.messages or "the device is smaller than expected",
            next_step="fill the volume again; reads of unwritten blocks bypass the storage",
            evidence=report.messages,
        )
    if not read:
        raise ToolFailed("the fill read no block back", evidence=report.messages)


def fill_error(error: ToolFailed, target: Target) -> ToolFailed:
    """Return the error of a fill, explained if blocks that it read back differ."""
    return fill_lost(target, error.evidence) if _DIFFERS.search(error.evidence) else error


def fill_lost(target: Target, evidence: str = "") -> ToolFailed:
    """Return the error of a disk that does not return what a fill wrote."""
    return ToolFailed(
        f"{target.device} does not return the data that the fill wrote",
        cause="the storage, or a layer on it, drops or redirects writes without an error",
        next_step="check the storage and the kernel log of its host; its earlier results are void",
        evidence=evidence,
    )
