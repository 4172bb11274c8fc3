"""Wall time of the 20-configuration matrix by activity, compared with a boot per configuration.

Prints seconds and shares of measuring, ramp, settling, switching, filling and the rest, first as
pvebench does it, then with the VM powered off before every configuration, which is how it is
done by hand. Targets: switching and the rest below 5%, and at least 5 times less than by hand.

    bench/duty.py [NAIVE_CONFIGURATIONS]   (default 20: all of them)
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from _lab import BenchLab, lab

from pvebench.model.status import Phase
from pvebench.model.workload import Case
from pvebench.runner.runner import Runner
from pvebench.scheduler.plan import make_plan

RAMP_SECONDS = 2.0
PACK = f"""\
pack: duty
title: Twenty configurations, ten seconds a workload
every: 1d
axes:
  bus: [scsi, virtio]
  format: [raw, qcow2]
  cache: [none, directsync, writethrough, writeback, unsafe]
volume: {{size: 256M}}
measure: {{ramp: {RAMP_SECONDS:.0f}s, runtime: 10s}}
workloads:
  - fio: {{rw: randread, bs: 4k, iodepth: 32}}
  - fio: {{rw: randwrite, bs: 4k, iodepth: 32}}
"""
NAMES = {
    Phase.BOOT: "switching",
    Phase.ATTACH: "switching",
    Phase.FILL: "filling",
    Phase.SETTLE: "settling",
    Phase.RAMP: "ramp",
    Phase.MEASURE: "measuring",
    Phase.COLLECT: "collecting",
}
KINDS = (
    "measuring",
    "ramp",
    "starting the tool",
    "settling",
    "collecting",
    "filling",
    "switching",
    "the rest",
)
OVERHEAD = ("switching", "the rest")


class Ledger:
    """Assigns every second of wall time to an activity."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._name, self._since = "the rest", time.perf_counter()

    def enter(self, name: str) -> None:
        """Add the elapsed time to the current activity, and start `name`."""
        now = time.perf_counter()
        spent = now - self._since
        if self._name == "ramp":  # the wait for the tool's first I/O comes before the ramp
            ramp = min(spent, RAMP_SECONDS)
            self.seconds["starting the tool"] += spent - ramp
            spent = ramp
        self.seconds[self._name] += spent
        self._name, self._since = name, now

    def __call__(self, case: Case, phase: Phase, seconds: float) -> None:
        """See `runner.runner.Report`."""
        del case, seconds
        self.enter(NAMES[phase])


def cycle(made: BenchLab, cases: Sequence[Case], *, naive: bool) -> Counter[str]:
    """Run the cases; return the seconds by activity."""
    ledger = Ledger()
    runner = Runner(made.site, ledger)
    made.store.begin_cycle(
        f"naive-{naive}", node="lab", pack="duty", tier="full", planned=len(cases)
    )
    before = None
    for case in cases:
        if naive and before is not None and case.scenario != before:
            ledger.enter("switching")
            made.site.hypervisor.power_off()
            ledger.enter("the rest")
        before = case.scenario
        run = runner.run(case, cycle=f"naive-{naive}", conduct=made.assignment.pack.conduct)
        ledger.enter("the rest")
        made.store.add_run(run)
        if not run.outcome.good:
            print(f"{case.slug}: {run.outcome}: {run.reason}")
    runner.close()
    ledger.enter("end")
    return ledger.seconds


def show(title: str, seconds: Counter[str], configurations: int) -> float:
    """Print a table; return the overhead in seconds per configuration."""
    total = seconds.total()
    print(f"{title}: {total:.0f} s")
    for kind in KINDS:
        print(f"  {kind:18} {seconds[kind]:8.1f} s  {seconds[kind] / total:7.2%}")
    overhead = sum(seconds[kind] for kind in OVERHEAD)
    each = overhead / configurations
    print(f"  switching and the rest: {overhead / total:.2%} of the time, {each:.2f} s each")
    return each


def main() -> None:
    """Measure and print both ways."""
    some = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with lab(PACK) as made:
        conduct = made.assignment.pack.conduct
        cases = make_plan(made.assignment.matrix, seed=1, conduct=conduct).cases
        chosen = list(dict.fromkeys(case.scenario for case in cases))
        ours = cycle(made, cases, naive=False)
        few = [case for case in cases if case.scenario in chosen[:some]]
        theirs = cycle(made, few, naive=True)
    mine = show(f"pvebench, {len(chosen)} configurations", ours, len(chosen))
    other = show(f"a boot for each of {some} configurations", theirs, some)
    print(f"overhead per configuration, by hand / pvebench: {other / mine:.1f}")


if __name__ == "__main__":
    main()
