"""Settling of a workload before it is measured, until its rate is steady.

The rule is that of SNIA's Solid State Storage Performance Test Specification. Only the latest
window of per-interval values counts: a cumulative mean would still contain the first seconds of a
cache hours later.

The rate comes from QEMU's counters: one value per interval, the same for every tool. A fresh or
trimmed drive, a cache that is filling or a thin pool that is being mapped is fast at first; only
the rate afterwards is sustained performance.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pvebench.errors import ToolFailed
from pvebench.model.guest import Guest
from pvebench.model.ports import Site
from pvebench.model.run import Sample
from pvebench.model.run_metrics import IOPS_SLOPE, STEADY_RANGE, STEADY_SLOPE, STEADY_TIME
from pvebench.model.workload import Direction, SteadyRule, Workload
from pvebench.runner.measure import start_job, stop_job, wait_for_io
from pvebench.workloads import TOOLS, Parsed, Target


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Steadiness of a series of values.

    Attributes:
        range_ratio: (maximum - minimum) / mean of the window.
        slope_ratio: change of the fitted line from the first to the last value of the window,
            over the mean; negative: falling.
    """

    range_ratio: float
    slope_ratio: float

    def within(self, rule: SteadyRule) -> bool:
        """Return whether both values are within the rule's limits."""
        return self.range_ratio <= rule.range_ratio and abs(self.slope_ratio) <= rule.slope_ratio


def steadiness(values: Sequence[float]) -> Steadiness | None:
    """Return the steadiness of a whole series; None for fewer than three values or a mean of 0."""
    if len(values) < 3:
        return None
    mean = statistics.fmean(values)
    if mean <= 0:
        return None
    slope = statistics.linear_regression(range(len(values)), values).slope
    excursion = slope * (len(values) - 1)
    return Steadiness((max(values) - min(values)) / mean, excursion / mean)


def slopes(parsed: Parsed) -> list[Sample]:
    """Return the slope of the rate within the measured window, for each direction."""
    series = {name: steadiness(values) for name, values in parsed.intervals.items()}
    return [
        IOPS_SLOPE.sample(steady.slope_ratio, Direction(name))
        for name, steady in series.items()
        if steady is not None
    ]


def is_steady(values: Sequence[float], rule: SteadyRule) -> bool:
    """Return whether the latest window of `values` (one per interval) is steady."""
    if len(values) < rule.window:
        return False
    steady = steadiness(values[-rule.window :])
    return steady is not None and steady.within(rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Result of settling.

    Attributes:
        rates: I/O per second of each interval.
        found: steadiness of the last window; None: too few values.
        watched: whether I/O counters exist, so that the rate is known.
    """

    steady: bool
    seconds: float
    rates: tuple[float, ...]
    found: Steadiness | None
    watched: bool = True

    def samples(self) -> list[Sample]:
        """Return the samples for the run."""
        samples = [STEADY_TIME.sample(self.seconds)]
        if self.found is not None:
            samples.append(STEADY_RANGE.sample(self.found.range_ratio))
            samples.append(STEADY_SLOPE.sample(self.found.slope_ratio))
        return samples

    def reason(self) -> str:
        """Return why the rate is not steady; empty if it is."""
        if self.steady:
            return ""
        if not self.watched:
            return (
                f"unknown whether steady after {self.seconds:.0f} s: no I/O counters for the volume"
            )
        seen = ""
        if self.found is not None:
            spread, slope = self.found.range_ratio, self.found.slope_ratio
            seen = f": in the last window the rate has a range of {spread:.0%} and a slope of "
            seen += f"{slope:+.0%} of its mean"
        return f"not steady after {self.seconds:.0f} s{seen}; raise `limit` of `steady`"


def settle(
    site: Site, guest: Guest, workload: Workload, target: Target, rule: SteadyRule
) -> Settled:
    """Run `workload` without measuring until `rule` is met, or its limit is reached.

    Without I/O counters it runs to the limit, and the result is not steady.

    Raises:
        ToolFailed, GuestTimeout: as a measured run.
    """
    clock = site.clock
    endless = replace(workload, ramp_seconds=0.0, runtime_seconds=rule.limit_seconds + 60)
    job = TOOLS[workload.tool].job(endless, target)
    pid = start_job(guest, job)
    if job.moves_data and wait_for_io(site, guest, pid) is not None:
        raise ToolFailed(f"{job.argv[0]} ended before its rate was steady")
    begun = clock.monotonic()
    watched = _watch(site, rule) if job.moves_data else None
    rates = watched or []
    if watched is None:
        clock.sleep(rule.limit_seconds)
    seconds = clock.monotonic() - begun
    stop_job(site, guest, pid)
    return Settled(
        steady=is_steady(rates, rule),
        seconds=seconds,
        rates=tuple(rates),
        found=steadiness(rates[-rule.window :]),
        watched=watched is not None,
    )


def _watch(site: Site, rule: SteadyRule) -> list[float] | None:
    """Return the rate of each interval until the rule is met, or its limit reached.

    None: no I/O counters.
    """
    clock = site.clock
    begun = then = clock.monotonic()
    rates: list[float] = []
    before = site.hypervisor.counters()
    while before is not None and not is_steady(rates, rule) and then - begun < rule.limit_seconds:
        clock.sleep(rule.interval_seconds)
        count, now = site.hypervisor.counters(), clock.monotonic()
        if count is not None:
            rates.append((count.operations - before.operations) / (now - then))
        before, then = count, now
    return rates if before is not None else None
