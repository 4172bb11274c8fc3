"""Simulated tools: what a tool would print, from its command and the speed of a simulated disk."""

from __future__ import annotations

import configparser
import itertools
import json
import math
import random
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pvebench.model.definition import DIRECTIONS
from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.units import KIB, MIB, NANOSECONDS
from pvebench.model.workload import Direction
from pvebench.workloads.fio_job import is_mixed
from pvebench_lab.tools.sysbench import MILLISECONDS, MIXED_SHARES, MODES

# --- plausible numbers of a simulated disk, with ratios from published measurements

BASE_IOPS: Final = 40_000.0
BASE_BYTES_PER_SECOND: Final = 900e6
SYNC_SECONDS: Final = 0.0006
"""Duration of one sync: as for an SSD with power loss protection behind a network."""
NOISE: Final = 0.03

BUS_SPEED: Final = {
    Bus.VIRTIO: (1.0, 15e-6),
    Bus.SCSI: (0.93, 18e-6),
    Bus.SATA: (0.6, 42e-6),
    Bus.IDE: (0.35, 55e-6),
    Bus.HOST: (1.1, 10e-6),
    Bus.LXC: (1.05, 10e-6),
}
"""Bus -> factor of the IOPS, and the host's CPU seconds per I/O: older controllers cost more."""
_FORMAT_FACTOR: Final = {Format.RAW: 1.0, Format.QCOW2: 0.85, Format.VMDK: 0.6}
_CACHE_FACTORS: Final = {
    Cache.NONE: (1.0, 0.8),
    Cache.DIRECTSYNC: (0.95, 0.05),
    Cache.WRITETHROUGH: (1.6, 0.05),
    Cache.WRITEBACK: (1.6, 1.1),
    Cache.UNSAFE: (1.6, 1.3),
}
"""Cache mode -> factors of reads and of writes."""


@dataclass(slots=True, kw_only=True)
class SimulatedDisk:
    """Disk with the speed of one with these options.

    Attributes:
        name: distinguishes it from others.
        rng: source of all variation.
        shift: factor of all rates; the effect of an upgrade.
    """

    name: str
    disk: Disk
    rng: random.Random
    shift: float = 1.0

    def iops(self, direction: str, *, bs: int, depth: float = 1, fsync: bool = False) -> float:
        """Return its I/O per second, without noise."""
        disk = self.disk
        factor = BUS_SPEED[disk.bus][0] * _FORMAT_FACTOR[disk.format]
        factor *= _CACHE_FACTORS[disk.cache][direction != "read"]
        factor *= 1.05 if disk.iothread else 1.0
        factor *= self.shift
        factor /= 1 + 0.02 * disk.chain
        if fsync:
            # Every write waits for its sync, unless the host ignores syncs.
            return factor / (SYNC_SECONDS if disk.cache is not Cache.UNSAFE else SYNC_SECONDS / 20)
        return min(BASE_IOPS * depth / (depth + 8), BASE_BYTES_PER_SECOND / bs) * factor

    def rate(self, direction: str, *, bs: int, depth: float = 1) -> float:
        """Return its I/O per second, with noise."""
        return self.iops(direction, bs=bs, depth=depth) * (1 + self.rng.gauss(0.0, NOISE))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOutput:
    """Result of a simulated tool run.

    Attributes:
        seconds: from the tool's first I/O to its end.
        output: path of its result; empty: none.
        text: content of its result.
        logs: path -> text of its further files.
        flushes_per_second: flushes that QEMU would receive.
        moves_data: whether it does any I/O.
    """

    seconds: float
    output: str = ""
    text: str = ""
    logs: Mapping[str, str] = field(default_factory=dict)
    flushes_per_second: float = 0.0
    moves_data: bool = True


def simulate(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    """Return what a tool would print; None: the command does nothing that takes time.

    Like the real tool, it sees only the command and the files of a job.
    """
    if argv[0] == "fio":
        return _fio(argv, files, disk)
    if argv[0] == "/bin/sleep":
        return SimulatedOutput(seconds=float(argv[1]), moves_data=False)
    for name, tool in TOOLS.items():
        if match := re.search(rf">(\S+/{re.escape(name)})\b", argv[-1]):
            return tool(argv[-1], match[1], disk)
    return None


def _ioping(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput:
    words = shlex.split(command.partition(">")[0])
    options = dict(itertools.pairwise(words))
    count, size = int(options["-c"]), int(options["-s"])
    mean = NANOSECONDS / disk.rate("write" if "-WWW" in words else "read", bs=size)
    times = [round(mean * (1 + abs(disk.rng.gauss(0.0, 0.2)))) for _ in range(count)]
    entries: list[dict[str, Any]] = [
        {"io": {"request": place + 1, "size": size, "time": time, "ignored": place == 0}}
        for place, time in enumerate(times)
    ]
    used, busy = times[1:], sum(times[1:])
    stat = {
        "count": len(used),
        "size": len(used) * size,
        "time": busy,
        "iops": len(used) / busy * NANOSECONDS,
        "bps": len(used) * size / busy * NANOSECONDS,
        "min": min(used),
        "avg": busy / len(used),
        "max": max(used),
        "mdev": statistics.pstdev(used),
    }
    pauses = count * int(options["-i"].removesuffix("us")) / 1e6
    text = json.dumps([*entries, {"stat": stat}])
    return SimulatedOutput(seconds=pauses + busy / NANOSECONDS, output=output, text=text)


def _sysbench(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput | None:
    if " prepare " in command:
        return None
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
    return SimulatedOutput(seconds=sum(times), output=output, text="\n".join(lines) + "\n")


def _bonnie(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput:
    del command
    read, write = (round(disk.rate(name, bs=MIB, depth=8) * KIB) for name in ("read", "write"))
    seeks = disk.rate("read", bs=8 * KIB, depth=4)
    fields = ["1.98", "2.00a", "pvebench", "1", "0", "64M", "", "8192", "5", "", "", write, 30]
    fields += [write // 2, 30, "", "", read, 30, f"{seeks:.1f}", 30]
    return SimulatedOutput(seconds=10.0, output=output, text=",".join(map(str, fields)) + "\n")


def _dd(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput:
    operands = dict(re.findall(r"\b(bs|count)=(\d+)", command))
    bs, count = int(operands["bs"]), int(operands["count"])
    seconds = count / disk.rate("read" if "of=/dev/null" in command else "write", bs=bs)
    text = (
        f"{count}+0 records in\n{count}+0 records out\n"
        f"{bs * count} bytes copied, {seconds:.6f} s, simulated\n"
    )
    return SimulatedOutput(seconds=seconds, output=output, text=text)


def _hdparm(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput:
    del command
    rate = disk.rate("read", bs=MIB, depth=8)
    text = f" Timing disk reads: {3 * rate:.0f} MB in  3.00 seconds = {rate:.2f} MB/sec\n"
    return SimulatedOutput(seconds=3.0, output=output, text=text)


TOOLS: Final[dict[str, Callable[[str, str, SimulatedDisk], SimulatedOutput | None]]] = {
    "ioping.json": _ioping,
    "sysbench.txt": _sysbench,
    "bonnie.csv": _bonnie,
    "dd.txt": _dd,
    "hdparm.txt": _hdparm,
}
"""Name of a tool's output -> what it would print, from its shell command and the output's path."""


# --- fio: reads a job file and produces the result that fio would write

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


def _fio(argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk) -> SimulatedOutput:
    job = _read_job(files[argv[-1]].decode("utf-8"))
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


def _read_job(text: str) -> _Job:
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
