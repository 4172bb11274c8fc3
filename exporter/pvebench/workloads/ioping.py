"""ioping: one small operation at a time, as a user waiting for the disk feels it.

Its JSON has every single request, so percentiles are exact; one is given only where enough
requests stand behind it. The first request is a warm-up and not counted, by ioping itself.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB, format_size
from pvebench.model.workload import Caveat, Direction, Workload
from pvebench.workloads.base import Estimate, Job, Parsed, Target
from pvebench.workloads.given import Given, slug

OPTIONS: Final = ("rw", "bs", "count", "interval", "size", "cached")
STATISTICS: Final = ("count", "size", "time", "iops", "bps")
"""What its summary must hold; minimum, mean and the like may be missing."""
NANOSECONDS: Final = 1e9
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
_ASSUMED_LATENCY: Final = 0.005


class Ioping:
    """The room of ioping, a `Room`. It has no state."""

    tool = "ioping"
    open_ended = False
    fresh_boot = False

    def resolve(
        self, options: Mapping[str, Any], *, ramp_seconds: float, runtime_seconds: float
    ) -> Workload:
        """Return the workload. The pack's times do not matter: a count of requests is measured."""
        given = Given(self.tool, options, OPTIONS)
        rw = given.one_of("rw", ("read", "write"), default="read")
        bs = given.size("bs", default=4096, low=512, high=64 * MIB)
        count = given.whole("count", default=10, low=3, high=10_000)
        interval = given.seconds("interval", default=1.0)
        size = given.size("size", default=0, low=bs, high=1 << 50)
        cached = given.yes("cached", default=False)
        name = slug(
            "ioping", "write" if rw == "write" else "", format_size(bs), f"n{count}",
            f"i{round(interval * 1000)}ms" if interval != 1.0 else "",
            f"size{format_size(size)}" if size else "", "cached" if cached else "",
            version=given.version(),
        )  # fmt: skip
        return Workload(
            slug=name, tool=self.tool, title=given.title(name),
            parameters={
                "rw": rw, "bs": bs, "iodepth": 1, "numjobs": 1, "count": count,
                "interval_seconds": interval, "size": size, "cached": cached,
                "version": given.version(),
            },
            directions=(Direction(rw),), ramp_seconds=0.0, runtime_seconds=0.0,
            caveats=(Caveat.CACHE,) if cached else (),
        )  # fmt: skip

    def estimate(self, workload: Workload, size_bytes: int) -> Estimate:
        """Return the time of all requests; only writes write."""
        parameters = workload.parameters
        count = int(parameters["count"])
        written = count * int(parameters["bs"]) if Direction.WRITE in workload.directions else 0
        each = max(float(parameters["interval_seconds"]), _ASSUMED_LATENCY)
        return Estimate(seconds=count * each, bytes_written=written)

    def job(self, workload: Workload, target: Target) -> Job:
        """Return the command. Three W, because the target is ours to write to."""
        parameters, output = workload.parameters, f"{target.work}/ioping.json"
        argv = [
            "ioping", "-J", "-c", str(parameters["count"]), "-s", str(parameters["bs"]),
            "-i", f"{round(float(parameters['interval_seconds']) * 1e6)}us",
            "-C" if parameters["cached"] else "-D",
        ]  # fmt: skip
        if parameters["size"] or target.offset_bytes:
            size = int(parameters["size"]) or target.size_bytes
            argv += ["-S", str(min(size, target.size_bytes)), "-o", str(target.offset_bytes)]
        if parameters["rw"] == "write":
            argv.append("-WWW")
        command = f"exec {shlex.join([*argv, target.device])} >{shlex.quote(output)}"
        return Job(
            argv=["/bin/sh", "-c", command], files={output: b""}, output=output, work=target.work,
            deadline_seconds=2 * self.estimate(workload, target.size_bytes).seconds + 60,
            timed=False, drop_guest_cache=not parameters["cached"],
        )  # fmt: skip

    def parse(self, workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
        """Return the samples in ioping's JSON. Raises as `Room.parse`."""
        entries = _entries(output)
        stat = _numbers(entries[-1]["stat"], STATISTICS)
        wanted = int(workload.parameters["count"]) - 1
        if stat["count"] < wanted:
            raise ToolFailed(
                f"ioping made {stat['count']:.0f} requests instead of {wanted}",
                cause="it was stopped, or the device stalled",
            )
        times = [
            _numbers(entry["io"], ("time",))["time"] / NANOSECONDS
            for entry in entries
            if "io" in entry and not entry["io"].get("ignored")
        ]
        direction = workload.directions[0]
        return Parsed(samples=tuple(_samples(direction, stat, times)))


def _entries(output: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(output)
    except ValueError as error:
        raise OutputUnreadable(
            "ioping's JSON breaks off or is damaged",
            cause="it was stopped while writing, or could not start",
            evidence=output[-200:],
        ) from error
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise OutputUnreadable("ioping's output lists nothing", evidence=output[-200:])
    if "stat" not in entries[-1]:
        raise OutputUnreadable("ioping's output has no statistics", evidence=output[-200:])
    return entries


def _numbers(container: Any, wanted: Iterable[str]) -> dict[str, float]:
    found = {
        key: float(value)
        for key, value in (container.items() if isinstance(container, dict) else ())
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    missing = set(wanted) - found.keys()
    if missing:
        raise OutputUnreadable(f"ioping's output has no usable number {', '.join(sorted(missing))}")
    return found


def _samples(direction: Direction, stat: dict[str, float], times: list[float]) -> list[Sample]:
    seconds = stat["time"] / NANOSECONDS
    figures = {"mean": "avg", "min": "min", "max": "max", "stddev": "mdev"}
    samples = [
        Sample("iops", direction, stat["iops"], Unit.IOPS),
        Sample("bandwidth", direction, stat["bps"], Unit.BYTES_PER_SECOND),
        Sample("operations", direction, stat["count"], Unit.OPERATIONS),
        Sample("bytes", direction, stat["size"], Unit.BYTES),
        Sample("runtime", direction, seconds, Unit.SECONDS),
        *(
            Sample(f"clat_{name}", direction, stat[key] / NANOSECONDS, Unit.SECONDS)
            for name, key in figures.items()
            if key in stat
        ),
    ]
    for percentile in PERCENTILES:
        # Ten requests have a median, but nothing that deserves the name of a 99th percentile.
        if len(times) * (100 - percentile) >= 100:
            value = _quantile(sorted(times), percentile / 100)
            samples.append(
                Sample("clat_percentile", direction, value, Unit.SECONDS, f"{percentile:g}")
            )
    if len(times) >= 5:
        variation = statistics.stdev(times) / statistics.fmean(times)
        samples.append(Sample("clat_variation", direction, variation, Unit.RATIO))
    return samples


def _quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
