"""The steps of a run, in order, and what becomes of an error in each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from typing import Final

from pvebench.errors import DriverError, Interrupted, PvebenchError
from pvebench.model.environment import Environment
from pvebench.model.ports import Attachment, Guest, Site, Volume
from pvebench.model.run import Outcome, Run, Sample
from pvebench.model.scenario import Scenario
from pvebench.model.status import Phase
from pvebench.model.workload import Case, Direction
from pvebench.runner.measure import Measured, finish_job, run_job, start_job, wait_for_end
from pvebench.runner.observer import Observer
from pvebench.runner.verify import mismatch
from pvebench.runner.window import window_samples
from pvebench.workloads import ROOMS, Target
from pvebench.workloads.fio import check_fill, fill_job

CACHED_LIMIT: Final = 0.01
"""Share of the volume that may stay in the host's page cache before a run."""


class _Invalid(Exception):  # not an error: a run that does not count
    """The run is not what was asked for."""


@dataclasses.dataclass(slots=True)
class _Attached:
    """What is plugged in: whose options, which volume, where in the guest."""

    scenario: Scenario
    volume: Volume
    attachment: Attachment


class Runner:
    """Executes cases on one site, one at a time, in the thread of its worker."""

    def __init__(self, site: Site, observer: Observer) -> None:
        self._site = site
        self._observer = observer
        self._guest: Guest | None = None
        self._attached: _Attached | None = None
        self._filled: set[str] = set()
        self._environment: Environment | None = None
        self._suspect = False

    def run(self, case: Case, *, cycle: str, settle_seconds: float) -> Run:
        """Return the finished run of `case`, whatever came of it.

        Raises:
            Interrupted: a stop was requested; the case has no run then.
        """
        started = self._site.clock.now()
        evidence: dict[str, str] = {}
        samples: tuple[Sample, ...] = ()
        outcome, reason, retryable = Outcome.OK, "", False
        try:
            self._recover()
            samples = self._measure(case, settle_seconds, evidence)
        except Interrupted:
            raise
        except _Invalid as error:
            outcome, reason = Outcome.INVALID, str(error)
        except PvebenchError as error:
            outcome, reason, retryable = Outcome.FAILED, error.reason, error.retryable
            evidence["error"] = f"{error}\n\n{error.evidence}".strip()
            if isinstance(error, DriverError):
                self._distrust()
        except OSError as error:
            # A failing disk under the volume is a result, not a reason to end the service.
            outcome, reason = Outcome.FAILED, f"{type(error).__name__}: {error}"
            evidence["error"] = reason
            self._distrust()
        return Run(
            uid=uuid.uuid4().hex,
            case=case,
            environment=self._known_environment(),
            cycle=cycle,
            started=started,
            finished=self._site.clock.now(),
            outcome=outcome,
            reason=reason,
            samples=samples,
            evidence=evidence,
            retryable=retryable,
        )

    def _distrust(self) -> None:
        """Whatever is plugged in now may not be what it should be."""
        self._attached = None
        self._suspect = True

    def _recover(self) -> None:
        """After a run that the VM did not survive well: take the disk out, or give the VM up.

        A guest whose I/O hangs may still answer its agent. If it does not let go of the disk,
        the driver restarts the VM at the next boot, so the next case pays time but does not fail.
        """
        if self._suspect:
            self._suspect = False
            with contextlib.suppress(DriverError):
                self._site.hypervisor.detach()

    def close(self) -> None:
        """End the VM and remove the volumes."""
        self._guest = self._attached = None
        self._filled.clear()
        self._site.hypervisor.shutdown()

    def _measure(
        self, case: Case, settle_seconds: float, evidence: dict[str, str]
    ) -> tuple[Sample, ...]:
        guest = self._boot(case)
        attached = self._attach(case, evidence)
        self._fill(case, guest, attached)
        self._tell(case, Phase.SETTLE, settle_seconds)
        self._site.clock.sleep(settle_seconds)
        self._check_cache(attached.volume, evidence)
        return self._run_workload(case, guest, attached, evidence)

    def _tell(self, case: Case, phase: Phase, seconds: float = 0.0) -> None:
        self._observer.phase(case, phase, seconds)

    def _boot(self, case: Case) -> Guest:
        self._tell(case, Phase.BOOT)
        guest = self._site.hypervisor.boot(case.scenario.machine)
        if guest is not self._guest:
            self._guest = self._attached = self._environment = None
            self._environment = self._site.hypervisor.environment()
            self._guest = guest
        return guest

    def _attach(self, case: Case, evidence: dict[str, str]) -> _Attached:
        if self._attached is None or self._attached.scenario != case.scenario:
            self._tell(case, Phase.ATTACH)
            self._attached = None
            hypervisor = self._site.hypervisor
            hypervisor.detach()
            volume, new = hypervisor.volume(case.scenario)
            if new:
                self._filled.discard(volume.volid)
            attachment = hypervisor.attach(volume, case.scenario.disk)
            self._attached = _Attached(case.scenario, volume, attachment)
        attachment = self._attached.attachment
        evidence["effective"] = json.dumps(dict(attachment.effective), indent=1, sort_keys=True)
        evidence["hypervisor"] = attachment.raw
        wrong = mismatch(case.scenario, attachment)
        if wrong:
            raise _Invalid(f"the disk is not what was asked for: {wrong}")
        return self._attached

    def _fill(self, case: Case, guest: Guest, attached: _Attached) -> None:
        """Write random data once over the whole of a new volume: holes and zeros read too fast."""
        volume = attached.volume
        if volume.volid in self._filled:
            return
        self._tell(case, Phase.FILL)
        target = Target(device=attached.attachment.device, size_bytes=volume.size_bytes)
        job = fill_job(target, seed=1)
        pid = start_job(guest, job)
        deadline = self._site.clock.monotonic() + job.deadline_seconds
        ended = wait_for_end(self._site, guest, pid, deadline=deadline)
        check_fill(finish_job(guest, job, ended), target)
        self._filled.add(volume.volid)

    def _check_cache(self, volume: Volume, evidence: dict[str, str]) -> None:
        cached = self._site.hypervisor.drop_caches(volume)
        evidence["host_cached_bytes"] = str(cached)
        if cached > CACHED_LIMIT * volume.size_bytes:
            raise _Invalid(
                f"{cached} bytes of the volume stay in the host's page cache; "
                f"another process seems to use it"
            )

    def _run_workload(
        self, case: Case, guest: Guest, attached: _Attached, evidence: dict[str, str]
    ) -> tuple[Sample, ...]:
        workload, room = case.workload, ROOMS[case.workload.tool]
        target = Target(device=attached.attachment.device, size_bytes=case.scenario.volume_bytes)
        job = room.job(workload, target)
        evidence["command"] = " ".join(job.argv)
        for path, content in job.files.items():
            evidence[path.rpartition("/")[2]] = content.decode("utf-8")
        if Direction.TRIM in workload.directions:
            self._filled.discard(attached.volume.volid)  # holes again: the next case fills first
        measured = run_job(
            self._site, guest, job,
            ramp_seconds=workload.ramp_seconds, runtime_seconds=workload.runtime_seconds,
            tell=lambda phase, seconds: self._tell(case, phase, seconds),
        )  # fmt: skip
        evidence |= {"output": measured.output, **measured.logs, "host": _host_text(measured)}
        parsed = room.parse(workload, measured.output, measured.logs)
        if parsed.notes:
            evidence["notes"] = "\n".join(parsed.notes)
        return (*parsed.samples, *window_samples(measured.start, measured.end))

    def _known_environment(self) -> Environment:
        return self._environment or self._site.hypervisor.host_environment()


def _host_text(measured: Measured) -> str:
    marks = {"start": measured.start, "end": measured.end}
    return json.dumps(
        {name: dataclasses.asdict(mark) for name, mark in marks.items()}, indent=1, default=dict
    )
