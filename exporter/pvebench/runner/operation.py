"""Effect of an operation on a workload, seen from outside the guest.

The guest's clock stands while its vCPUs are paused, so the counters of its disk time the gaps:
in the lab ten times per second, on Proxmox once per second.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pvebench.errors import DriverError
from pvebench.model.ports import Operation, Progress, Site
from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Case
from pvebench.runner.companions import Team
from pvebench.workloads.fault_dip import find_dip

_RATE_SECONDS: Final = 1.0
_PERCENTILE: Final = 0.99


@dataclass(frozen=True, slots=True)
class Look:
    """State of the disk at a monotonic time in seconds."""

    at: float
    progress: Progress


class Watch:
    """Operation of one run; only waits if the workload names none.

    Args:
        team: the further VMs of the run.
    """

    def __init__(self, site: Site, case: Case, team: Team | None = None) -> None:
        self._clock = site.clock
        parameters = case.workload.parameters
        self._operation: Operation | None = None
        if name := case.workload.during:
            self._operation = site.operate(name, int(parameters.get("target_rate", 0)))
            if team is not None:
                self._operation = team.neighbor(case, self._operation)
            self._operation.prepare()
        self._looks: list[Look] = []
        self._begun: float | None = None
        self._remains = ""

    def wait(self, seconds: float) -> None:
        """Wait; read the disk's counters meanwhile. Raises DriverError, Interrupted."""
        if self._operation is None:
            self._clock.sleep(seconds)
            return
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            self._look(self._operation)
            self._clock.sleep(min(self._operation.look_seconds, left))

    def _look(self, operation: Operation) -> None:
        progress = operation.look()
        self._looks.append(Look(self._clock.monotonic(), progress))

    def begin(self) -> None:
        """Begin the operation. Raises DriverError."""
        if self._operation is not None:
            self._look(self._operation)
            self._begun = self._clock.monotonic()
            self._operation.begin()

    def end(self) -> None:
        """End an operation that still runs, as the guest may wait for it.

        What it leaves must not cost the run its output: the next `detach` removes it.

        Raises:
            OperationFailed, DriverError: the operation failed within the window.
        """
        if self._operation is not None:
            self._look(self._operation)
            try:
                self._operation.cancel()
            except DriverError as error:
                self._remains = error.reason

    @property
    def evidence(self) -> dict[str, str]:
        """Times relative to the begin of the operation, completed I/O and end."""
        begun = self._begun
        if begun is None:
            return {}
        lines = [
            [round(look.at - begun, 3), look.progress.operations, look.progress.ended]
            for look in self._looks
        ]
        return {"operation": json.dumps(lines)}

    def samples(self) -> tuple[list[Sample], tuple[str, ...]]:
        """Return the figures and notes on the run."""
        if self._operation is None or self._begun is None:
            return [], ()
        samples, notes = figures(self._looks, self._begun, self._operation.bounds)
        if self._remains:
            notes = (*notes, f"the operation could not be undone yet: {self._remains}")
        resolution = self._operation.look_seconds
        samples.append(Sample("operation_resolution", None, resolution, Unit.SECONDS))
        return samples, notes


def figures(
    looks: Sequence[Look], begun: float, bounds: Sequence[float]
) -> tuple[list[Sample], tuple[str, ...]]:
    """Return the figures of an operation that began at `begun`, and notes.

    Args:
        looks: in order, over the whole window.
        bounds: upper bounds of the latency bins.
    """
    ended = next((look.at for look in looks if look.at > begun and look.progress.ended), None)
    before = [look for look in looks if look.at <= begun]
    during = [before[-1], *(one for one in looks if begun < one.at <= (ended or looks[-1].at))]
    after = [one for one in looks if ended is not None and one.at >= ended]
    samples = [
        Sample("operation_gap", None, longest_gap(looks, begun), Unit.SECONDS),
        Sample("operation_lost", None, _lost(before, looks[-1]), Unit.OPERATIONS),
        Sample("operation_bytes", None, looks[-1].progress.bytes, Unit.BYTES),
    ]
    for name, part in (("before", before), ("during", during), ("after", after)):
        if (value := percentile(part, bounds)) is not None:
            samples.append(Sample("operation_p99", None, value, Unit.SECONDS, name))
    dip = find_dip(rates(looks), _RATE_SECONDS)
    if dip is not None and dip.recovery is not None:
        samples.append(Sample("operation_recovery", None, dip.recovery, Unit.SECONDS))
    if ended is None:
        return samples, ("the operation had not ended when the window ended; it was canceled",)
    return [*samples, Sample("operation_time", None, ended - begun, Unit.SECONDS)], ()


def longest_gap(looks: Sequence[Look], begun: float) -> float:
    """Return the longest time without completed I/O that lasted beyond `begun`, in seconds."""
    last, longest = looks[0].at, 0.0
    for one, then in pairwise(looks):
        moved = then.progress.operations > one.progress.operations
        if then.at > begun:
            longest = max(longest, then.at - last)
        if moved:
            last = then.at
    return longest


def percentile(looks: Sequence[Look], bounds: Sequence[float]) -> float | None:
    """Return the upper bound of the bin with the 99th percentile of the completed I/O."""
    if len(looks) < 2 or not bounds:
        return None
    first, last = looks[0].progress.latencies, looks[-1].progress.latencies
    bins = [end - begin for begin, end in zip(first, last, strict=True)]
    total, seen = sum(bins), 0
    for count, bound in zip(bins, (*bounds, bounds[-1]), strict=True):
        seen += count
        if total and seen >= _PERCENTILE * total:
            return bound
    return None


def rates(looks: Sequence[Look]) -> list[float]:
    """Return the completed I/O per second, for each whole second."""
    times = [look.at for look in looks]
    seconds = int((times[-1] - times[0]) / _RATE_SECONDS)
    marks = [
        looks[bisect_right(times, times[0] + number * _RATE_SECONDS) - 1].progress.operations
        for number in range(seconds + 1)
    ]
    return [(end - begin) / _RATE_SECONDS for begin, end in pairwise(marks)]


def _lost(before: Sequence[Look], last: Look) -> float:
    """Return the I/O that the rate before would have completed until the end, but was not."""
    first, begun = before[0], before[-1]
    quiet = begun.at - first.at
    rate = (begun.progress.operations - first.progress.operations) / quiet if quiet > 0 else 0.0
    done = last.progress.operations - begun.progress.operations
    return max(0.0, rate * (last.at - begun.at) - done)
