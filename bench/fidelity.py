"""Accuracy of pvebench: one fio job in one VM, by hand and by pvebench.

Rounds of hand, pvebench, hand, in shuffled order, until the 95% confidence interval of pvebench /
hand is no wider than that of hand / hand. Prints both; the first must contain 1.

    bench/fidelity.py [MOST_ROUNDS]   (default 40)
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from dataclasses import dataclass

from _lab import BenchLab, lab
from scipy.stats import t

from pvebench.model.run import Run
from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.runner import Runner

LEAST_ROUNDS = 8
SECONDS, RAMP = 4, 1
START_SECONDS = 4.0
"""Extra time for the start and the end of fio under emulation."""
PACK = f"""\
pack: fidelity
title: One job
every: 1d
axes: {{bus: [virtio], format: [raw], cache: [none]}}
volume: {{size: 256M}}
measure: {{ramp: {RAMP}s, runtime: {SECONDS}s}}
workloads:
  - fio: {{rw: randread, bs: 4k, iodepth: 8}}
"""


class Silent:
    """Observer without output."""

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """See `runner.observer`."""

    def finished(self, run: Run) -> None:
        """See `runner.observer`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and its 95% confidence interval, from the logarithms of pairs."""

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
    """Return the interval of the mean of `logs` by Student's t."""
    mean, count = statistics.fmean(logs), len(logs)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(logs) / math.sqrt(count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


class Pair:
    """The same job in the same guest, run in two ways."""

    def __init__(self, made: BenchLab) -> None:
        self._made = made
        self._runner = Runner(made.site, Silent())
        self._case = made.assignment.matrix.cases[0]
        self._conduct = made.assignment.pack.conduct

    def ours(self) -> float:
        """Return the IOPS that pvebench reports."""
        run = self._runner.run(self._case, cycle="", conduct=self._conduct)
        (value,) = (one.value for one in run.samples if one.metric == "iops")
        return value

    def by_hand(self) -> float:
        """Return the IOPS that fio reports when it runs in the guest's shell."""
        scenario, hypervisor = self._case.scenario, self._made.site.hypervisor
        volume, _ = hypervisor.volume(scenario)
        guest = hypervisor.boot(scenario.machine)
        device = hypervisor.attach(volume, scenario.disk).device
        command = [
            "/usr/bin/fio",
            "--name=hand",
            f"--filename={device}",
            "--rw=randread",
            "--bs=4k",
            "--iodepth=8",
            "--ioengine=libaio",
            "--direct=1",
            "--time_based",
            "--thread",
            "--norandommap",
            "--randrepeat=0",
            f"--ramp_time={RAMP}",
            f"--runtime={SECONDS}",
            "--output-format=json",
        ]
        # No agent requests meanwhile: under emulation each one uses the only CPU.
        pid = guest.start(command)
        clock = self._made.site.clock
        clock.sleep(RAMP + SECONDS + START_SECONDS)
        while (done := guest.poll(pid)) is None:
            clock.sleep(1.0)
        return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def main() -> None:
    """Measure until the interval is narrow enough, and print."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    ours: list[float] = []
    hands: list[float] = []
    shuffled = random.Random(1)  # noqa: S311 # an order
    with lab(PACK) as made:
        pair = Pair(made)
        pair.ours()  # boots, fills, warms up
        while True:
            first, second, mine = measured(pair, shuffled)
            ours.append(math.log(mine) - (math.log(first) + math.log(second)) / 2)
            hands.append(math.log(first / second))
            if len(ours) < LEAST_ROUNDS:
                continue
            ratio, among = interval(ours), interval(hands)
            if ratio.width <= among.width or len(ours) >= most:
                break
    print(f"{len(ours)} rounds of {SECONDS} s, 4k random reads at depth 8")
    print(f"pvebench / hand {ratio}")
    print(f"hand / hand     {among}")
    print("contains 1" if ratio.low <= 1 <= ratio.high else "DOES NOT CONTAIN 1")


def measured(pair: Pair, shuffled: random.Random) -> tuple[float, float, float]:
    """Return two results by hand and one of pvebench, measured in shuffled order."""
    order = ["first", "second", "mine"]
    shuffled.shuffle(order)
    found = {name: pair.ours() if name == "mine" else pair.by_hand() for name in order}
    return found["first"], found["second"], found["mine"]


if __name__ == "__main__":
    main()
