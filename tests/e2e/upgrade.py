"""Cycles of the same on a real VM, then QEMU's own throttle behind pvebench's back.

    tests/e2e/lab-upgrade [CYCLES]   (default 50)

As long as nothing changes the verdict must be silent; once the disk is at 70 % and the
environment marked as changed, it must be found, and attributed, within three rounds.

Two buses with the limit that an admin gives a guest (`iops=200`), and one without. What the
limit holds back is steady even on a machine whose speed swings by a quarter from run to run, as
that of emulation on a shared host does; there a loss of 30 % can be told. The disk without a
limit swings freely, as do the latencies and CPU costs of all: fifty cycles of that must not raise
an alarm either. The throttle is QEMU's own, set on the device: the limit that pvebench has set,
and reads back, stays as it was.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from integration.conftest import Lab
from pvebench.analysis.change import Change
from pvebench.config import load_pack
from pvebench.config.known_issues import load_known_issues
from pvebench.drivers.linux.procfs import ProcProbe
from pvebench.drivers.qemu.qemu_hypervisor import QemuHypervisor
from pvebench.guest.build import build_image
from pvebench.guest.image import default_directory
from pvebench.model.disk import Bus, Disk
from pvebench.model.environment import Environment
from pvebench.model.ports import Site
from pvebench.model.volume import Attachment, Volume
from pvebench.scheduler.plan import Assignment, expand
from pvebench.scheduler.worker import Worker
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.change_text import sentence
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.verdict_updates import VerdictService
from testing.packs import STORAGES, Recorder, write_pack

LIMIT: Final = 200
"""Operations a second, as of a small guest among many: far below what emulation gives."""
PACK: Final = f"""\
pack: upgrade
title: Two buses with a limit, one without
every: 1d
axes: {{bus: [virtio, scsi], format: [raw], cache: [none], iops: [{LIMIT}]}}
variants:
  - {{iops: 0}}
volume: {{size: 64M}}
measure: {{ramp: 500ms, runtime: 3s}}
workloads:
  - fio: {{rw: randread, bs: 4k, iodepth: 8}}
"""
SHARE: Final = 0.7
ROUNDS: Final = 3


class ThrottledLab(QemuHypervisor):
    """A lab whose disk may be slowed down without pvebench's knowledge."""

    share = 1.0
    usual: Mapping[Disk, float]

    def attach(self, volume: Volume, disk: Disk) -> Attachment:
        found = super().attach(volume, disk)
        if self.share < 1 and self._state.disk:
            zero = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
            device = self._state.disk.names.device
            if disk.bus is Bus.VIRTIO:  # there the device proper is a child of the PCI one
                device = f"/machine/peripheral/{device}/virtio-backend"
            self._qemu.qmp.execute(
                "block_set_io_throttle",
                {"id": device, "iops": round(self.share * self.usual[disk]), **zero},
            )
        return found

    def environment(self) -> Environment:
        found = super().environment()
        package = "throttled" if self.share < 1 else "as it was"
        return replace(found, facts={**found.facts, "qemu_package": package})


class Trial:
    """A store, a lab, and what is said about it."""

    def __init__(self, directory: Path) -> None:
        image = build_image(default_directory(), say=print)
        self.lab = Lab(directory, image, ThrottledLab)
        self.results = LiveResults(self.lab.store)
        probe = ProcProbe(lambda: self.lab.qemu.pid, lambda: self.lab.qemu.volume_path)
        self.site = Site(node="lab", hypervisor=self.lab.qemu, probe=probe, clock=self.lab.clock)
        pack = load_pack(write_pack(directory, PACK))
        self.given = Assignment(pack, expand(pack, node="lab", storages=STORAGES))
        self.recorder = Recorder()

    def measure(self, cycles: int) -> None:
        Worker(
            site=self.site,
            assignments=[self.given],
            results=self.results,
            notify=self.recorder.runs.append,
            cycles=cycles,
        ).run()

    def verdicts(self) -> Verdicts:
        return VerdictService(self.results, load_known_issues()).judge()

    def rates(self) -> dict[Disk, list[float]]:
        """Return disk -> its rates, oldest first."""
        found: dict[Disk, list[float]] = {}
        for run in self.recorder.runs:
            rates = [sample.value for sample in run.samples if sample.metric == "iops"]
            found.setdefault(run.case.scenario.disk, []).extend(rates)
        return found

    def slow_down(self) -> None:
        assert isinstance(self.lab.qemu, ThrottledLab)
        self.lab.qemu.usual = {
            disk: statistics.median(rates) for disk, rates in self.rates().items()
        }
        self.lab.qemu.share = SHARE


def told(verdicts: Verdicts) -> list[str]:
    return [sentence(one) for one in verdicts.regressions]


def name(disk: Disk) -> str:
    return f"{disk.bus} {f'iops={disk.iops}' if disk.iops else 'without a limit'}"


def tells(finding: Change, disk: Disk) -> bool:
    """Tell whether a finding says that a disk got slower, and with what."""
    text = sentence(finding)
    mine = any(f".{disk.bus}." in one and f"iops-{disk.iops}" in one for one in finding.names)
    return mine and "slower since pve-qemu-kvm throttled" in text


def trial(directory: Path, cycles: int) -> list[str]:
    """Return what went wrong, and print what was seen."""
    made = Trial(directory)
    wrong: list[str] = []
    try:
        made.measure(cycles)
        said = told(made.verdicts())
        for disk, rates in made.rates().items():
            mean, spread = statistics.fmean(rates), statistics.pstdev(rates)
            print(f"{name(disk)}: {len(rates)} runs of {mean:.0f} IOPS, spread {spread / mean:.1%}")
        print(f"{cycles} cycles of the same: {len(said)} alarms", *said, sep="\n  ")
        wrong += [f"an alarm without a change: {one}" for one in said]
        made.slow_down()
        for number in range(1, ROUNDS + 1):
            made.measure(1)
            said = told(made.verdicts())
            newest = [f"{name(disk)} {rates[-1]:.0f}" for disk, rates in made.rates().items()]
            print(f"measured {', '.join(newest)} IOPS")
            print(f"{number} rounds after the change: {len(said)} alarms", *said, sep="\n  ")
        wrong += [
            f"{name(disk)} at {SHARE:.0%} of its speed was not found and attributed"
            for disk in made.rates()
            if disk.iops and not any(tells(one, disk) for one in made.verdicts().regressions)
        ]
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
