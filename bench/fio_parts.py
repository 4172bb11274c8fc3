"""Cost of each part of pvebench's fio job in the guest: logs and percentiles.

Runs the job with one part at a time, in shuffled order, in a VM whose clock counts its instructions
(QEMU's -icount), on a drive that does nothing (null-co). Prints IOPS with the part / IOPS of the
plain job as medians with 95% confidence intervals; other load on this machine matters little.

    bench/fio_parts.py [ROUNDS]   (default 10, 2 results per round)
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import defaultdict

from _lab import counted_instructions, lab
from fidelity import JOBS, MIN_ROUNDS, PACK, RAMP, interval, listed

from pvebench.model.guest import Guest
from pvebench.workloads.fio_job import PERCENTILES

WORK = "/run/pvebench"
LOGS = ("iops", "bw", "lat")
PERCENTILE_LINES = [
    f"percentile_list={PERCENTILES}",
    *(f"{kind}_percentiles=1" for kind in ("slat", "clat", "lat")),
]
SECONDS = 2
REPEATS = 2


def log_lines(number: int, *kinds: str) -> list[str]:
    """Return the options of some of fio's logs."""
    return ["log_avg_msec=500", *(f"write_{kind}_log={WORK}/log{number}" for kind in kinds)]


def parts(number: int) -> dict[str, list[str]]:
    """Return each part with its options; `plain` twice, to show the noise."""
    return {
        "plain": [],
        "plain again": [],
        **{f"{kind} log": log_lines(number, kind) for kind in LOGS},
        "percentiles": PERCENTILE_LINES,
        "iops log, percentiles": log_lines(number, "iops") + PERCENTILE_LINES,
        "all logs, percentiles": log_lines(number, *LOGS) + PERCENTILE_LINES,
    }


def job_file(name: str, order: list[str]) -> str:
    """Return a job file that runs the parts one after the other."""
    options = {
        **JOBS[name],
        "filename": "/dev/vda",
        "ioengine": "libaio",
        "direct": 1,
        "time_based": 1,
        "thread": 1,
        "norandommap": 1,
        "randrepeat": 0,
        "runtime": SECONDS,
        "ramp_time": "200ms",
    } | ({"refill_buffers": 1} if name == "randwrite" else {})
    lines = ["[global]", *(f"{key}={value}" for key, value in options.items())]
    for number, part in enumerate(order):
        lines += [f"[{part}]", "stonewall", *parts(number)[part]]
    return "\n".join(lines)


def measured(guest: Guest, name: str, shuffled: random.Random) -> list[dict[str, float]]:
    """Return the IOPS of each part, once per repeat."""
    order: list[str] = []
    for _ in range(REPEATS):
        order += shuffled.sample(list(parts(0)), len(parts(0)))
    guest.run(["/bin/sh", "-c", f"rm -f {WORK}/log*; mkdir -p {WORK}"])
    guest.write_file(f"{WORK}/parts.fio", job_file(name, order).encode())
    arguments = ["--output-format=json", f"--output={WORK}/parts.json", f"{WORK}/parts.fio"]
    done = guest.run(["/usr/bin/fio", *arguments], timeout=600)
    if done.exit_code:
        sys.exit(done.stderr.decode())
    jobs = json.loads(guest.read_file(f"{WORK}/parts.json"))["jobs"]
    direction = "write" if name == "randwrite" else "read"
    found = [(job["jobname"], job[direction]["iops"]) for job in jobs]
    return [dict(found[at : at + len(parts(0))]) for at in range(0, len(found), len(parts(0)))]


def main() -> None:
    """Measure every job with every part, and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    shuffled = random.Random(1)  # noqa: S311 # an order
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    workloads = f"  - fio: {{{listed(JOBS['randread'])}}}"
    pack = PACK.format(ramp=RAMP, seconds=SECONDS, workloads=workloads)
    with counted_instructions(), lab(pack) as made:
        hypervisor = made.site.hypervisor
        guest = hypervisor.boot(made.assignment.matrix.cases[0].scenario.machine)
        qmp = hypervisor._vm._qemu.qmp  # noqa: SLF001 # a drive without a volume
        qmp.execute("blockdev-add", {"driver": "null-co", "node-name": "null", "size": 1 << 28})
        qmp.execute("device_add", {"driver": "virtio-blk-pci", "drive": "null"})
        for _ in range(rounds):
            for name in JOBS:
                for found in measured(guest, name, shuffled):
                    plain = (math.log(found["plain"]) + math.log(found["plain again"])) / 2
                    for part, iops in found.items():
                        logs[name, part].append(math.log(iops) - plain)
    for (name, part), values in logs.items():
        if len(values) >= MIN_ROUNDS:
            print(f"{name:10} {part:22} {interval(values)}")


if __name__ == "__main__":
    main()
