"""Accuracy of pvebench: the same fio job by hand and by pvebench, in VM, container and on the host.

Each round measures by hand, by pvebench and by hand again, in shuffled order, one job after the
other. Prints median ratios with 95% confidence intervals; pvebench / hand must contain 1 and be no
wider than hand / hand.

    bench/fidelity.py [--rounds N] [--seconds N] [--places lab …] [--jobs randread …] [--icount]

`--icount` is for a busy machine: the clock of the VM counts its instructions, so its IOPS are those
of a slow CPU, whatever else this machine does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field

from _lab import BenchLab, counted_instructions, lab
from scipy.stats import binom

from pvebench.model.disk import Bus
from pvebench.runner.runner import Runner

RAMP = 1
MIN_ROUNDS = 6
"""Minimum for a 95% confidence interval of a median."""
PLACES = {"lab": Bus.VIRTIO, "container": Bus.LXC, "host": Bus.HOST}
JOBS = {
    "randread": {"rw": "randread", "bs": "4k", "iodepth": "8"},
    "randwrite": {"rw": "randwrite", "bs": "4k", "iodepth": "32"},
    "read": {"rw": "read", "bs": "1M", "iodepth": "8"},
}
START_SECONDS = {"lab": 3.0, "container": 0.5, "host": 0.5}
"""Extra time for the start and the end of fio, which takes seconds under emulation."""
PACK = """\
pack: fidelity
title: The same job by hand
every: 1d
axes: {{bus: [virtio], format: [raw], cache: [none]}}
host: true
lxc: true
volume: {{size: 256M}}
measure: {{ramp: {ramp}s, runtime: {seconds}s}}
workloads:
{workloads}
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median ratio and its 95% confidence interval."""

    middle: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Return its width, as a logarithm."""
        return math.log(self.high / self.low)

    def __str__(self) -> str:
        return f"{self.middle:.4f} ({self.low:.4f} to {self.high:.4f})"


def interval(logs: list[float]) -> Interval:
    """Return the median of `logs` with its interval from the order of the values (sign test).

    On a busy machine single results are off by a factor of two, which would dominate a mean.
    """
    count, values = len(logs), sorted(logs)
    rank = int(binom.ppf(0.025, count, 0.5))
    low, high = values[rank - 1], values[count - rank]
    return Interval(math.exp(statistics.median(values)), math.exp(low), math.exp(high))


@dataclass(slots=True)
class Series:
    """Logarithms of the ratios of one job in one place, one per round."""

    ours: list[float] = field(default_factory=list)
    hands: list[float] = field(default_factory=list)

    def add(self, first: float, second: float, mine: float) -> None:
        """Add the results of a round: two by hand, one of pvebench."""
        self.ours.append(math.log(mine) - (math.log(first) + math.log(second)) / 2)
        self.hands.append(math.log(first / second))

    def __str__(self) -> str:
        ratio, among = interval(self.ours), interval(self.hands)
        contains = "contains 1" if ratio.low <= 1 <= ratio.high else "DOES NOT CONTAIN 1"
        wider = "no wider" if ratio.width <= among.width else "WIDER"
        rounds = len(self.ours)
        return f"{rounds} rounds: pvebench / hand {ratio}, hand / hand {among}; {contains}, {wider}"


class Pair:
    """One job in one place, run in two ways on the same attached disk."""

    def __init__(self, made: BenchLab, runner: Runner, place: str, job: str, seconds: int) -> None:
        self._made, self._runner, self._place, self._seconds = made, runner, place, seconds
        self._options = JOBS[job]
        self.name = f"{place} {job}"
        (self._case,) = (
            case
            for case in made.assignment.matrix.cases
            if case.scenario.disk.bus is PLACES[place] and case.workload.parameters["rw"] == job
        )

    def ours(self) -> float:
        """Return the IOPS that pvebench reports."""
        conduct = self._made.assignment.pack.conduct
        run = self._runner.run(self._case, cycle="", conduct=conduct)
        values = [one.value for one in run.samples if one.metric == "iops"]
        if len(values) != 1:
            sys.exit(f"{self.name}: {run.outcome}: {run.reason}")
        return values[0]

    def by_hand(self) -> float:
        """Return the IOPS that fio reports when it runs by hand."""
        ready = self._runner._setup.ready(  # noqa: SLF001 # the same attachment as pvebench's
            self._case.scenario, lambda _phase, _seconds=0.0: None, {}, fresh=False
        )
        writes = ["--refill_buffers"] * (self._options["rw"] == "randwrite")
        scattered = ["--norandommap", "--randrepeat=0"] * self._options["rw"].startswith("rand")
        command = [
            "/usr/bin/fio",
            "--name=hand",
            f"--filename={ready.target.device}",
            f"--size={ready.target.size_bytes}",
            *(f"--{name}={value}" for name, value in self._options.items()),
            "--ioengine=libaio",
            "--direct=1",
            "--time_based",
            "--thread",
            *scattered,
            *writes,
            f"--ramp_time={RAMP}",
            f"--runtime={self._seconds}",
            "--output-format=json",
        ]
        # No agent requests meanwhile: under emulation each one uses the only CPU.
        pid = ready.guest.start(command)
        clock = self._made.site.clock
        clock.sleep(RAMP + self._seconds + START_SECONDS[self._place])
        while (done := ready.guest.poll(pid)) is None:
            clock.sleep(0.5)
        direction = "write" if writes else "read"
        return float(json.loads(done.stdout)["jobs"][0][direction]["iops"])

    def measured(self, shuffled: random.Random) -> tuple[float, float, float]:
        """Return two results by hand and one of pvebench, measured in shuffled order."""
        order = ["first", "second", "mine"]
        shuffled.shuffle(order)
        found = {name: self.ours() if name == "mine" else self.by_hand() for name in order}
        return found["first"], found["second"], found["mine"]


def main() -> None:
    """Measure every job in every place, and print."""
    options = read_options()
    workloads = "\n".join(f"  - fio: {{{listed(JOBS[job])}}}" for job in options.jobs)
    pack = PACK.format(ramp=RAMP, seconds=options.seconds, workloads=workloads)
    shuffled = random.Random(1)  # noqa: S311 # an order
    with counted_instructions() if options.icount else nullcontext(), lab(pack) as made:
        runner = Runner(made.site, lambda *_: None)
        for place in options.places:
            pairs = [Pair(made, runner, place, job, options.seconds) for job in options.jobs]
            found = {pair.name: Series() for pair in pairs}
            for pair in pairs:
                pair.ours()  # boots, fills, warms up
            for number in range(options.rounds):
                for pair in pairs:
                    found[pair.name].add(*pair.measured(shuffled))
                    if number + 1 >= MIN_ROUNDS:
                        print(f"{pair.name}: {found[pair.name]}", flush=True)


def listed(options: dict[str, str]) -> str:
    """Return options as the inside of a YAML map."""
    return ", ".join(f"{name}: {value}" for name, value in options.items())


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--icount", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
