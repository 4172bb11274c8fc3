"""Simulated fio: reads a job file and produces the result that fio would write."""

from __future__ import annotations

import configparser
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pvebench.model.definition import DIRECTIONS
from pvebench.workloads.fio_job import is_mixed
from pvebench_lab.simulated.simulated_tools import NOISE, SimulatedDisk, SimulatedOutput

_FILL_BYTES_PER_SECOND: Final = 200e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Content of a job file.

    Attributes:
        shares: direction -> share of the operations.
        depth: operations in flight of all jobs together.
        whole_bytes: size of the device for a job that writes it once; 0 for a timed job.
        interval_ms: width of the intervals in its log.
        log: path of its IOPS log; empty: none.
        target: latency limit in seconds for a job that searches for a depth; 0: no search.
        window: seconds of a search at the resulting depth.
    """

    shares: Mapping[str, float]
    bs: int
    depth: float
    fsync: bool
    ramp: float
    runtime: float
    whole_bytes: int
    interval_ms: int
    log: str
    target: float = 0.0
    window: float = 0.0


def simulate(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    """Return simulated output of fio; None: the command belongs to another tool.

    Like the real tool, it sees only the command and the files of a job.
    """
    if argv[0] != "fio":
        return None
    job = _read(files[argv[-1]].decode("utf-8"))
    document = _document(job, disk)
    if "--output-format=json+" in argv:
        _add_bins(document["jobs"][0], job.shares)
    output = next(word.partition("=")[2] for word in argv if word.startswith("--output="))
    log = {job.log: _iops_log(document, job.interval_ms, disk.rng)} if job.log else {}
    return SimulatedOutput(
        seconds=job.ramp + job.runtime,
        output=output,
        text=json.dumps(document),
        logs=log,
        flushes_per_second=disk.iops("write", bs=job.bs, fsync=True) if job.fsync else 0.0,
    )


def _read(text: str) -> _Job:
    parser = configparser.ConfigParser(interpolation=None, allow_no_value=True, strict=False)
    parser.read_string(text)
    first = parser.sections()[0]  # a fill reads blocks back in a second one
    options = {key: value or "1" for key, value in parser.items(first)}
    size = int(options.get("size", "0"))
    timed = "runtime" in options
    prefix = options.get("write_iops_log", "")
    return _Job(
        shares=_shares(options),
        bs=int(options["bs"]),
        depth=float(options.get("iodepth", "1")) * float(options.get("numjobs", "1")),
        fsync=options.get("fsync", "0") != "0",
        ramp=_seconds(options.get("ramp_time", "0")),
        runtime=_seconds(options["runtime"]) if timed else max(1.0, size / _FILL_BYTES_PER_SECOND),
        whole_bytes=0 if timed else size,
        interval_ms=int(options.get("log_avg_msec", "1000")),
        log=f"{prefix}_iops.log" if prefix else "",
        target=float(options.get("latency_target", "0us").removesuffix("us")) / 1e6,
        window=_seconds(options.get("latency_window", "0")),
    )


def _shares(options: Mapping[str, str]) -> dict[str, float]:
    if not is_mixed(options["rw"]):
        return {str(direction): 1.0 for direction in DIRECTIONS[options["rw"]]}
    reads = float(options["rwmixread"]) / 100
    return {"read": reads, "write": 1 - reads}


def _seconds(text: str) -> float:
    """Parse a time of fio into seconds: a plain number of seconds, or milliseconds with `ms`."""
    return float(text.removesuffix("ms")) * (0.001 if text.endswith("ms") else 1)


def _document(job: _Job, disk: SimulatedDisk) -> dict[str, Any]:
    """Return a document in the format of fio's JSON output."""
    if job.target:
        job = _at_its_depth(job, disk)
    # Tests can see which disk a result belongs to.
    entry: dict[str, Any] = {
        "jobname": disk.name,
        "error": 0,
        "usr_cpu": 8.0,
        "sys_cpu": 30.0,
        "ctx": 1000,
        **({"latency_depth": round(job.depth)} if job.target else {}),
    }
    for direction, share in job.shares.items():
        noise = math.exp(disk.rng.gauss(0.0, NOISE))
        level = disk.iops(direction, bs=job.bs, depth=job.depth, fsync=job.fsync)
        iops = level * share * noise
        entry[direction] = _direction(job, iops, disk.rng)
        if job.fsync:
            # The write itself takes a fifth of the time.
            latency = _latency(0.8e9 / iops, disk.rng)
            entry["sync"] = {"total_ios": round(iops * job.runtime), "lat_ns": latency}
    jobs = [entry]
    if job.whole_bytes:
        entry["write"]["io_bytes"] = job.whole_bytes
        jobs.append({"jobname": disk.name, "error": 0, "read": {"io_bytes": job.bs}})
    return {"fio version": "fio-simulated", "jobs": jobs}


def _at_its_depth(job: _Job, disk: SimulatedDisk) -> _Job:
    """Return the job at the highest depth that meets its latency; at 1 for its whole time if none.

    The 99th percentile of a simulated latency is 2.6 times its mean.
    """
    direction = next(iter(job.shares))
    for depth in range(round(job.depth), 0, -1):
        if 2.8 * depth / disk.iops(direction, bs=job.bs, depth=depth) < job.target:
            return replace(job, depth=depth, runtime=job.window)
    return replace(job, depth=1)


def _direction(job: _Job, iops: float, rng: random.Random) -> dict[str, Any]:
    count = max(1, round(iops * job.runtime))
    share = 0.2 if job.fsync else 1.0
    latency = _latency(share * job.depth / iops * 1e9, rng, count)
    return {
        "io_bytes": count * job.bs,
        "bw_bytes": round(iops * job.bs),
        "bw": round(iops * job.bs / 1024),
        "iops": iops,
        "runtime": round(job.runtime * 1000),
        "total_ios": count,
        "iops_mean": iops,
        "iops_stddev": iops * NOISE,
        "slat_ns": _scaled(latency, 0.05),
        "lat_ns": _scaled(latency, 1.05),
        "clat_ns": latency,
    }


def _latency(mean: float, rng: random.Random, count: int = 1) -> dict[str, Any]:
    """Return a block of latencies in ns, in fio's format, around a mean."""
    tail = math.exp(rng.gauss(0.0, 2 * NOISE))
    percentiles = {"50": 0.9, "90": 1.4, "95": 1.7, "99": 2.6, "99.9": 6.0, "99.99": 15.0}
    return {
        "min": round(mean * 0.2),
        "max": round(mean * 40 * tail),
        "mean": mean,
        "stddev": mean * 0.5,
        "N": count,
        "percentile": {
            f"{float(key):.6f}": round(mean * factor * tail) for key, factor in percentiles.items()
        },
    }


def _add_bins(entry: Mapping[str, Any], directions: Iterable[str]) -> None:
    """Assign every operation to one of the percentiles; fio has up to two thousand bins."""
    for direction in directions:
        latency = entry[direction]["clat_ns"]
        bins: Counter[str] = Counter()
        left = latency["N"]
        for percentile, value in latency["percentile"].items():
            rest = round(latency["N"] * (1 - float(percentile) / 100))
            bins[str(value)] += left - rest
            left = rest
        bins[str(latency["max"])] += left
        latency["bins"] = +bins


def _scaled(latency: Mapping[str, Any], factor: float) -> dict[str, float]:
    """Return the summary of a latency block multiplied by a factor, without percentiles."""
    return {
        key: value if key == "N" else value * factor
        for key, value in latency.items()
        if key != "percentile"
    }


def _iops_log(document: Mapping[str, Any], width_ms: int, rng: random.Random) -> str:
    """Return an IOPS log in fio's format for a document."""
    job = document["jobs"][0]
    lines = []
    for number, direction in enumerate(("read", "write", "trim")):
        if direction in job:
            for tick in range(1, int(job[direction]["runtime"]) // width_ms + 1):
                iops = job[direction]["iops"] * math.exp(rng.gauss(0.0, NOISE))
                lines.append((tick * width_ms, f"{tick * width_ms}, {iops:.0f}, {number}, 0, 0\n"))
    return "".join(text for _, text in sorted(lines))
