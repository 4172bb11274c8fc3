"""Running a workload until it is steady, before it is measured.

The rate is watched from outside, by QEMU's counters: one value an interval, the same for every
tool. A fresh or trimmed drive, a cache that is filling or a thin pool that is being mapped is
fast at first; only what comes after says what the storage can keep up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pvebench.analysis.steady import Steadiness, is_steady, steadiness
from pvebench.errors import ToolFailed
from pvebench.model.conduct import SteadyRule
from pvebench.model.ports import Guest, Site
from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Workload
from pvebench.runner.measure import start_job, stop_job, wait_for_io
from pvebench.workloads import ROOMS, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How the wait for steadiness went.

    Attributes:
        rates: I/O per second of each interval.
        found: of the last window; None if there were too few values.
    """

    steady: bool
    seconds: float
    rates: tuple[float, ...]
    found: Steadiness | None

    def samples(self) -> list[Sample]:
        """Return what is kept with the run."""
        kept = [Sample("steady_time", None, self.seconds, Unit.SECONDS)]
        if self.found is not None:
            kept.append(Sample("steady_range", None, self.found.range_ratio, Unit.RATIO))
            kept.append(Sample("steady_slope", None, self.found.slope_ratio, Unit.RATIO))
        return kept

    def reason(self) -> str:
        """Return why it is not steady, in a sentence; empty if it is."""
        if self.steady:
            return ""
        said = f"not steady after {self.seconds:.0f} s"
        if self.found is None:
            return said
        return (
            f"{said}: in the last window the rate ranges over {self.found.range_ratio:.0%} of its "
            f"mean and moves by {self.found.slope_ratio:+.0%}"
        )


def settle(
    site: Site, guest: Guest, workload: Workload, target: Target, rule: SteadyRule
) -> Settled:
    """Run `workload` without measuring until `rule` is met, or its limit is reached.

    Raises:
        ToolFailed, GuestSilent: as a measured run.
    """
    clock = site.clock
    endless = replace(workload, ramp_seconds=0.0, runtime_seconds=rule.limit_seconds + 60)
    job = ROOMS[workload.tool].job(endless, target)
    pid = start_job(guest, job)
    ended = wait_for_io(site, guest, pid)
    if ended is not None:
        raise ToolFailed(f"{job.argv[0]} ended before it could become steady")
    begun = clock.monotonic()
    rates: list[float] = []
    before, then = site.hypervisor.counters().operations, begun
    while not is_steady(rates, rule) and clock.monotonic() - begun < rule.limit_seconds:
        clock.sleep(rule.interval_seconds)
        count, now = site.hypervisor.counters().operations, clock.monotonic()
        rates.append((count - before) / (now - then))
        before, then = count, now
    seconds = clock.monotonic() - begun
    stop_job(site, guest, pid)
    return Settled(
        steady=is_steady(rates, rule), seconds=seconds, rates=tuple(rates),
        found=steadiness(rates[-rule.window :]),
    )  # fmt: skip
