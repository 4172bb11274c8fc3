"""Further VMs that run a workload at the same time as the benchmark VM.

Each has its own volume with the same content. They boot together before each run, which shows how
long a boot storm takes, and end after it, as the host needs their memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from pvebench.errors import DriverError
from pvebench.model import run_metrics
from pvebench.model.guest import Completed, Guest
from pvebench.model.ports import FurtherVm, Hypervisor, Operation, Progress, Site
from pvebench.model.run import Sample
from pvebench.model.run_metrics import (
    IOPS_VARIATION,
    VMS_BOOT_TIME,
    VMS_FAIRNESS,
    VMS_SLOWEST,
    VMS_VARIATION,
    rates,
)
from pvebench.model.status import Phase
from pvebench.model.volume import BlockCounters, sum_of
from pvebench.model.workload import Case
from pvebench.runner.measure import finish_job, read_logs, stop_job
from pvebench.runner.prepare import Ready, ReportPhase, Setup
from pvebench.workloads import TOOLS
from pvebench.workloads.fault_dip import QUIET_SHARE
from pvebench.workloads.fio_report import merge_reports
from pvebench.workloads.tool import Job

Output = tuple[str, dict[str, str]]
"""Raw output of a tool, and its logs by name."""
_NEIGHBOR_SECONDS: Final = 1.0
"""Interval at which the counters of a neighbor are read."""
_OF_ONE_VM: Final[Mapping[str, tuple[str, ...]]] = {
    run_metrics.HOST_BYTES.name: ("process_",),
    run_metrics.HOST_CPU.name: ("qemu", "vcpu", "iothread", "other"),
    run_metrics.GUEST_CPU_WAIT.name: ("",),
    run_metrics.HOST_PRESSURE.name: ("vm_",),
    run_metrics.VM_EXITS.name: ("",),
}
"""Metric -> beginnings of the parts that are known of the benchmark VM alone."""


class Companions:
    """Further VMs of a site, from case to case. Owned by one runner."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._vms: list[tuple[FurtherVm, Setup]] = []

    def gather(self, case: Case, report: ReportPhase) -> Team | None:
        """Boot and prepare the further VMs of a case; None: it has only one.

        Raises:
            Invalid, DriverError, WorkloadError: as `Setup.ready`.
        """
        count = case.workload.further_vms
        if not count:
            return None
        for number in range(len(self._vms), count):
            vm = self._site.require_vms().further_vm(number + 2)
            vms = replace(self._site.require_vms(), take_snapshots=vm.take_snapshots)
            site = replace(self._site, hypervisor=vm, vms=vms, fill_notes=None)
            self._vms.append((vm, Setup(site)))
        used = self._vms[:count]
        report(Phase.BOOT)
        seconds = self._boot([vm for vm, _ in used], case)
        ready = [self._prepare(setup, case, report) for _, setup in used]
        return Team(self._site, [vm for vm, _ in used], ready, boot_seconds=seconds)

    def _boot(self, vms: Sequence[FurtherVm], case: Case) -> float:
        """Boot them together; return the seconds until the last guest answers."""
        for vm in vms:
            vm.prepare(case.scenario.machine, count=len(vms))
        begun = self._site.clock.monotonic()
        for vm in vms:
            vm.launch(case.scenario.machine)
        for vm in vms:
            vm.boot(case.scenario.machine)
        return self._site.clock.monotonic() - begun

    @staticmethod
    def _prepare(setup: Setup, case: Case, report: ReportPhase) -> Ready:
        first = case.workload.first_touch
        ready = setup.ready(case.scenario, report, {}, fresh=False, first=first)
        if case.workload.spoils or first:
            setup.contents.lost(ready.volume)
        return ready

    def end(self) -> int:
        """End the VMs, but not their volumes; return the bytes that they wrote. Never raises."""
        written = 0
        for vm, setup in self._vms:
            with contextlib.suppress(DriverError):
                if setup.attachment is not None and (counted := vm.counters()) is not None:
                    written += counted.write_bytes
            try:
                setup.renew()
            except DriverError:
                setup.mark_unverified()
        return written

    def close(self) -> None:
        """End the VMs and remove their volumes. Raises DriverError, after all were tried."""
        with contextlib.ExitStack() as stack:
            for _, setup in self._vms:
                stack.callback(setup.close)
        self._vms.clear()


class Team:
    """The further VMs of one run.

    Args:
        boot_seconds: time in which they booted together.
    """

    def __init__(
        self, site: Site, vms: Sequence[FurtherVm], ready: Sequence[Ready], *, boot_seconds: float
    ) -> None:
        self._vms = vms
        self._ready = ready
        self._boot_seconds = boot_seconds
        self._together: _Together | None = None
        lead = site.hypervisor
        self.site = replace(site, hypervisor=cast("Hypervisor", _Counters([lead, *vms])))

    def lead(self, guest: Guest, case: Case, job: Job) -> Guest:
        """Return the benchmark guest, which also starts and ends the job in the others."""
        tool = TOOLS[case.workload.tool]
        members = [(ready.guest, tool.job(case.workload, ready.target)) for ready in self._ready]
        self._together = _Together(guest, job, members)
        return cast("Guest", self._together)

    def drop_caches(self) -> list[int | None]:
        """Drop the host's page cache of the further VMs' volumes, as `Hypervisor.drop_caches`."""
        pairs = zip(self._vms, self._ready, strict=True)
        return [vm.drop_caches(ready.volume) for vm, ready in pairs]

    def neighbor(self, case: Case, disk: Operation) -> Neighbor:
        """Return the load of the first further VM as an operation on the benchmark VM's disk."""
        return Neighbor(self.site, case, disk, self._vms[0], self._ready[0])

    def merged(self, case: Case, own: Output) -> tuple[Output, list[Sample]]:
        """Return the output and logs of all VMs as those of one, and the figures of the VMs.

        Raises:
            ToolFailed: the tool failed in one of them. OutputUnreadable: as `Tool.parse`.
        """
        tool = TOOLS[case.workload.tool]
        each = [own, *(self._together.outputs() if self._together else [])]
        parsed = [tool.parse(case.workload, *output) for output in each]
        totals = [sum(rates(result.samples).values()) for result in parsed]
        varied = [s.value for result in parsed for s in IOPS_VARIATION.of(result.samples)]
        logs = {name: "".join(of_one.get(name, "") for _, of_one in each) for name in own[1]}
        return (merge_reports([output for output, _ in each]), logs), [
            *(VMS_VARIATION.sample(value) for value in sorted(varied)[-1:]),
            VMS_FAIRNESS.sample(fairness(totals)),
            VMS_SLOWEST.sample(min(totals)),
            VMS_BOOT_TIME.sample(self._boot_seconds),
        ]


class Neighbor:
    """`model.ports.Operation`: another VM runs the job, for a third of the window.

    While its counters change, its guest is not polled: that takes CPU time and delays the looks.

    Args:
        disk: reads the counters of the benchmark VM's disk.
        vm, ready: the other VM.
    """

    def __init__(
        self, site: Site, case: Case, disk: Operation, vm: FurtherVm, ready: Ready
    ) -> None:
        self._site, self._disk, self._vm, self._guest = site, disk, vm, ready.guest
        self.look_seconds, self.bounds = disk.look_seconds, disk.bounds
        workload = case.workload
        load = replace(
            workload,
            parameters={
                **workload.parameters,
                "rate_iops": workload.parameters.get("neighbor_iops", 0),
            },
            ramp_seconds=0.0,
            runtime_seconds=QUIET_SHARE * workload.runtime_seconds,
        )
        self._job = TOOLS[workload.tool].job(load, ready.target)
        self._pid: int | None = None
        self._ended = False
        self._first = self._moved = 0
        self._next = 0.0

    def prepare(self) -> None:
        """As `Operation.prepare`."""
        self._disk.prepare()
        self._guest.prepare_job(self._job.work, self._job.files, (self._job.output,))
        self._first = self._moved = self._bytes()

    def _bytes(self) -> int:
        counted = self._vm.counters()
        return counted.read_bytes + counted.write_bytes if counted else 0

    def begin(self) -> None:
        """As `Operation.begin`."""
        self._pid = self._guest.start(self._job.argv)
        self._next = self._site.clock.monotonic() + _NEIGHBOR_SECONDS
        self._disk.begin()

    def look(self) -> Progress:
        """As `Operation.look`. Raises ToolFailed: the neighbor's job did."""
        if self._pid is not None and not self._ended and self._site.clock.monotonic() > self._next:
            self._next = self._site.clock.monotonic() + _NEIGHBOR_SECONDS
            before, self._moved = self._moved, self._bytes()
            ended = self._guest.poll(self._pid) if before == self._moved else None
            if ended is not None:
                self._ended = True
                finish_job(self._guest, self._job, ended)
        moved = self._moved - self._first
        return replace(self._disk.look(), bytes=moved, ended=self._ended)

    def cancel(self) -> None:
        """As `Operation.cancel`."""
        if self._pid is not None and not self._ended:
            self._ended = True
            stop_job(self._site, self._guest, self._pid)
        self._disk.cancel()


def with_bins(case: Case) -> Case:
    """Return the workload whose output has the bins that several VMs' outputs need."""
    if case.workload.vms == 1:
        return case
    return replace(case, workload=replace(case.workload, histogram=True))


def fairness(rates: Sequence[float]) -> float:
    """Return Jain's index of the rates: 1 if all are equal, 1/n if one has everything.

    Jain, Chiu and Hawe, DEC-TR-301 (1984).
    """
    squares = sum(rate**2 for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0


def of_all(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of the window without those of the benchmark VM's process alone."""
    return [s for s in samples if not s.part.startswith(_OF_ONE_VM.get(s.metric, ()))]


class _Counters:
    """The part of `Hypervisor` that a measured window uses, for all VMs together."""

    def __init__(self, vms: Sequence[Hypervisor]) -> None:
        self._vms = vms

    def counters(self) -> BlockCounters | None:
        """Return the sums; None if one VM has none."""
        counted = [vm.counters() for vm in self._vms]
        readable = [counters for counters in counted if counters is not None]
        return sum_of(readable) if len(readable) == len(counted) else None

    def statistics(self) -> str:
        """Return those of the benchmark VM."""
        return self._vms[0].statistics()


class _Together:
    """Guest that runs its tool together with those of other guests; the rest is the benchmark VM's.

    Args:
        members: other guests, each with its job.
    """

    def __init__(self, lead: Guest, job: Job, members: Sequence[tuple[Guest, Job]]) -> None:
        self._lead, self._job, self._members = lead, job, members
        self._pids: dict[int, int] = {}
        self._ended: dict[int, Completed] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lead, name)

    def start(self, argv: list[str]) -> int:
        """Start the tool in all guests; preparations run only in the benchmark guest."""
        if argv == self._job.argv:
            for guest, job in self._members:
                guest.prepare_job(job.work, job.files, (job.output, *job.logs))
            for number, (guest, job) in enumerate(self._members):
                self._pids[number] = guest.start(job.argv)
        return self._lead.start(argv)

    def poll(self, pid: int) -> Completed | None:
        """Return the result of the benchmark guest's tool, once all have ended."""
        for number, (guest, _) in enumerate(self._members):
            if number not in self._ended and number in self._pids:
                ended = guest.poll(self._pids[number])
                if ended is not None:
                    self._ended[number] = ended
        if -1 not in self._ended:
            ended = self._lead.poll(pid)
            if ended is not None:
                self._ended[-1] = ended
        return self._ended[-1] if len(self._ended) > len(self._pids) else None

    def outputs(self) -> list[Output]:
        """Return the raw output and logs of the members. Raises ToolFailed."""
        return [
            (finish_job(guest, job, self._ended[number]), read_logs(guest, job))
            for number, (guest, job) in enumerate(self._members)
        ]
