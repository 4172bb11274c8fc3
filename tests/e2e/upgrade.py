"""Cycles of the same on a real VM, then QEMU's own throttle behind pvebench's back.

    tests/e2e/lab-upgrade [CYCLES]   (default 50)

As long as nothing changes the verdict must be silent; once the disk is at 70 % and the
environment marked as changed, it must be found, and attributed, within three rounds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from integration.conftest import Lab
from pvebench.analysis.wording import sentence
from pvebench.config import load_pack
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers.host import ProcProbe
from pvebench.drivers.qemu.lab import QemuLab
from pvebench.guest import build_image, default_directory
from pvebench.judging import Feed, Keeper, Verdicts
from pvebench.model.disk import Bus, Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Attachment, Site, Volume
from pvebench.plan import Assignment, expand
from pvebench.scheduler import Worker
from support.packs import STORAGES, Recorder, write_pack

PACK: Final = """\
pack: upgrade
title: Two buses, one load
every: 1d
axes: {bus: [virtio, scsi], format: [raw], cache: [none]}
volume: {size: 64M}
measure: {ramp: 500ms, runtime: 3s}
workloads:
  - fio: {rw: randread, bs: 4k, iodepth: 8}
"""
SHARE: Final = 0.7
ROUNDS: Final = 3


class ThrottledLab(QemuLab):
    """A lab whose disk may be slowed down without pvebench's knowledge."""

    iops = 0

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        found = super().attach(volume, disk)
        if self.iops and self._attached:
            zero = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
            device = self._attached[0].device
            if disk.bus is Bus.VIRTIO:  # there the device proper is a child of the PCI one
                device = f"/machine/peripheral/{device}/virtio-backend"
            self._qemu.qmp.execute(
                "block_set_io_throttle", {"id": device, "iops": self.iops, **zero}
            )
        return found

    def environment(self) -> Environment:
        found = super().environment()
        package = "throttled" if self.iops else "as it was"
        return replace(found, facts={**found.facts, "qemu_package": package})


class Trial:
    """A store, a lab, and what is said about it."""

    def __init__(self, directory: Path) -> None:
        image = build_image(default_directory(), say=print)
        self.lab = Lab(directory, image, ThrottledLab)
        probe = ProcProbe(lambda: self.lab.qemu.pid, lambda: self.lab.qemu.volume_path)
        self.site = Site(node="lab", hypervisor=self.lab.qemu, probe=probe, clock=self.lab.clock)
        pack = load_pack(write_pack(directory, PACK))
        self.given = Assignment(pack, expand(pack, node="lab", storages=STORAGES))
        self.recorder = Recorder()

    def measure(self, cycles: int) -> None:
        Worker(
            site=self.site, assignments=[self.given], store=self.lab.store,
            observer=self.recorder, cycles=cycles,
        ).run()  # fmt: skip

    def verdicts(self) -> Verdicts:
        return Keeper(Feed(self.lab.store), load_known_issues()).judge()

    def rates(self) -> list[float]:
        return [
            sample.value
            for run in self.recorder.runs for sample in run.samples
            if sample.metric == "iops"
        ]  # fmt: skip

    def slow_down(self) -> None:
        assert isinstance(self.lab.qemu, ThrottledLab)
        self.lab.qemu.iops = round(SHARE * statistics.median(self.rates()))


def told(verdicts: Verdicts) -> list[str]:
    return [sentence(one) for one in verdicts.regressions]


def trial(directory: Path, cycles: int) -> list[str]:
    """Return what went wrong, and print what was seen."""
    made = Trial(directory)
    wrong: list[str] = []
    try:
        made.measure(cycles)
        said = told(made.verdicts())
        rates = made.rates()
        spread = statistics.stdev(rates) / statistics.fmean(rates)
        print(f"{len(rates)} runs of {statistics.fmean(rates):.0f} IOPS, spread {spread:.1%}")
        print(f"{cycles} cycles of the same: {len(said)} alarms", *said, sep="\n  ")
        wrong += [f"an alarm without a change: {one}" for one in said]
        made.slow_down()
        for number in range(1, ROUNDS + 1):
            made.measure(1)
            said = told(made.verdicts())
            newest = ", ".join(f"{rate:.0f}" for rate in made.rates()[-2:])
            print(f"measured {newest} IOPS")
            print(f"{number} rounds after the change: {len(said)} alarms", *said, sep="\n  ")
        if not any("slower" in one and "throttled" in one for one in said):
            wrong.append(f"{SHARE:.0%} of the speed was not found and attributed")
    finally:
        made.lab.close()
    return wrong


def main() -> None:
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as name:
        wrong = trial(Path(name), cycles)
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
