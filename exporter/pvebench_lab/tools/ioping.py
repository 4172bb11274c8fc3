"""ioping: one small operation at a time, as a user waiting for the disk experiences it.

Its JSON lists every request, so percentiles are exact; they are only computed from enough
requests. ioping itself excludes the first request as a warm-up. Its rates are requests per time of
requests: with pauses between them, only latencies are results.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, WithJsonSchema, model_validator

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.fields import Size, whole_milliseconds
from pvebench.model import run_metrics
from pvebench.model.consistency import RATE_TOLERANCE, Figures, Spread, contradictions, impossible
from pvebench.model.run import Sample
from pvebench.model.units import MIB, NANOSECONDS, format_size, parse_duration
from pvebench.model.workload import Caveat, Direction, Workload
from pvebench.workloads.tool import (
    Estimate,
    Job,
    Parsed,
    Target,
    Tool,
    ToolOptions,
    each_once,
    refuse,
    shell_job,
)

STATISTICS: Final = ("count", "size", "time", "iops", "bps")
"""Required values of its summary; minimum, mean and others may be missing."""
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
_ASSUMED_LATENCY: Final = 0.005
_BEYOND: Final = 1e300


def _pause(value: Any) -> float:
    seconds = 0.0 if value == 0 and not isinstance(value, bool) else parse_duration(value)
    return whole_milliseconds(seconds)


class IopingOptions(ToolOptions):
    """Options of ioping. The pack's times are not used: `count` defines the number of requests.

    Attributes:
        interval: seconds between two requests.
        size: size of the used area in bytes; 0: the whole disk.
    """

    rw: Literal["read", "write"] = "read"
    bs: Annotated[Size, Field(ge=512, le=64 * MIB)] = 4096
    count: Annotated[StrictInt, Field(ge=3, le=10_000)] = 10
    interval: Annotated[
        float,
        BeforeValidator(_pause),
        WithJsonSchema({"type": ["string", "integer"], "examples": ["500ms", 0]}),
    ] = 1.0
    size: Annotated[Size, Field(le=1 << 50)] = 0
    cached: StrictBool = False

    @model_validator(mode="after")
    def _holds_one_block(self) -> IopingOptions:
        if "size" in self.model_fields_set and self.size < self.bs:
            raise ValueError(f"size: {self.size} bytes is less than one block of {self.bs}")
        return self

    def workload(self, *, ramp_seconds: float, runtime_seconds: float) -> Workload:
        """Return the workload."""
        slug = self.slug(
            "ioping",
            "write" if self.rw == "write" else "",
            format_size(self.bs),
            f"n{self.count}",
            f"i{round(self.interval * 1000)}ms" if self.interval != 1.0 else "",
            f"size{format_size(self.size)}" if self.size else "",
            "cached" if self.cached else "",
        )
        return Workload(
            slug=slug,
            tool=Ioping.tool,
            title=self.heading(slug),
            parameters={
                **self.model_dump(exclude={"title", "interval"}),
                "interval_seconds": self.interval,
                "iodepth": 1,
                "numjobs": 1,
            },
            directions=(Direction(self.rw),),
            caveats=(Caveat.CACHE,) if self.cached else (),
        )


class Ioping(Tool):
    """ioping. Stateless."""

    tool = "ioping"
    program = "ioping"
    options = IopingOptions

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the time of all requests; reads write nothing."""
        parameters = workload.parameters
        count = int(parameters["count"])
        written = count * int(parameters["bs"]) if Direction.WRITE in workload.directions else 0
        each = max(float(parameters["interval_seconds"]), _ASSUMED_LATENCY)
        return Estimate(seconds=count * each, bytes_written=written)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the command. `-WWW` permits writes to the target, which is a test disk."""
        parameters, output = workload.parameters, f"{target.work}/ioping.json"
        pause = f"{round(float(parameters['interval_seconds']) * 1e6)}us"
        argv = ["ioping", "-J", "-c", str(parameters["count"]), "-s", str(parameters["bs"])]
        argv += ["-i", pause, "-C" if parameters["cached"] else "-D"]
        if parameters["size"] or target.offset_bytes:
            size = int(parameters["size"]) or target.size_bytes
            argv += ["-S", str(size), "-o", str(target.offset_bytes)]
        if parameters["rw"] == "write":
            argv.append("-WWW")
        command = f"exec {shlex.join([*argv, target.device])} >{shlex.quote(output)}"
        return shell_job(
            command,
            target,
            output,
            deadline_seconds=2 * self.estimate(workload, target.size_bytes).seconds + 60,
            drop_guest_cache=not parameters["cached"],
        )

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in ioping's JSON. Raises as `Tool.parse`."""
        entries = _entries(output)
        stat = _numbers(entries[-1]["stat"], STATISTICS)
        expected = int(workload.parameters["count"]) - 1
        if stat["count"] < expected:
            raise ToolFailed(
                f"ioping made {stat['count']:.0f} requests instead of {expected}",
                cause="ioping was stopped, or the device stalled",
            )
        times = [
            _numbers(entry["io"], ("time",))["time"] / NANOSECONDS
            for entry in entries
            if isinstance(entry.get("io"), dict) and not entry["io"].get("ignored")
        ]
        refuse(_faults(stat, times), evidence=output[-200:])
        direction = workload.directions[0]
        samples = [*_latencies(direction, stat, times)]
        if not workload.parameters["interval_seconds"]:  # rates and time leave out the pauses
            samples += [
                run_metrics.IOPS.sample(stat["iops"], direction),
                run_metrics.BANDWIDTH.sample(stat["bps"], direction),
                run_metrics.RUNTIME.sample(stat["time"] / NANOSECONDS, direction),
            ]
        return Parsed(samples=tuple(samples))


def _entries(output: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(output, object_pairs_hook=each_once)
    except (ValueError, RecursionError) as error:  # also too many digits or brackets
        raise OutputUnreadable(
            "invalid ioping JSON",
            cause="ioping was stopped while writing, or could not start",
            evidence=output[-200:],
        ) from error
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise OutputUnreadable("ioping's output lists no requests", evidence=output[-200:])
    if "stat" not in entries[-1]:
        raise OutputUnreadable("ioping's output has no statistics", evidence=output[-200:])
    return entries


def _numbers(container: Any, required: Iterable[str]) -> dict[str, float]:
    entries = container if isinstance(container, dict) else {}
    # Negative numbers are reported later; an integer beyond any float is not a number.
    numbers = {
        key: float(value)
        for key, value in entries.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND
    }
    missing = set(required) - numbers.keys()
    if missing:
        raise OutputUnreadable(f"ioping's output has no usable number {', '.join(sorted(missing))}")
    return numbers


def _faults(stat: dict[str, float], times: list[float]) -> Iterator[str]:
    """Yield contradictions: ioping's statistics cover its valid requests (`ioping.c`)."""
    seconds, iops = stat["time"] / NANOSECONDS, stat["iops"]
    if not all(stat[key] > 0 for key in STATISTICS):
        yield f"one of {', '.join(STATISTICS)} is not above 0"
        return
    if len(times) != stat["count"]:
        yield f"count is {stat['count']:.10g}, but {len(times)} requests are listed"
    if abs(sum(times) - seconds) > RATE_TOLERANCE * seconds:
        yield f"the listed requests took {sum(times):.10g} s, not {seconds:.10g}"
    if abs(iops * seconds - stat["count"]) > RATE_TOLERANCE * stat["count"]:
        yield f"{iops:.10g} IOPS for {seconds:.10g} s are not {stat['count']:.10g} requests"
    size, bandwidth = stat["size"], stat["bps"]
    figures = Figures(
        direction="requests", size=size, bandwidth=bandwidth, bandwidth_step=1, seconds=seconds
    )
    yield from (implausibility.text for implausibility in contradictions(figures))
    low, high = stat.get("min", 0.0), stat.get("max", math.inf)
    yield from impossible(
        Spread(
            what="request time in ns",
            minimum=stat.get("min"),
            mean=stat.get("avg"),
            maximum=stat.get("max"),
            stddev=stat.get("mdev"),
            step=1.0,
        )
    )
    mean = stat.get("avg", stat["time"] / stat["count"])
    if abs(mean * stat["count"] - stat["time"]) > RATE_TOLERANCE * stat["time"] + stat["count"]:
        yield f"avg {mean:.10g} is not {stat['time']:.10g} ns by {stat['count']:.10g} requests"
    if not all(low <= round(time * NANOSECONDS) <= high for time in times):
        yield f"a request's time is not between min {low:.10g} and max {high:.10g}"


def _latencies(direction: Direction, stat: dict[str, float], times: list[float]) -> list[Sample]:
    names = {"mean": "avg", "min": "min", "max": "max", "stddev": "mdev"}
    samples = [
        run_metrics.OPERATIONS.sample(stat["count"], direction),
        run_metrics.BYTES.sample(stat["size"], direction),
        *(
            run_metrics.LATENCIES["clat", statistic].sample(stat[key] / NANOSECONDS, direction)
            for statistic, key in names.items()
            if key in stat
        ),
    ]
    for percentile in PERCENTILES:
        # Ten requests have a median, but no meaningful 99th percentile.
        if len(times) * (100 - percentile) >= 100:
            value = _quantile(sorted(times), percentile / 100)
            samples.append(run_metrics.CLAT_PERCENTILE.sample(value, direction, f"{percentile:g}"))
    if len(times) >= 5:
        variation = statistics.stdev(times) / statistics.fmean(times)
        samples.append(run_metrics.CLAT_VARIATION.sample(variation, direction))
    return samples


def _quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
