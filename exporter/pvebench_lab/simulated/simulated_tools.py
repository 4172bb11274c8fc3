"""Simulated tools: what a tool would print, from its command and the speed of a simulated disk."""

from __future__ import annotations

import itertools
import json
import random
import re
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pvebench.model.disk import Bus, Cache, Disk, Format
from pvebench.model.units import KIB, MIB, NANOSECONDS
from pvebench.model.workload import Direction
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


def written_to(argv: list[str], name: str) -> str:
    """Return the path of the file `name` that a shell command redirects to; empty: none."""
    match = re.search(rf">(\S+/{re.escape(name)})\b", argv[-1])
    return match[1] if match else ""


def _idle(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    del files, disk
    is_sleep = argv[0] == "/bin/sleep"
    return SimulatedOutput(seconds=float(argv[1]), moves_data=False) if is_sleep else None


def _ioping(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    del files
    output = written_to(argv, "ioping.json")
    return _ioping_output(argv[-1], output, disk) if output else None


def _ioping_output(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput:
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


def _sysbench(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    del files
    output = written_to(argv, "sysbench.txt")
    return (
        _sysbench_output(argv[-1], output, disk) if output and " prepare " not in argv[-1] else None
    )


def _sysbench_output(command: str, output: str, disk: SimulatedDisk) -> SimulatedOutput:
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


def _bonnie(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    del files
    output = written_to(argv, "bonnie.csv")
    if not output:
        return None
    read, write = (round(disk.rate(name, bs=MIB, depth=8) * KIB) for name in ("read", "write"))
    seeks = disk.rate("read", bs=8 * KIB, depth=4)
    fields = ["1.98", "2.00a", "pvebench", "1", "0", "64M", "", "8192", "5", "", "", write, 30]
    fields += [write // 2, 30, "", "", read, 30, f"{seeks:.1f}", 30]
    return SimulatedOutput(seconds=10.0, output=output, text=",".join(map(str, fields)) + "\n")


def _dd(argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk) -> SimulatedOutput | None:
    del files
    command, output = argv[-1], written_to(argv, "dd.txt")
    if not output:
        return None
    operands = dict(re.findall(r"\b(bs|count)=(\d+)", command))
    bs, count = int(operands["bs"]), int(operands["count"])
    seconds = count / disk.rate("read" if "of=/dev/null" in command else "write", bs=bs)
    text = (
        f"{count}+0 records in\n{count}+0 records out\n"
        f"{bs * count} bytes copied, {seconds:.6f} s, simulated\n"
    )
    return SimulatedOutput(seconds=seconds, output=output, text=text)


def _hdparm(
    argv: list[str], files: Mapping[str, bytes], disk: SimulatedDisk
) -> SimulatedOutput | None:
    del files
    output = written_to(argv, "hdparm.txt")
    if not output:
        return None
    rate = disk.rate("read", bs=MIB, depth=8)
    text = f" Timing disk reads: {3 * rate:.0f} MB in  3.00 seconds = {rate:.2f} MB/sec\n"
    return SimulatedOutput(seconds=3.0, output=output, text=text)


TOOLS: Final = (_ioping, _sysbench, _bonnie, _dd, _hdparm, _idle)
"""Functions that simulate a command; None: it belongs to another tool."""
