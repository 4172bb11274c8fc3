"""Overhead of the Proxmox API, measured with the API of the tests and real VMs.

Prints seconds per live and per cold switch, API calls per run, and the share of a live run in which
fio measures, compared with recorded results of the previous code. With software emulation a boot
takes several times as long as on a node.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from pve.cluster import Cluster
from pve.real import real
from pve.server import RunningApi, running_api
from pve.site import Site as TestSite
from pvebench.config import load_pack
from pvebench.drivers.clocks import SystemClock
from pvebench.drivers.linux.node_exporter import NodeExporterProbe
from pvebench.drivers.proxmox.node.claims import Claims
from pvebench.drivers.proxmox.node.node_activity import NodeGuard
from pvebench.drivers.proxmox.vm.drive import storage_kind
from pvebench.guest.build import build_image
from pvebench.guest.image import default_directory
from pvebench.model.ports import Site
from pvebench.model.status import Phase
from pvebench.scheduler.plan import Assignment, expand
from pvebench.scheduler.worker import Worker
from pvebench.store.live_results import LiveResults

if TYPE_CHECKING:
    from pvebench.model.run import Run
    from pvebench.model.workload import Case

BEFORE = "recorded before: 33-38 calls a run, 49.5% of the wall time with runs of 8 s"
"""Results of the previous code on the API of Proxmox VE 9.2.11 (November 2026)."""
MAX_CALLS, MIN_SHARE = 22, 0.62
"""Aims: API calls per live run, and share of its wall time in which fio measures."""
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
    """Sums up the phases of runs."""

    api: RunningApi
    now: float = field(default_factory=time.monotonic)
    phase_now: Phase | None = None
    seconds: dict[Phase, float] = field(default_factory=dict)
    live: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    seen_calls: int = 0
    live_walls: list[float] = field(default_factory=list)
    live_measured: list[float] = field(default_factory=list)
    run_began: float = field(default_factory=time.monotonic)

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """End the previous phase."""
        self._close()
        self.phase_now = phase

    def _close(self) -> None:
        now = time.monotonic()
        if self.phase_now is not None:
            before = self.seconds.get(self.phase_now, 0.0)
            self.seconds[self.phase_now] = before + now - self.now
        self.now = now

    def finished(self, run: Run) -> None:
        """Record the run: a switch is attaching and booting; with a boot it is a cold switch."""
        self._close()
        switch = self.seconds.get(Phase.ATTACH, 0.0) + self.seconds.get(Phase.BOOT, 0.0)
        if Phase.ATTACH in self.seconds:
            booted = self.seconds.get(Phase.BOOT, 0.0) > 3.0
            (self.cold if booted else self.live).append(switch)
        calls, now = len(self.api.calls) - self.seen_calls, time.monotonic()
        self.seen_calls = len(self.api.calls)
        quiet = Phase.FILL not in self.seconds and self.seconds.get(Phase.BOOT, 0.0) < 3.0
        if quiet and run.outcome.good:  # neither a boot nor a fill, as most runs
            self.calls.append(calls)
            self.live_walls.append(now - self.run_began)
            self.live_measured.append(self.seconds.get(Phase.MEASURE, 0.0))
        self.seconds, self.phase_now, self.run_began = {}, None, now
        print(f"  {run.case.slug}: {run.outcome}", flush=True)


class TimedWorker(Worker):
    """A worker whose phases are timed."""

    def __init__(self, watch: Stopwatch, **arguments: Any) -> None:
        self._watch = watch
        super().__init__(**arguments)

    def enter(self, case: Case, phase: Phase, seconds: float) -> None:
        """See `Worker.enter`."""
        super().enter(case, phase, seconds)
        self._watch.phase(case, phase, seconds)


def main() -> None:
    """Run two cycles, the second one without fills, and print the outcomes."""
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
                node="pve1",
                hypervisor=found.node,
                probe=NodeExporterProbe(""),
                clock=clock,
                poll_seconds=0.3,
            )
            guard = NodeGuard(
                found.connect(),
                "pve1",
                storages=found.node._storages,  # noqa: SLF001 # as a cluster's engine puts it together
                shared=frozenset(),
                floors={},
                claims=Claims(found.connect(), "pve1", lambda: found.node.vm, clock),
            )
            pack = load_pack(path)
            matrix = expand(pack, node="pve1", storages={"local": storage_kind("dir")})
            watch = Stopwatch(api)
            worker = TimedWorker(
                watch,
                site=site,
                assignments=[Assignment(pack, matrix)],
                results=LiveResults(found.store),
                notify=watch.finished,
                cycles=2,
                guards=(guard,),
            )
            begun = time.monotonic()
            worker.run()
            wall = time.monotonic() - begun
            found.close()
    show(watch, wall)


def show(watch: Stopwatch, wall: float) -> None:
    """Print the results."""
    for kind, values in (("live", watch.live), ("cold", watch.cold)):
        median = statistics.median(values)
        print(f"{kind} switch: median {median:.1f} s of {len(values)}, longest {max(values):.1f} s")
    calls = statistics.median(watch.calls)
    most = f"most {max(watch.calls)}, aim {MAX_CALLS}"
    print(f"API calls per live run: median {calls:.0f}, {most}")
    share = sum(watch.live_measured) / sum(watch.live_walls)
    print(
        f"fio measures {share:.0%} of the wall time of {len(watch.live_walls)} live runs of 8 s, "
        f"aim {MIN_SHARE:.0%}"
    )
    print(f"total {wall:.0f} s; {BEFORE}")


if __name__ == "__main__":
    main()
