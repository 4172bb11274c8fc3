"""What the tools beside fio would print: made up from the command that they are started with.

The simulated guest knows of a tool only its command line, as a real one does.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pvebench.drivers.simulated.jobs import START_SECONDS, SimulatedJob
from pvebench.drivers.simulated.numbers import NOISE, level
from pvebench.model.disk import Disk
from pvebench.model.units import KIB, MIB
from pvebench.model.workload import Direction, Workload

_OUTPUT = re.compile(r">(?P<path>\S+/(ioping|dd|hdparm|bonnie|sysbench)\.(json|txt|csv))")
_CLI = re.compile(r"--?(?P<key>[\w-]+)=(?P<value>\S+)")


@dataclass(frozen=True, slots=True)
class Printed:
    """A tool's whole life: what it does, and what it leaves in which file."""

    job: SimulatedJob
    path: str
    text: str


def print_tool(command: str, disk: Disk, rng: random.Random, *, begun: float) -> Printed | None:
    """Return what comes of a shell command; None if it is none of the tools."""
    found = _OUTPUT.search(command)
    if found is None or " prepare " in command:
        return None
    make = {
        "ioping": _ioping, "dd": _dd, "hdparm": _hdparm, "bonnie": _bonnie, "sysbench": _sysbench,
    }[found[2]]  # fmt: skip
    seconds, text, directions = make(command, disk, rng)
    workload = Workload(
        slug="simulated", tool=found[2], title="simulated", parameters={"bs": 4 * KIB},
        directions=directions, ramp_seconds=0.0, runtime_seconds=seconds,
    )  # fmt: skip
    ends = begun + START_SECONDS + seconds
    return Printed(SimulatedJob(workload, begun, ends), found["path"], text)


_Made = tuple[float, str, tuple[Direction, ...]]


def _rate(disk: Disk, rng: random.Random, *, bs: int, direction: str, depth: int = 1) -> float:
    workload = Workload(
        slug="simulated", tool="simulated", title="simulated",
        parameters={"bs": bs, "iodepth": depth}, directions=(Direction(direction),),
        ramp_seconds=0.0, runtime_seconds=1.0,
    )  # fmt: skip
    return level(disk, workload, direction) * (1 + rng.gauss(0.0, NOISE))


def _ioping(command: str, disk: Disk, rng: random.Random) -> _Made:
    words = shlex.split(command.partition(">")[0])
    options = dict(itertools.pairwise(words))
    count, size = int(options["-c"]), int(options["-s"])
    direction = "write" if "-WWW" in words else "read"
    mean = 1e9 / _rate(disk, rng, bs=size, direction=direction)
    times = [round(mean * (1 + abs(rng.gauss(0.0, 0.2)))) for _ in range(count)]
    entries: list[dict[str, Any]] = [
        {"io": {"request": place + 1, "size": size, "time": time, "ignored": place == 0}}
        for place, time in enumerate(times)
    ]
    used, busy = times[1:], sum(times[1:])
    stat = {
        "count": len(used), "size": len(used) * size, "time": busy, "iops": len(used) / busy * 1e9,
        "bps": len(used) * size / busy * 1e9, "min": min(used), "avg": busy / len(used),
        "max": max(used), "mdev": mean * 0.2,
    }  # fmt: skip
    pause = int(options["-i"].removesuffix("us")) / 1e6
    text = json.dumps([*entries, {"stat": stat}])
    return count * pause + busy / 1e9, text, (Direction(direction),)


def _dd(command: str, disk: Disk, rng: random.Random) -> _Made:
    operands = dict(re.findall(r"\b(bs|count)=(\d+)", command))
    bs, count = int(operands["bs"]), int(operands["count"])
    direction = "read" if "of=/dev/null" in command else "write"
    seconds = count / _rate(disk, rng, bs=bs, direction=direction)
    text = (
        f"{count}+0 records in\n{count}+0 records out\n"
        f"{bs * count} bytes copied, {seconds:.6f} s, simulated\n"
    )
    return seconds, text, (Direction(direction),)


def _hdparm(_: str, disk: Disk, rng: random.Random) -> _Made:
    rate = _rate(disk, rng, bs=MIB, direction="read", depth=8)
    text = f" Timing disk reads: {3 * rate:.0f} MB in  3.00 seconds = {rate:.2f} MB/sec\n"
    return 3.0, text, (Direction.READ,)


def _bonnie(_: str, disk: Disk, rng: random.Random) -> _Made:
    read, write = (
        round(_rate(disk, rng, bs=MIB, direction=name, depth=8) * KIB) for name in ("read", "write")
    )
    seeks = _rate(disk, rng, bs=8 * KIB, direction="read", depth=4)
    fields = ["1.98", "2.00a", "pvebench", "1", "0", "64M", "", "8192", "5", "", "", write, 30]
    fields += [write // 2, 30, "", "", read, 30, f"{seeks:.1f}", 30]
    return 10.0, ",".join(map(str, fields)) + "\n", (Direction.READ, Direction.WRITE)


def _sysbench(command: str, disk: Disk, rng: random.Random) -> _Made:
    options: Mapping[str, str] = {found["key"]: found["value"] for found in _CLI.finditer(command)}
    seconds = sum(float(text) for text in re.findall(r"--time=(\d+)", command))
    measured = float(re.findall(r"--time=(\d+)", command)[-1])
    mode, bs = options["file-test-mode"], int(options["file-block-size"])
    shares = {"rndrw": {"read": 0.6, "write": 0.4}}.get(
        mode, {"read" if mode in ("seqrd", "rndrd") else "write": 1.0}
    )
    rates = {
        name: _rate(disk, rng, bs=bs, direction=name) * share for name, share in shares.items()
    }
    both = {"read": 0.0, "write": 0.0, **rates}
    mib = {name: rate * bs / MIB for name, rate in both.items()}
    mean = 1000 / sum(rates.values())
    lines = [
        f"[ {tick}s ] reads: {mib['read']:.2f} MiB/s writes: {mib['write']:.2f} MiB/s fsyncs: 0/s"
        for tick in range(1, int(measured) + 1)
    ]
    lines += [
        f"    reads/s:  {both['read']:.2f}", f"    writes/s:  {both['write']:.2f}",
        "    fsyncs/s:  0.00", f"    total time:  {measured:.4f}s",
        f"    min:  {mean / 2:.2f}", f"    avg:  {mean:.2f}", f"    max:  {mean * 9:.2f}",
        f"    99th percentile:  {mean * 3:.2f}",
    ]  # fmt: skip
    return seconds, "\n".join(lines) + "\n", tuple(Direction(name) for name in shares)
