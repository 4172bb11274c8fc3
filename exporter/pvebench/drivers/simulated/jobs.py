"""Reading fio job files back: the simulated guest knows of a job only what fio would know."""

from __future__ import annotations

import configparser
from dataclasses import dataclass
from typing import Final

from pvebench.model.workload import Direction, Workload

START_SECONDS: Final = 0.3
_FILL_BYTES_PER_SECOND: Final = 200e6
_OPERATIONS_PER_SECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A running job: what it does, and when it ends in simulated seconds.

    Attributes:
        whole_bytes: of a job that writes a device once, its size; 0 for a timed job.
        interval_ms: width of the intervals in its logs.
    """

    workload: Workload
    begun: float
    ends: float
    whole_bytes: int = 0
    interval_ms: int = 1000

    def operations(self, now: float, *, per_second: float = _OPERATIONS_PER_SECOND) -> int:
        """Return the operations so far; none before the tool has started up."""
        active = min(now, self.ends) - self.begun - START_SECONDS
        return max(0, round(active * per_second))


def read_job(text: str, *, begun: float) -> SimulatedJob:
    """Return the job in a fio job file."""
    parser = configparser.ConfigParser(interpolation=None, allow_no_value=True, strict=False)
    parser.read_string(text)
    options: dict[str, str] = {}
    for section in parser.sections():
        options |= {key: value or "1" for key, value in parser.items(section)}
    timed = options.get("time_based", "0") == "1"
    ramp = seconds(options.get("ramp_time", "0"))
    runtime = seconds(options.get("runtime", "0"))
    if not timed:
        runtime = max(1.0, int(options.get("size", "0")) / _FILL_BYTES_PER_SECOND)
    workload = Workload(
        slug="simulated", tool="fio", title="simulated",
        parameters={
            "rw": options["rw"],
            "bs": int(options["bs"]),
            "iodepth": int(options.get("iodepth", "1")),
            "numjobs": int(options.get("numjobs", "1")),
            "rwmixread": int(options.get("rwmixread", "50")),
            "fsync": int(options.get("fsync", "0")),
        },
        directions=_directions(options["rw"]), ramp_seconds=ramp, runtime_seconds=runtime,
    )  # fmt: skip
    whole = 0 if timed else int(options["size"])
    return SimulatedJob(
        workload=workload,
        begun=begun,
        ends=begun + START_SECONDS + ramp + runtime,
        whole_bytes=whole,
        interval_ms=int(options.get("log_avg_msec", "1000")),
    )


def seconds(text: str) -> float:
    """Return fio's spelling of a time: a plain number of seconds, or with `ms`, `us`, `s`."""
    for suffix, factor in (("ms", 0.001), ("us", 0.000001), ("s", 1.0)):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def _directions(rw: str) -> tuple[Direction, ...]:
    if rw in ("rw", "randrw", "readwrite"):
        return (Direction.READ, Direction.WRITE)
    return (Direction(rw.removeprefix("rand")),)
