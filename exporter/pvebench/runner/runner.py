"""The steps of a run, in order, and what becomes of an error in each."""

from __future__ import annotations

import dataclasses
import json
import traceback
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

import structlog

from pvebench.errors import (
    Busy,
    DriverError,
    FaultFailed,
    Interrupted,
    NoSpace,
    PvebenchError,
    ToolStuck,
)
from pvebench.model.environment import Environment
from pvebench.model.ports import Site
from pvebench.model.run import Outcome, Run, Sample, Unit
from pvebench.model.status import Phase
from pvebench.model.volume import Attachment, IdentityRecords, Volume
from pvebench.model.workload import Case, Conduct
from pvebench.runner.measure import Invalid, Measured, Window, check_identity, run_job
from pvebench.runner.outcome import Circumstances, HostRates, Result, judge, slopes
from pvebench.runner.prepare import Evidence, Ready, Setup
from pvebench.runner.steady import settle
from pvebench.runner.window import condition_samples, network_samples, window_samples
from pvebench.workloads import TOOLS, Parsed

# --- Who wants to know what the runner does.


class RunObserver(Protocol):
    """Told about every step, in the worker's thread; must be quick and must not raise."""

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """`case` enters `phase`, which is expected to take `seconds` (0: unknown)."""

    def finished(self, run: Run) -> None:
        """A run has ended and is stored."""


class Observers:
    """Several observers as one."""

    def __init__(self, members: Sequence[RunObserver]) -> None:
        self._members = tuple(members)

    def phase(self, case: Case, phase: Phase, seconds: float) -> None:
        """Tell all."""
        for member in self._members:
            member.phase(case, phase, seconds)

    def finished(self, run: Run) -> None:
        """Tell all."""
        for member in self._members:
            member.finished(run)


# --- The fault that is made of a storage while a workload runs on it, if its settings name one.

_LONGEST_SECONDS: Final = 600.0
"""After the workload's end; the next case must not find the storage disturbed."""


class Disturbance:
    """The fault of one run; nothing happens where the workload wants none."""

    def __init__(self, site: Site, case: Case) -> None:
        self._clock = site.clock
        self._name = str(case.workload.parameters.get("fault", ""))
        self._fault = site.faults.get((case.scenario.storage, self._name))
        self._begun = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the run should know."""
        if not self._name or self._begun:
            return ()
        return (f"pvebench did nothing to the storage: its settings name no fault {self._name}",)

    def begin(self) -> None:
        """Make the fault. Raises FaultFailed."""
        if self._name and self._fault is not None:
            self._fault.begin()
            self._begun = True

    def samples(self) -> list[Sample]:
        """Wait until it is over; return how long it lasted. Raises FaultFailed."""
        if self._fault is None or not self._begun:
            return []
        deadline = self._clock.monotonic() + _LONGEST_SECONDS
        while (seconds := self._fault.lasted()) is None:
            if self._clock.monotonic() > deadline:
                raise FaultFailed(f"fault {self._name} does not end")
            self._clock.sleep(0.1)
        return [Sample("fault_time", None, seconds, Unit.SECONDS)]


log = structlog.get_logger()

CACHED_LIMIT: Final = 0.01
"""Share of the volume that may stay in the host's page cache before a run."""
UNCOUNTED: Final = (
    "nothing here counts what reaches the storage: when the tool's I/O began is not known, nor "
    "whether it reached the storage or was answered by a cache on the way; bytes written are the "
    "most that they can be"
)
"""Note on a run whose volume lies on no device with counters."""


def _no_host_rates(case: Case) -> HostRates:
    del case
    return {}


class Runner:
    """Executes cases on one site, one at a time, in the thread of its worker.

    Args:
        host_rates: what the host itself reached with a case's workload on its storage.
        identities: which storage each is to be; None: any.
    """

    def __init__(
        self,
        site: Site,
        observer: RunObserver,
        host_rates: Callable[[Case], HostRates] = _no_host_rates,
        identities: IdentityRecords | None = None,
    ) -> None:
        self._site = site
        self._observer = observer
        self._host_rates = host_rates
        self._identities = identities
        self._setup = Setup(site)
        self._counted: tuple[Attachment | None, int] = None, 0
        """An attachment, and how much written to it belongs to runs that have ended."""

    def run(self, case: Case, *, cycle: str, conduct: Conduct) -> Run:
        """Return the finished run of `case`, whatever came of it.

        Raises:
            Interrupted: a stop was requested; the case has no run then.
        """
        begun = self._site.clock.monotonic()
        result = self._tried(case, conduct)
        # The wall clock may be set in between, as it is soon after boot: the later reading counts.
        finished = self._site.clock.now()
        lasted = timedelta(seconds=self._site.clock.monotonic() - begun)
        return Run(
            uid=uuid.uuid4().hex,
            case=case,
            environment=self._known_environment(),
            cycle=cycle,
            started=finished - lasted,
            finished=finished,
            outcome=result.outcome,
            reason=result.reason,
            samples=tuple(result.samples),
            evidence=dict(result.evidence),
            written_bytes=result.written_bytes,
            retryable=result.retryable,
        )

    def _tried(self, case: Case, conduct: Conduct) -> Result:
        """Return what came of measuring `case`. Raises Interrupted."""
        result = Result()
        try:
            try:
                self._measure(case, conduct, result)
            finally:
                result.written_bytes = self._count_written(case)
        except Interrupted:
            raise
        except (NoSpace, Busy) as error:
            # Nothing was done. What holds the VM ends by itself, room must be made by somebody.
            result.fail(Outcome.SKIPPED, error.reason)
            result.retryable = error.retryable
            result.evidence.update(_told(error))
        except Invalid as error:
            result.fail(Outcome.INVALID, str(error))
        except PvebenchError as error:
            result.fail(Outcome.FAILED, error.reason)
            result.retryable = error.retryable
            result.evidence.update(_told(error))
            if isinstance(error, DriverError):
                self._setup.distrust()
        except OSError as error:
            # A failing disk under the volume is a result, not a reason to end the service.
            result.fail(Outcome.FAILED, f"{type(error).__name__}: {error}")
            result.evidence["error"] = result.reason
            self._setup.distrust()
        except Exception as error:
            # Our own mistake, such as an output that no parser expected: one case pays for it,
            # with all that is needed to mend it, and the others go on.
            log.exception("a run failed by a fault of pvebench", case=case.slug)
            result.fail(Outcome.FAILED, f"a fault of pvebench: {type(error).__name__}")
            result.evidence["error"] = traceback.format_exc()
            self._setup.distrust()
        return result

    def skip(self, case: Case, *, cycle: str, reason: str) -> Run:
        """Return a run of `case` that was not made, with the reason."""
        now = self._site.clock.now()
        return Run(
            uid=uuid.uuid4().hex,
            case=case,
            environment=self._known_environment(),
            cycle=cycle,
            started=now,
            finished=now,
            outcome=Outcome.SKIPPED,
            reason=reason,
        )

    def renew(self) -> None:
        """End the VM, so that the next run is made with what is installed by then.

        Raises:
            DriverError: it does not end; the next run tries again.
        """
        self._setup.renew()

    def _count_written(self, case: Case) -> int:
        """Return the bytes that this run wrote; where nobody can tell, the most it may have."""
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
            room = TOOLS[case.workload.tool]
            estimate = room.estimate(case.workload, case.scenario.volume_bytes)
            total = before + filling + estimate.bytes_written
        self._counted = attached, total
        return cooling + max(0, total - before)

    def close(self) -> None:
        """End the VM and remove the volumes."""
        self._setup.close()

    def _measure(self, case: Case, conduct: Conduct, result: Result) -> None:
        def tell(phase: Phase, seconds: float = 0.0) -> None:
            self._observer.phase(case, phase, seconds)

        room = TOOLS[case.workload.tool]
        self._check_storage(case, result.evidence)  # before anything is written to it
        ready = self._setup.ready(case.scenario, tell, result.evidence, fresh=room.fresh_boot)
        tell(Phase.SETTLE, conduct.settle_seconds)
        self._site.clock.sleep(conduct.settle_seconds)
        result.filled = self._setup.filled(ready)
        if case.workload.spoils:
            self._setup.spoil(ready.volume)
        if case.workload.steady is not None:
            self._check_cache(ready.volume, result.evidence)
            tell(Phase.SETTLE, case.workload.steady.limit_seconds)
            rule = case.workload.steady
            settled = settle(self._site, ready.guest, case.workload, ready.target, rule)
            result.settled(settled)
        if ready.boot_seconds:
            result.samples.append(Sample("boot_time", None, ready.boot_seconds, Unit.SECONDS))
        self._check_storage(case, result.evidence)  # to prepare it may have taken hours
        parsed = self._run_workload(case, ready, result)
        if not case.workload.parameters.get("fault"):  # it is to make the rate uneven
            result.judge_noise(conduct, parsed)

    def _check_storage(self, case: Case, evidence: Evidence) -> None:
        if self._identities is not None:
            check_identity(self._site, case.scenario.storage, self._identities, evidence)

    def _check_cache(self, volume: Volume, evidence: Evidence) -> None:
        cached = self._site.hypervisor.drop_caches(volume)
        evidence["host_cached_bytes"] = "unknown" if cached is None else str(cached)
        if cached is not None and cached > CACHED_LIMIT * volume.size_bytes:
            raise Invalid(
                f"{cached} bytes of the volume stay in the host's page cache; "
                f"another process seems to use it"
            )

    def _run_workload(self, case: Case, ready: Ready, result: Result) -> Parsed:
        workload, room = case.workload, TOOLS[case.workload.tool]
        if workload.directions:
            result.samples += network_samples(self._site.networks.get(case.scenario.storage))
        job = room.job(workload, ready.target)
        result.evidence["command"] = " ".join(job.argv)
        for path, content in job.files.items():
            result.evidence[path.rpartition("/")[2]] = content.decode("utf-8")
        disturbance = Disturbance(self._site, case)
        measured = run_job(
            self._site,
            ready.guest,
            job,
            Window(
                ramp_seconds=workload.ramp_seconds,
                runtime_seconds=workload.runtime_seconds,
                disturb=disturbance.begin,
            ),
            tell=lambda phase, seconds: self._observer.phase(case, phase, seconds),
            prepared=lambda: self._check_cache(ready.volume, result.evidence),
        )
        result.evidence.update(output=measured.output, host=_host(measured), **measured.logs)
        parsed = room.parse(workload, measured.output, measured.logs)
        result.samples += disturbance.samples()
        uncounted = (UNCOUNTED,) * (measured.end.block is None)
        if notes := (*measured.notes, *uncounted, *parsed.notes, *disturbance.notes):
            result.evidence["notes"] = "\n".join(notes)
        result.samples += parsed.samples
        result.samples += slopes(parsed)
        if workload.runtime_seconds or not job.timed:
            found = window_samples(measured.start, measured.end)
            in_vm = case.scenario.disk.in_vm  # elsewhere there is no QEMU that could count
            result.samples += [s for s in found if in_vm or not s.metric.startswith("qemu_")]
        seen = self._site.seen.get(case.scenario.storage, {})
        result.samples += condition_samples(
            case,
            {**seen, **ready.attachment.conditions, **measured.end.host.conditions},
            local=ready.volume.local,
        )
        self._judge_honesty(case, ready, measured, result)
        return parsed

    def _judge_honesty(self, case: Case, ready: Ready, measured: Measured, result: Result) -> None:
        around = Circumstances(
            host_cpus=measured.end.host.cpus,
            local=ready.volume.local,
            filled=result.filled,
            host=self._host_rates(case),
        )
        judgement = judge(case, result.samples, around)
        result.samples += judgement.samples
        if judgement.implausibilities:
            result.demote(Outcome.IMPLAUSIBLE, judgement.reason)

    def _known_environment(self) -> Environment:
        return self._setup.environment or self._site.hypervisor.host_environment()


def _told(error: PvebenchError) -> dict[str, str]:
    if isinstance(error, ToolStuck):  # what it tells is long, and looked at on its own
        return {"error": str(error), "stuck": error.evidence}
    return {"error": f"{error}\n\n{error.evidence}".strip()}


def _host(measured: Measured) -> str:
    marks = {"start": measured.start, "end": measured.end}
    return json.dumps(
        {name: dataclasses.asdict(mark) for name, mark in marks.items()}, indent=1, default=dict
    )
