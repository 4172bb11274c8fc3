"""Killing pvebench at requests to a cluster, while several of its VMs run a workload.

A life runs cases with one, two and three VMs, and with a neighbor. Each life but the last is killed
before or after one of its requests; an administrator's VMs come between them, with the IDs that
pvebench would take next. After each start nothing may be left that the journal does not list.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pve.machines import CheapMachine
from pve.site import POOL, scenario, small_image
from pve.vms import Vm
from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.driver import DriverContext
from pvebench.drivers.proxmox import cluster, cluster_access, hypervisor
from pvebench.drivers.proxmox.api.connection import Token
from pvebench.drivers.proxmox.api.privileges import vm_privileges
from pvebench.drivers.proxmox.proxmox_settings import ClusterSettings, section
from pvebench.drivers.proxmox.vm import vm_volumes
from pvebench.drivers.proxmox.vm.description import mark_of
from pvebench.drivers.proxmox.vm.leftover_vms import KEPT
from pvebench.errors import PvebenchError
from pvebench.model.ports import Site
from pvebench.model.run import Run
from pvebench.model.workload import Case, Conduct
from pvebench.runner.runner import Runner
from pvebench_lab.simulated.simulated_hypervisor import SimulatedProbe
from testing.packs import tool_workload
from testing.simulated_cluster import Directly, Killed, simulated_cluster
from testing.simulated_rules import Broken
from testing.stores import TemporaryStore

VMIDS: Final = (9000, 9009)
REQUESTS: Final = 260
"""About so many a life sends until its cases are through."""
TIDY_SECONDS: Final = 30.0
"""So often leftovers of the same start are looked for, that is between the runs of a life."""


def case_of(storage: str = "local", **options: object) -> Case:
    job = {"rw": "randrw", "bs": "4k", **options}
    workload = tool_workload("fio", job, ramp_seconds=1, runtime_seconds=10)
    return Case(scenario=scenario(storage=storage), workload=workload)


CASES: Final = (
    case_of(),
    case_of(vms=2),
    case_of(vms=3),
    case_of(during="neighbor", neighbor_iops=100),
    case_of(storage="thin", vms=2),
)


class ClusterLives:
    """A cluster, and the state directory of the pvebench that lives there.

    Args:
        keep: as `keep_volumes` of the settings.
    """

    def __init__(self, directory: Path, rng: random.Random, *, keep: bool = False) -> None:
        self.clock = SimulatedClock()
        self._rng = rng
        self.cluster = simulated_cluster(directory / "cluster", self.clock, rng)
        user, _, secret = self.cluster.grant(POOL, vm_privileges(9)).partition("=")
        name, _, token = user.partition("!")
        self._token = Token(name, token, secret)
        directory.mkdir(parents=True, exist_ok=True)
        self._image = small_image(directory)
        self.store = TemporaryStore(directory / "pvebench.db", simulated=False)
        self._keep = keep
        self._settings = ClusterSettings.model_validate(
            {
                "node": "pve1",
                "proxmox": {
                    "host": "pve1",
                    "pool": POOL,
                    "vmids": VMIDS,
                    "node_exporter": "",
                    "keep_volumes": keep,
                    "storages": {"local": {"type": "dir"}, "thin": {"type": "lvmthin"}},
                },
            }
        )
        self.deaths = self.lost = 0
        self.broken = Broken()
        self.foreign: dict[int, dict[str, Any]] = {}
        self.requests: list[str] = []

    def connect(self, **options: Any) -> Directly:
        return Directly(self.cluster, self._token, self.clock, **options)

    def have_foreign_vm(self, vmid: int, **config: object) -> None:
        """Have an administrator make a VM, unless the ID is taken."""
        if vmid in self.cluster.vms:
            return
        volumes = self.cluster.volumes
        machine = CheapMachine(self.cluster.directory / "theirs", volumes, qemu=lambda: "9.2.0")
        disk = volumes.allocate("local", vmid, f"vm-{vmid}-disk-0.raw", 1 << 20, "raw")
        made = {"name": "theirs", "scsi1": f"{disk},size=1M", **config}
        self.cluster.vms[vmid] = Vm(vmid, "pve1", machine, volumes, config=dict(made))
        self.cluster.pools[POOL].add(vmid)
        self.foreign[vmid] = copy.deepcopy(made)

    def start(self, api: Directly) -> list[str]:
        """Do what a start does before it measures."""
        with self._reached_by(api):
            return cluster.ENGINE.undo(self._settings, self.store.journal)

    @contextmanager
    def _reached_by(self, api: Directly) -> Iterator[None]:
        """Have the driver use a connection, and wait in simulated time, while inside."""
        with ExitStack() as stack:
            for module in (cluster, hypervisor):
                patched = mock.patch.object(module, "SystemClock", return_value=self.clock)
                stack.enter_context(patched)
            for module in (cluster, cluster_access):
                stack.enter_context(mock.patch.object(module, "connect", return_value=api))
            stack.enter_context(mock.patch.object(vm_volumes, "_TIDY_SECONDS", TIDY_SECONDS))
            yield

    def site(self, api: Directly) -> Site:
        """Return the site of pve1, as the engine makes it."""
        place = DriverContext(
            runtime=Path(), journal=self.store.journal, clock=self.clock, say=print
        )
        with self._reached_by(api):
            made = cluster._site(section(self._settings), "pve1", self._image, place)
        return replace(made, probe=SimulatedProbe(self.clock), simulated=True)

    def live(self, cases: list[Case], *, dies_at: int = 0, lost: float = 0.0) -> list[Run]:
        """Start, run the cases and stop; or be killed at a moment, each request being two."""
        left = [dies_at]

        def moment(request: str) -> None:
            self.requests.append(request)
            left[0] -= 1
            if dies_at and left[0] <= 0:
                raise Killed

        api = self.connect(moment=moment, lost=lambda: self._lose(lost))
        runs: list[Run] = []
        try:
            with self._reached_by(api):
                self.start(api)
                self._measure(self.site(api), cases, runs)
        except Killed:
            self.deaths += 1
        except PvebenchError as error:
            if not lost:  # else what could not be removed stays in the journal
                self.broken.add("ended", f"{type(error).__name__}: {error}")
        return runs

    def _lose(self, rate: float) -> bool:
        hit = rate > 0 and self._rng.random() < rate
        self.lost += hit
        return hit

    def _measure(self, site: Site, cases: Sequence[Case], runs: list[Run]) -> None:
        runner = Runner(site, lambda *_: None)
        for case in cases:
            for guard in site.guards:
                if hold := guard.enter(case):
                    self.broken.add("stuck", f"{case.slug} waits: {hold.reason}")
            runs.append(runner.run(case, cycle="c", conduct=Conduct()))
            for guard in site.guards:
                if disturbed := guard.leave(case):
                    self.broken.add("mislabeled", f"{case.slug} was disturbed: {disturbed}")
        runner.close()

    def look(self, when: str) -> None:
        """See what exists after a start or stop: nothing, and others' VMs as they were."""
        journal = self.store.journal.pending()
        kept = [one for _, kind, one in journal if kind == KEPT]
        known = {int(one["vmid"]): one["mark"] for one in kept}
        if len(kept) != len(journal) or len(kept) > self._keep:
            self.broken.add("orphaned", f"{when}: the journal has {journal}")
        for vmid, vm in self.cluster.vms.items():
            if vmid in self.foreign:
                if vm.config != self.foreign[vmid]:
                    self.broken.add("foreign", f"{when}: VM {vmid} of others changed")
            elif known.get(vmid) != mark_of(vm.config):
                self.broken.add("orphaned", f"{when}: VM {vmid} is left")
            elif vm.config["name"] != "pvebench-pve1" or vm.running:
                self.broken.add("mislabeled", f"{when}: VM {vm.config['name']} is kept")
        for vmid in sorted(set(self.foreign) - set(self.cluster.vms)):
            self.broken.add("foreign", f"{when}: VM {vmid} of others is gone")
        there = {*self.foreign, *known}
        loose = [
            volid
            for vmid in range(VMIDS[0], VMIDS[1] + 1)
            if vmid not in there
            for volid in self.cluster.volumes.owned(vmid)
        ]
        if loose:
            self.broken.add("orphaned", f"{when}: {loose} are left")

    def close(self) -> None:
        self.store.close()


def play_cluster(seed: int, home: Path) -> tuple[ClusterLives, Counter[str]]:
    """Play the lives of one seed; return what they left, and the outcomes of their runs."""
    rng = random.Random(f"cluster/{seed}")
    outcomes: Counter[str] = Counter()
    with closing(ClusterLives(home, rng, keep=seed % 16 == 0)) as lives:
        for life in range(rng.randint(1, 3)):
            if rng.random() < 0.5:
                lives.have_foreign_vm(rng.randint(VMIDS[0], VMIDS[0] + 3))
            dies_at = rng.randrange(1, 2 * REQUESTS) if rng.random() < 0.8 else 0
            lost = rng.choice((0.0, 0.0, 0.01))
            runs = lives.live(rng.sample(CASES, 3), dies_at=dies_at, lost=lost)
            outcomes.update(str(run.outcome) for run in runs)
            lives.start(lives.connect())  # it may find a task that its predecessor began
            lives.start(lives.connect())
            lives.look(f"after life {life}")
        runs = lives.live([*CASES])
        outcomes.update(str(run.outcome) for run in runs)
        for run in runs:
            if not run.outcome.good:
                lives.broken.add("stuck", f"{run.case.slug}: {run.outcome} {run.reason}")
        lives.look("at the end")
    return lives, outcomes
