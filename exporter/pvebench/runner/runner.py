"""Steps of a run in order, and the outcome of an error in each step."""

from __future__ import annotations

import dataclasses
import json
import traceback
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pvebench.errors import (
    Busy,
    DriverError,
    FaultFailed,
    Interrupted,
    NeverBooted,
    NoSpace,
    PvebenchError,
    ToolStuck,
)
from pvebench.log import log
from pvebench.model.disk import Bus
from pvebench.model.environment import Environment
from pvebench.model.ports import Site
from pvebench.model.run import Outcome, Run, Sample
from pvebench.model.run_metrics import BOOT_TIME, FAULT_TIME
from pvebench.model.scenario import Machine, Scenario
from pvebench.model.status import Phase
from pvebench.model.volume import Attachment, IdentityRecords, Volume
from pvebench.model.workload import Case, Caveat, Conduct, Direction
from pvebench.runner.companions import Companions, Team, of_all, with_bins
from pvebench.runner.measure import Invalid, Measured, check_identity, run_job
from pvebench.runner.operation_watch import Watch
from pvebench.runner.plausibility import HostRates, check_run, in_flight, noise_reason
from pvebench.runner.prepare import Evidence, Ready, Setup
from pvebench.runner.steady import settle, slopes
from pvebench.runner.window import Window, condition_samples, network_samples, window_samples
from pvebench.workloads import TOOLS, Parsed

Boot = tuple[Machine, Bus | None]
"""VM, which also boots for cases without one, and the bus of a disk that it starts with."""
Report = Callable[[Case, Phase, float], None]
"""Called with a case, the phase that it enters and its expected seconds; 0: unknown."""

# --- fault of a storage during a workload, if the settings define one

_LONGEST_SECONDS: Final = 600.0
"""Maximum wait after the workload's end; the next case needs an undisturbed storage."""


class Disturbance:
    """Fault of one run; does nothing if the workload names none."""

    def __init__(self, site: Site, case: Case) -> None:
        self._clock = site.clock
        self._name = str(case.workload.parameters.get("fault", ""))
        self._fault = site.storages.faults.get((case.scenario.storage, self._name))
        self._begun = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader of the run."""
        text = f"no fault was caused: the storage's settings define no fault {self._name}"
        return (text,) if self._name and not self._begun else ()

    def begin(self) -> None:
        """Begin the fault. Raises FaultFailed."""
        if self._name and self._fault is not None:
            self._fault.begin()
            self._begun = True

    def samples(self) -> list[Sample]:
        """Wait for the fault's end; return its duration. Raises FaultFailed."""
        if self._fault is None or not self._begun:
            return []
        deadline = self._clock.monotonic() + _LONGEST_SECONDS
        while (seconds := self._fault.lasted()) is None:
            if self._clock.monotonic() > deadline:
                raise FaultFailed(f"fault {self._name} did not end")
            self._clock.sleep(0.1)
        return [FAULT_TIME.sample(seconds)]


CACHED_LIMIT: Final = 0.01
"""Maximum share of the volume in the host's page cache before a run."""
UNCOUNTED: Final = (
    "no I/O counters for this storage: the start of the tool's I/O is unknown, and so is the share "
    "that caches answered; bytes written are an upper limit"
)
"""Note on a run whose volume is on no device with counters."""


class Runner:
    """Execution of cases on one site, one at a time, in the thread of its worker.

    Args:
        report: called at each step, in the thread of the worker; must be quick and must not raise.
        host_rates: rates of the host case with a case's workload on its storage.
        identities: recorded identity of each storage; None: no check.
    """

    def __init__(
        self,
        site: Site,
        report: Report,
        host_rates: Callable[[Case], HostRates] = lambda _: {},
        identities: IdentityRecords | None = None,
    ) -> None:
        self._site = site
        self._report = report
        self._host_rates = host_rates
        self._identities = identities
        self._setup = Setup(site)
        self._companions = Companions(site)
        self._cycle = ""
        self._boots: dict[Boot, str] = {}
        """Boots of this cycle, and the error if it failed at first: each attempt takes minutes."""
        self._counted: tuple[Attachment | None, int] = None, 0
        """An attachment, and the bytes written to it by runs that have ended."""

    def run(self, case: Case, *, cycle: str, conduct: Conduct) -> Run:
        """Return the finished run of `case`, with any outcome.

        Raises:
            Interrupted: a stop was requested; the case has no run then.
        """
        if cycle != self._cycle:
            self._cycle, self._boots = cycle, {}
        boot = _boot_of(case.scenario)
        if why := self._boots.get(boot) or self._boots.get((case.scenario.machine, None)):
            reason = f"not run: its guest did not boot in this cycle: {why}"
            return self.skip(case, cycle=cycle, reason=reason)
        begun = self._site.clock.monotonic()
        run = self._begun(case, cycle)
        self._execute(run, conduct)
        if case.workload.during:
            self._end_operation(run)
        # The wall clock may be set during the run, as soon after boot: the later reading counts.
        lasted = timedelta(seconds=self._site.clock.monotonic() - begun)
        return self._ended(run, lasted)

    def skip(self, case: Case, *, cycle: str, reason: str) -> Run:
        """Return a skipped run of `case` with the reason."""
        run = self._begun(case, cycle)
        run.fail(Outcome.SKIPPED, reason)
        return self._ended(run, timedelta())

    def _begun(self, case: Case, cycle: str) -> Run:
        now, unknown = self._site.clock.now(), Environment(node=case.scenario.node, facts={})
        return Run(
            uid=uuid.uuid4().hex,
            case=case,
            environment=unknown,
            cycle=cycle,
            started=now,
            finished=now,
        )

    def _ended(self, run: Run, lasted: timedelta) -> Run:
        run.environment = self._setup.environment or self._site.hypervisor.host_environment()
        run.finished = self._site.clock.now()
        run.started = run.finished - lasted
        return run

    def _end_operation(self, run: Run) -> None:
        """Detach the disk, so that backups and copies of it end with its run."""
        self._setup.mark_unverified()
        locked = run.outcome is Outcome.SKIPPED and run.retryable
        if not locked:
            self._setup.release()

    def _execute(self, run: Run, conduct: Conduct) -> None:
        """Measure the case of a run; each error is its outcome. Raises Interrupted."""
        try:
            try:
                self._measure(run, conduct)
            finally:
                run.written_bytes = self._count_written(run.case)
                if run.case.workload.further_vms:
                    run.written_bytes += self._companions.end()
        except Interrupted:
            raise
        except Invalid as error:
            run.fail(Outcome.INVALID, str(error))
        except PvebenchError as error:
            # Nothing was done then. A lock of the VM ends without action, a full storage does not.
            skipped = isinstance(error, NoSpace | Busy)
            run.fail(Outcome.SKIPPED if skipped else Outcome.FAILED, error.reason)
            run.retryable = error.retryable
            if isinstance(error, NeverBooted):
                # One that has booted in this cycle may boot again.
                run.retryable = not self._boots.setdefault(
                    _boot_of(run.case.scenario), error.reason
                )
            run.evidence.update(_error_evidence(error))
            if isinstance(error, DriverError) and not skipped:
                self._setup.mark_unverified()
        except OSError as error:
            # A failing disk under the volume is a result, not a reason to end the service.
            run.fail(Outcome.FAILED, f"{type(error).__name__}: {error}")
            run.evidence["error"] = run.reason
            self._setup.mark_unverified()
        except Exception as error:
            # Unexpected errors, such as unforeseen output, fail only this case. The traceback is
            # kept for the fix.
            log.exception("run failed with an internal error", case=run.case.slug)
            run.fail(Outcome.FAILED, f"internal error: {type(error).__name__}")
            run.evidence["error"] = traceback.format_exc()
            self._setup.mark_unverified()

    def renew(self) -> None:
        """End the VM, so that the next run uses the software installed by then.

        Raises:
            DriverError: the VM does not end; the next run tries again.
        """
        self._setup.renew()

    def _count_written(self, case: Case) -> int:
        """Return the bytes that this run wrote; without counters, the upper limit."""
        cooling, filling = self._setup.take_written()
        attached = self._setup.attachment
        if attached is None:
            return cooling
        before = self._counted[1] if self._counted[0] is attached else 0
        try:
            counted = self._site.hypervisor.counters()
        except DriverError:
            counted = None
        if counted is not None:
            total = counted.write_bytes
        else:
            tool = TOOLS[case.workload.tool]
            estimate = tool.estimate(case.workload.as_loaded, case.scenario.volume_bytes)
            total = before + filling + estimate.bytes_written
        self._counted = attached, total
        return cooling + max(0, total - before)

    def close(self) -> None:
        """End the VMs and remove the volumes."""
        try:
            self._companions.close()
        finally:
            self._setup.close()

    def _measure(self, run: Run, conduct: Conduct) -> None:
        case = run.case

        def report(phase: Phase, seconds: float = 0.0) -> None:
            self._report(case, phase, seconds)

        tool = TOOLS[case.workload.tool]
        self._check_storage(case, run.evidence)  # before anything is written to it
        first = case.workload.first_touch
        ready = self._setup.ready(
            case.scenario, report, run.evidence, fresh=tool.fresh_boot, first=first
        )
        self._boots.setdefault(_boot_of(case.scenario), "")
        team = self._companions.gather(case, report)
        report(Phase.SETTLE, conduct.settle_seconds)
        self._site.clock.sleep(conduct.settle_seconds)
        filled = self._setup.contents.holds(ready.volume, case.scenario.layout)
        if case.workload.spoils or (first and Direction.WRITE in case.workload.directions):
            self._setup.contents.lost(ready.volume)
        if case.workload.steady is not None:
            self._check_cache(ready.volume, run.evidence)
            report(Phase.SETTLE, case.workload.steady.limit_seconds)
            rule = case.workload.steady
            settled = settle(self._site, ready.guest, case.workload, ready.target, rule)
            run.add(settled.samples())
            run.evidence["steady_rates"] = "\n".join(f"{rate:.1f}" for rate in settled.rates)
            if not settled.steady:
                run.demote(Outcome.NOT_STEADY, settled.reason())
        if ready.boot_seconds:
            run.add([BOOT_TIME.sample(ready.boot_seconds)])
        self._check_storage(case, run.evidence)  # the preparation may have taken hours
        parsed, measured = self._run_workload(run, ready, team)
        self._judge(run, ready, measured, filled=filled)
        uneven = case.workload.parameters.get("fault") or case.workload.during  # on purpose
        if not uneven and (reason := noise_reason(run.samples, conduct, parsed)):
            run.demote(Outcome.NOISY, reason)

    def _check_storage(self, case: Case, evidence: Evidence) -> None:
        if self._identities is not None:
            check_identity(self._site, case.scenario.storage, self._identities, evidence)

    def _check_cache(self, volume: Volume, evidence: Evidence, team: Team | None = None) -> None:
        all_cached = [self._site.hypervisor.drop_caches(volume)]
        all_cached += team.drop_caches() if team else []
        measured = [cached for cached in all_cached if cached is not None]
        cached = max(measured) if len(measured) == len(all_cached) else None
        evidence["host_cached_bytes"] = "unknown" if cached is None else str(cached)
        if cached is not None and cached > CACHED_LIMIT * volume.size_bytes:
            raise Invalid(
                f"{cached} bytes of the volume stay in the host's page cache; "
                "another process probably uses the volume, or it is on a tmpfs"
            )

    def _run_workload(self, run: Run, ready: Ready, team: Team | None) -> tuple[Parsed, Measured]:
        case = with_bins(run.case)
        workload, tool = case.workload, TOOLS[case.workload.tool]
        network = self._site.storages.networks.get(case.scenario.storage)
        run.add(network_samples(network if workload.directions else None))
        job = tool.job(workload, ready.target)
        run.evidence["command"] = " ".join(job.argv)
        for path, content in job.files.items():
            run.evidence[path.rpartition("/")[2]] = content.decode("utf-8")
        disturbance, watch = Disturbance(self._site, case), Watch(self._site, case, team)
        everyone = team
        team = team if workload.vms > 1 else None

        def disturb() -> None:
            disturbance.begin()
            watch.begin()

        measured = run_job(
            team.site if team else self._site,
            team.lead(ready.guest, case, job) if team else ready.guest,
            job,
            Window(
                ramp_seconds=workload.ramp_seconds,
                runtime_seconds=workload.runtime_seconds,
                disturb=disturb,
                wait=watch.wait,
                ended=watch.end,
                depth=in_flight(case),
                uncached=job.moves_data and Caveat.CACHE not in workload.caveats,
            ),
            report=lambda phase, seconds: self._report(case, phase, seconds),
            prepared=lambda: self._check_cache(ready.volume, run.evidence, everyone),
        )
        watch.close()
        if team:
            (output, logs), together = team.merged(case, (measured.output, measured.logs))
            measured = dataclasses.replace(measured, output=output, logs=logs)
            run.add(together)
        run.evidence.update(output=measured.output, host=_host(measured), **measured.logs)
        parsed = tool.parse(workload, measured.output, measured.logs)
        run.add(disturbance.samples())
        figures, effects = watch.samples()
        run.add(figures)
        run.evidence.update(watch.evidence)
        uncounted = (UNCOUNTED,) * (measured.end.block is None)
        if notes := (*measured.notes, *uncounted, *parsed.notes, *disturbance.notes, *effects):
            run.evidence["notes"] = "\n".join(notes)
        run.add([*parsed.samples, *measured.activity.samples(), *slopes(parsed)])
        if workload.runtime_seconds or not job.timed:
            window = window_samples(measured.start, measured.end)
            window = of_all(window) if team else window
            in_vm = case.scenario.disk.in_vm  # without a VM there are no QEMU counters
            run.add(s for s in window if in_vm or not s.metric.startswith("qemu_"))
        seen = self._site.storages.seen.get(case.scenario.storage, {})
        conditions = {**seen, **ready.attachment.conditions, **measured.end.host.conditions}
        run.add(condition_samples(case, conditions, local=ready.volume.local))
        return parsed, measured

    def _judge(self, run: Run, ready: Ready, measured: Measured, *, filled: bool) -> None:
        plausibility = check_run(
            run.case,
            run.samples,
            host_cpus=measured.end.host.cpus,
            local=ready.volume.local,
            filled=filled,
            host=self._host_rates(run.case),
            simulated=self._site.simulated,
        )
        run.add(plausibility.samples)
        if plausibility.implausibilities:
            run.demote(Outcome.IMPLAUSIBLE, plausibility.reason)


def _boot_of(scenario: Scenario) -> Boot:
    disk = scenario.disk
    return scenario.machine, disk.bus if disk.cold and disk.in_vm else None


def _error_evidence(error: PvebenchError) -> dict[str, str]:
    if isinstance(error, ToolStuck):  # its evidence is long and deserves a file of its own
        return {"error": str(error), "stuck": error.evidence}
    return {"error": f"{error}\n\n{error.evidence}".strip()}


def _host(measured: Measured) -> str:
    marks = {"start": measured.start, "end": measured.end}
    return json.dumps(
        {name: dataclasses.asdict(mark) for name, mark in marks.items()}, indent=1, default=dict
    )
