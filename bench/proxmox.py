"""What the way through the Proxmox API costs: on the tests' API with real VMs under it.

Prints seconds per live and per cold switch, API calls per run, and the share of a cycle in which
fio measures. Under software emulation a boot takes several times as long as on a node.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pve.cluster import Cluster
from pve.real import real
from pve.server import RunningApi, running_api
from pve.site import Site as TestSite
from pvebench.config import load_pack
from pvebench.drivers.host import SystemClock
from pvebench.drivers.host.exporter import NodeExporterProbe
from pvebench.drivers.proxmox.storages import storage_kind
from pvebench.guest import build_image, default_directory
from pvebench.model.ports import Site
from pvebench.model.status import Phase
from pvebench.plan import Assignment, expand
from pvebench.scheduler import Worker

if TYPE_CHECKING:
    from pvebench.model.run import Run
    from pvebench.model.workload import Case

PACK = """\
pack: bench
title: Live and cold switches
tier: full
every: 1d
axes:
  bus: [scsi, virtio]
  format: [raw]
  cache: [none, writeback]
variants:
  - {bus: sata}
  - {bus: sata, cache: writeback}
volume: {size: 64M}
measure: {ramp: 2s, runtime: 8s}
workloads:
  - fio: {rw: randread, bs: 4k, iodepth: 32}
  - fio: {rw: randwrite, bs: 4k, iodepth: 32}
"""


@dataclass
class Stopwatch:
    """An observer that adds up phases."""

    api: RunningApi
    now: float = field(default_factory=time.monotonic)
    phase_now: Phase | None = None
    seconds: dict[Phase, float] = field(default_factory=dict)
    live: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    measured: float = 0.0
    seen_calls: int = 0

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """Close the phase before."""
        self._close()
        self.phase_now = phase

    def _close(self) -> None:
        now = time.monotonic()
        if self.phase_now is not None:
            before = self.seconds.get(self.phase_now, 0.0)
            self.seconds[self.phase_now] = before + now - self.now
        self.now = now

    def finished(self, run: Run) -> None:
        """Take stock of the run: a switch is attaching and booting; a boot makes it a cold one."""
        self._close()
        switch = self.seconds.get(Phase.ATTACH, 0.0) + self.seconds.get(Phase.BOOT, 0.0)
        if Phase.ATTACH in self.seconds:
            booted = self.seconds.get(Phase.BOOT, 0.0) > 3.0
            (self.cold if booted else self.live).append(switch)
        self.measured += self.seconds.get(Phase.MEASURE, 0.0)
        self.calls.append(len(self.api.calls) - self.seen_calls)
        self.seen_calls = len(self.api.calls)
        self.seconds, self.phase_now = {}, None
        print(f"  {run.case.slug}: {run.outcome}", flush=True)


def main() -> None:
    """Run a cycle twice, the second without fills, and print."""
    image = build_image(default_directory(), say=print)
    with tempfile.TemporaryDirectory(prefix="pvebench-bench-") as name:
        directory = Path(name)
        path = directory / "pack.yaml"
        path.write_text(PACK, "utf-8")
        cluster = Cluster(directory / "cluster", major=9, make_machine=real)
        with running_api(cluster) as api:
            clock = SystemClock()
            found = TestSite(api, directory, 9, image=image, clock=clock)
            site = Site(
                node="pve1", hypervisor=found.node, probe=NodeExporterProbe(""), clock=clock,
                poll_seconds=0.3,
            )  # fmt: skip
            pack = load_pack(path)
            matrix = expand(pack, node="pve1", storages={"local": storage_kind("dir")})
            watch = Stopwatch(api)
            worker = Worker(
                site=site, assignments=[Assignment(pack, matrix)], store=found.store,
                observer=watch, cycles=2,
            )  # fmt: skip
            begun = time.monotonic()
            worker.run()
            wall = time.monotonic() - begun
            found.close()
    show(watch, wall)


def show(watch: Stopwatch, wall: float) -> None:
    """Print the figures."""
    for kind, values in (("live", watch.live), ("cold", watch.cold)):
        median = statistics.median(values)
        print(f"{kind} switch: median {median:.1f} s of {len(values)}, longest {max(values):.1f} s")
    calls = statistics.median(watch.calls)
    print(f"API calls per run: median {calls:.0f}, most {max(watch.calls)}")
    print(f"fio measures {watch.measured / wall:.0%} of the cycles' {wall:.0f} s")


if __name__ == "__main__":
    main()
