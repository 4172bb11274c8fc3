"""The gate on two real VMs: one node is upgraded, first without effect, then to 70 % of its speed.

    tests/e2e/lab-gate [CYCLES]   (cycles before the upgrades; default 50)

Both nodes have their own VM and disk on this machine, and take turns. What is limited to `iops=200`
is steady even where the machine's speed swings (see e2e.upgrade). After an upgrade without effect,
the gate must let the next nodes be upgraded, and after the loss it must stop, both within the
rounds below. Autocorrelated runs need more cycles before.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from e2e.upgrade import LIMIT, ROUNDS, SHARE, ThrottledLab
from integration.conftest import Lab
from pvebench.advice.gate import Gate, GateResult, gate_lines
from pvebench.advice.gate_statistic import Decision
from pvebench.config import load_pack
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.guest.build import build_image
from pvebench.guest.image import GuestImage, default_directory
from pvebench.model.environment import Environment
from pvebench.model.ports import Site
from pvebench.scheduler.plan import Assignment, expand
from pvebench.scheduler.worker import Worker
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.verdict_updates import VerdictService
from testing.packs import STORAGES, write_pack

CANARY, PEER = "lab1", "lab2"
PACK: Final = f"""\
pack: gate
title: One disk with a limit
every: 1d
axes: {{bus: [scsi], format: [raw], cache: [none], iops: [{LIMIT}]}}
volume: {{size: 64M}}
measure: {{ramp: 200ms, runtime: 1s}}
workloads:
  - fio: {{rw: randread, bs: 4k, iodepth: 8}}
"""
MOST_ROUNDS: Final = 10


class UpgradedLab(ThrottledLab):
    """A lab whose packages may be upgraded, with an effect or without."""

    package = "1.0"
    done = False
    """Until then, the VM stays between the cycles of the two nodes."""

    def shutdown(self) -> None:
        if self.done:
            super().shutdown()

    def environment(self) -> Environment:
        found = super().environment()
        return replace(found, facts={**found.facts, "qemu_package": self.package})


class Trial:
    """Two nodes with one store."""

    def __init__(self, directory: Path, image: GuestImage) -> None:
        self.labs = {name: self._lab(directory / name, image) for name in (CANARY, PEER)}
        self.store = self.labs[CANARY].store
        self.results = LiveResults(self.store)
        pack = load_pack(write_pack(directory, PACK))
        self.given = {
            name: Assignment(pack, expand(pack, node=name, storages=STORAGES)) for name in self.labs
        }

    def _lab(self, directory: Path, image: GuestImage) -> Lab:
        directory.mkdir()
        return Lab(directory, image, UpgradedLab)

    def _site(self, name: str, lab: Lab) -> Site:
        probe = ProcProbe(lambda: lab.qemu.pid, lambda: lab.qemu.volume_path)
        return Site(node=name, hypervisor=lab.qemu, probe=probe, clock=lab.clock)

    def measure(self, cycles: int) -> None:
        """Run cycles on both nodes in turn."""
        for _ in range(cycles):
            for name, lab in self.labs.items():
                Worker(
                    site=self._site(name, lab),
                    assignments=[self.given[name]],
                    results=self.results,
                    cycles=1,
                ).run()

    def upgrade(self, package: str, share: float) -> None:
        """Install a package on the canary that leaves this share of its speed."""
        lab = self.labs[CANARY].qemu
        assert isinstance(lab, UpgradedLab)
        disks = {case.scenario.disk for case in self.given[CANARY].matrix.cases}
        lab.usual = dict.fromkeys(disks, float(LIMIT))
        lab.package, lab.share = package, share

    def look(self) -> GateResult:
        verdicts = VerdictService(self.results, load_known_issues()).judge()
        now = self.results.now
        cases = {key: one.definition for key, one in now.cases.items()}
        return Gate(CANARY, verdicts, cases, now.periods).look()

    def rounds(self, expected: Decision, most: int) -> str:
        """Measure until the gate decides; return what went wrong, or an empty string."""
        for number in range(1, most + 1):
            self.measure(1)
            found = self.look()
            print(f"round {number}:", *gate_lines(found, self.labs[CANARY].clock.now()), sep="\n  ")
            if found.decision is not Decision.UNDECIDED:
                wrong = found.decision is not expected
                return f"{found.decision} instead of {expected}" if wrong else ""
        return f"undecided after {most} rounds instead of {expected}"

    def close(self) -> None:
        for lab in self.labs.values():
            assert isinstance(lab.qemu, UpgradedLab)
            lab.qemu.done = True
            lab.close()


def main() -> None:
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as name:
        made = Trial(Path(name), build_image(default_directory(), say=print))
        try:
            made.measure(cycles)
            made.upgrade("1.1", 1.0)
            wrong = [made.rounds(Decision.PASS, MOST_ROUNDS)]
            made.upgrade("1.2", SHARE)
            wrong.append(made.rounds(Decision.STOP, ROUNDS))
        finally:
            made.close()
    print(*filter(None, wrong), sep="\n")
    sys.exit(1 if any(wrong) else 0)


if __name__ == "__main__":
    main()
