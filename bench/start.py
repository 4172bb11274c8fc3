"""Duration of `pvebench plan` with a large pack, compared with importing the same libraries.

Prints the median of each and their ratio. Target: below 0.5 s for 1,350 cases.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 7
BLOCKS = ("512", "1k", "2k", "4k", "8k", "16k", "32k", "64k")
PACK = """\
pack: large
title: As many cases as a full matrix has
every: 30d
axes:
  bus: [virtio, scsi]
  format: [raw, qcow2]
  cache: [none, directsync, writethrough, writeback, unsafe]
  aio: [io_uring, native, threads]
  iothread: [false, true]
volume: {size: 1G}
workloads:
"""


def write_pack(directory: Path) -> Path:
    """Return the path of a pack with 96 scenarios and 16 workloads."""
    lines = [
        f"  - fio: {{rw: {rw}, bs: {block}, iodepth: 32}}\n"
        for rw in ("randread", "randwrite")
        for block in BLOCKS
    ]
    path = directory / "large.yaml"
    path.write_text(PACK + "".join(lines), "utf-8")
    return path


def median_seconds(command: list[str]) -> float:
    """Return the median wall time of a command over ROUNDS runs, after one warm-up run."""
    times = []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        plan = [sys.executable, "-m", "pvebench", "plan", "--format=json", "--pack"]
        plan.append(str(write_pack(Path(name))))
        done = subprocess.run(plan, check=True, capture_output=True)
        cases = len(json.loads(done.stdout)[0]["cases"])
        ours = median_seconds(plan)
    bare = median_seconds([sys.executable, "-c", "import click, pydantic, ruamel.yaml, sqlalchemy"])
    print(f"plan of {cases} cases: {ours:.3f} s (target: below 0.5 s)")
    print(f"importing its libraries only: {bare:.3f} s; ratio {ours / bare:.2f}")


if __name__ == "__main__":
    main()
