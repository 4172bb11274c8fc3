"""Plausible numbers for a simulated disk. Shapes from published measurements, not from one disk."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Final

from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.workload import Workload

BASE_IOPS: Final = 40_000.0
BASE_BYTES_PER_SECOND: Final = 900e6
SYNC_SECONDS: Final = 0.0006
"""What one sync costs on the simulated disk: an SSD with power loss protection behind a network."""
NOISE: Final = 0.03

_BUS_FACTOR: Final = {
    Bus.VIRTIO: 1.0, Bus.SCSI: 0.93, Bus.SATA: 0.6, Bus.IDE: 0.35, Bus.HOST: 1.1,
}  # fmt: skip
_FORMAT_FACTOR: Final = {Format.RAW: 1.0, Format.QCOW2: 0.85, Format.VMDK: 0.6}
_READ_FACTOR: Final = {
    Cache.NONE: 1.0, Cache.DIRECTSYNC: 0.95, Cache.WRITETHROUGH: 1.6, Cache.WRITEBACK: 1.6,
    Cache.UNSAFE: 1.6,
}  # fmt: skip
_WRITE_FACTOR: Final = {
    Cache.NONE: 0.8, Cache.DIRECTSYNC: 0.05, Cache.WRITETHROUGH: 0.05, Cache.WRITEBACK: 1.1,
    Cache.UNSAFE: 1.3,
}  # fmt: skip


def directions(workload: Workload) -> dict[str, float]:
    """Return direction -> share of the operations."""
    names = [str(direction) for direction in workload.directions]
    if names == ["read", "write"]:
        read = float(workload.parameters.get("rwmixread", 50)) / 100
        return {"read": read, "write": 1 - read}
    return dict.fromkeys(names, 1.0)


def level(disk: Disk, workload: Workload, direction: str) -> float:
    """Return the I/O per second that the simulated disk gives without noise."""
    depth = float(workload.parameters.get("iodepth", 1)) * float(
        workload.parameters.get("numjobs", 1)
    )
    block = float(workload.parameters.get("bs", 4096))
    factor = _BUS_FACTOR[disk.bus] * _FORMAT_FACTOR[disk.format]
    factor *= (_READ_FACTOR if direction == "read" else _WRITE_FACTOR)[disk.cache]
    factor *= 1.05 if disk.iothread else 1.0
    if workload.parameters.get("fsync"):
        # Every write waits for its sync, except where the host throws syncs away.
        return factor / (SYNC_SECONDS if disk.cache is not Cache.UNSAFE else SYNC_SECONDS / 20)
    return min(BASE_IOPS * depth / (depth + 8), BASE_BYTES_PER_SECOND / block) * factor


def flushes_per_second(disk: Disk, workload: Workload) -> float:
    """Return the flushes that QEMU sees: every write is followed by one where syncs are asked."""
    return level(disk, workload, "write") if workload.parameters.get("fsync") else 0.0


def fio_document(
    disk: Disk, workload: Workload, rng: random.Random, *, shift: float = 1.0
) -> dict[str, Any]:
    """Return a document of the form of fio's JSON output for one simulated run."""
    shares = directions(workload)
    job: dict[str, Any] = {
        "jobname": "simulated", "error": 0, "usr_cpu": 8.0, "sys_cpu": 30.0, "ctx": 1000,
    }  # fmt: skip
    for direction, share in shares.items():
        noise = math.exp(rng.gauss(0.0, NOISE))
        iops = level(disk, workload, direction) * share * noise * shift
        job[direction] = _direction(workload, iops, rng)
        if workload.parameters.get("fsync"):
            # A fifth of the time goes into the write itself.
            count = round(iops * workload.runtime_seconds)
            job["sync"] = {"total_ios": count, "lat_ns": _latency(0.8e9 / iops, rng)}
    return {"fio version": "fio-simulated", "jobs": [job]}


def iops_log(document: Mapping[str, Any], width_ms: int, rng: random.Random) -> str:
    """Return a log of the form of fio's IOPS log for a simulated document."""
    job = document["jobs"][0]
    lines = []
    for number, direction in enumerate(("read", "write", "trim")):
        if direction in job:
            for tick in range(1, int(job[direction]["runtime"]) // width_ms + 1):
                iops = job[direction]["iops"] * math.exp(rng.gauss(0.0, NOISE))
                lines.append((tick * width_ms, f"{tick * width_ms}, {iops:.0f}, {number}, 0, 0\n"))
    return "".join(text for _, text in sorted(lines))


def _direction(workload: Workload, iops: float, rng: random.Random) -> dict[str, Any]:
    block = int(workload.parameters.get("bs", 4096))
    count = max(1, round(iops * workload.runtime_seconds))
    depth = float(workload.parameters.get("iodepth", 1))
    depth *= float(workload.parameters.get("numjobs", 1))
    share = 0.2 if workload.parameters.get("fsync") else 1.0
    latency = _latency(share * depth / iops * 1e9, rng, count)
    return {
        "io_bytes": count * block, "bw_bytes": round(iops * block),
        "bw": round(iops * block / 1024),
        "iops": iops, "runtime": round(workload.runtime_seconds * 1000), "total_ios": count,
        "iops_mean": iops, "iops_stddev": iops * NOISE,
        "slat_ns": _scaled(latency, 0.05), "lat_ns": _scaled(latency, 1.05), "clat_ns": latency,
    }  # fmt: skip


def _latency(mean: float, rng: random.Random, count: int = 1) -> dict[str, Any]:
    """Return a block of latencies in ns, as fio spells it, around a mean."""
    tail = math.exp(rng.gauss(0.0, 2 * NOISE))
    percentiles = {"50": 0.9, "90": 1.4, "95": 1.7, "99": 2.6, "99.9": 6.0, "99.99": 15.0}
    return {
        "min": round(mean * 0.2), "max": round(mean * 40 * tail), "mean": mean,
        "stddev": mean * 0.5, "N": count,
        "percentile": {
            f"{float(key):.6f}": round(mean * factor * tail) for key, factor in percentiles.items()
        },
    }  # fmt: skip


def _scaled(latency: Mapping[str, Any], factor: float) -> dict[str, float]:
    """Return the summary of a block of latencies times a factor, without percentiles."""
    return {
        key: value if key == "N" else value * factor
        for key, value in latency.items()
        if key != "percentile"
    }
