"""Effect of an operation on a workload, seen from outside the guest.

The `operations_under_load` of a driver carry it out. The guest's clock stands while its vCPUs are
paused, so the counters of its disk time the gaps: on local QEMU ten times per second, on Proxmox
once per second.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pvebench.errors import DriverError, OperationFailed
from pvebench.model import run_metrics
from pvebench.model.ports import Operation, Progress, Site
from pvebench.model.run import Sample
from pvebench.model.workload import Case
from pvebench.runner.companions import Team
from pvebench.workloads.fault_dip import NOT_RECOVERED, RATE_SECONDS, find_dip

_UNREAD: Final = "the counters of the disk could not be read for"
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
            rate = int(parameters.get("target_rate", 0))
            self._operation = site.require_vms().operate(name, rate)
            if team is not None:
                self._operation = team.neighbor(case, self._operation)
            self._operation.prepare()
        self._looks: list[Look] = []
        self._begun: float | None = None
        self._goes_on = True
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
            OperationFailed, DriverError: the operation failed.
        """
        if self._operation is not None:
            self._look(self._operation)
            try:
                self._operation.cancel()
            except OperationFailed:
                raise
            except DriverError as error:
                self._remains = error.reason

    def close(self) -> None:
        """Note whether the job did I/O after the window; call it after the end of the job."""
        if self._operation is not None and self._looks:
            with contextlib.suppress(DriverError):
                last = self._operation.look()
                before = self._looks[-1].progress.operations
                self._goes_on = last.operations > before or not last.is_read

    @property
    def evidence(self) -> dict[str, str]:
        """Times relative to the begin of the operation, completed I/O and end."""
        begun = self._begun
        if begun is None:
            return {}
        lines = [
            [round(look.at - begun, 3), look.progress.operations, look.progress.ended]
            for look in self._looks
            if look.progress.is_read
        ]
        return {"operation": json.dumps(lines)}

    def samples(self) -> tuple[list[Sample], tuple[str, ...]]:
        """Return the figures and notes on the run."""
        if self._operation is None or self._begun is None:
            return [], ()
        bounds, goes_on = self._operation.bounds, self._goes_on
        samples, notes = operation_samples(self._looks, self._begun, bounds, goes_on=goes_on)
        if self._remains:
            notes = (*notes, f"the operation could not be undone yet: {self._remains}")
        return samples, notes


def operation_samples(
    looks: Sequence[Look], begun: float, bounds: Sequence[float], *, goes_on: bool = True
) -> tuple[list[Sample], tuple[str, ...]]:
    """Return the figures of an operation that began at `begun`, and notes.

    Args:
        looks: in order, over the whole window.
        bounds: upper bounds of the latency bins.
        goes_on: whether the job did I/O after the window. If not, the time without I/O at the end
            of the window is that after the job.
    """
    ended = next((look.at for look in looks if look.at > begun and look.progress.ended), None)
    silent = _longest_silence(looks)
    looks = [look for look in looks if look.progress.is_read]
    if not looks or looks[0].at > begun:
        return [], ("no counters were read before the operation: its figures are unknown",)
    if not goes_on:
        looks = _until_last_io(looks, begun)
    notes = [f"{_UNREAD} {silent:.1f} s: the longest gap is unknown"] if silent else []
    samples: list[Sample] = []
    if not silent:
        gap, resolution = longest_gap(looks, begun, ended)
        samples += [
            run_metrics.OPERATION_GAP.sample(gap),
            run_metrics.OPERATION_RESOLUTION.sample(resolution),
        ]
    samples += _phases(looks, begun, ended, bounds)
    dip = find_dip(rates(looks), RATE_SECONDS)
    if dip is not None and dip.recovery is not None:
        samples.append(run_metrics.OPERATION_RECOVERY.sample(dip.recovery))
    elif dip is not None:
        notes.append(NOT_RECOVERED)
    if ended is not None:
        samples.append(run_metrics.OPERATION_TIME.sample(ended - begun))
    else:
        notes.append("the operation had not ended when the window ended; it was canceled")
    return samples, tuple(notes)


def _phases(
    looks: Sequence[Look], begun: float, ended: float | None, bounds: Sequence[float]
) -> list[Sample]:
    """Return what compares the operation with the time before it, and its size."""
    before = [look for look in looks if look.at <= begun]
    during = [before[-1], *(one for one in looks if begun < one.at <= (ended or looks[-1].at))]
    after = [one for one in looks if ended is not None and one.at >= ended]
    samples = [
        run_metrics.OPERATION_LOST.sample(_lost(before, looks[-1])),
        run_metrics.OPERATION_BYTES.sample(looks[-1].progress.bytes),
    ]
    for name, part in (("before", before), ("during", during), ("after", after)):
        if (value := percentile(part, bounds)) is not None:
            samples.append(run_metrics.OPERATION_P99.sample(value, part=name))
    return samples


def _longest_silence(looks: Sequence[Look]) -> float:
    """Return the longest time in which at least two looks in a row read no counters, seconds."""
    longest, last, unread = 0.0, looks[0].at, 0
    for look in looks:
        if not look.progress.is_read:
            unread += 1
            continue
        if unread > 1:
            longest = max(longest, look.at - last)
        last, unread = look.at, 0
    return max(longest, looks[-1].at - last) if unread > 1 else longest


def _until_last_io(looks: Sequence[Look], begun: float) -> Sequence[Look]:
    """Return the looks up to the last completed I/O, at least the first one after `begun`."""
    for number in range(len(looks) - 1, 0, -1):
        before, look = looks[number - 1], looks[number]
        if before.at <= begun or look.progress.operations > before.progress.operations:
            return looks[: number + 1]
    return looks


def longest_gap(
    looks: Sequence[Look], begun: float, ended: float | None = None
) -> tuple[float, float]:
    """Return the longest time without completed I/O during the operation, and its resolution.

    The gap lasted beyond `begun`, and began before `ended`. It is measured between two looks that
    saw new I/O, of which the first can be late by the interval before it: the true gap is longer
    by at most the resolution. All in seconds.
    """
    before = last = looks[0].at
    longest = 0.0, 0.0
    for look, then in pairwise(looks):
        if then.at > begun and (ended is None or last <= ended):
            longest = max(longest, (then.at - last, last - before), key=sum)
        if then.progress.operations > look.progress.operations:
            before, last = look.at, then.at
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
    """Return the completed I/O per second, for each whole second.

    Between two looks, the rate is taken as constant: looks are not exactly a second apart.
    """
    times = [look.at for look in looks]
    seconds = int((times[-1] - times[0]) / RATE_SECONDS)
    marks = [times[0] + number * RATE_SECONDS for number in range(seconds + 1)]
    completed = [_completed(looks, bisect_left(times, mark), mark) for mark in marks]
    return [(end - begin) / RATE_SECONDS for begin, end in pairwise(completed)]


def _completed(looks: Sequence[Look], number: int, at: float) -> float:
    """Return the I/O completed at a time until look `number`, the first one not before it."""
    look, then = looks[max(0, number - 1)], looks[number]
    share = (at - look.at) / (then.at - look.at) if number else 0.0
    return look.progress.operations + share * (then.progress.operations - look.progress.operations)


def _lost(before: Sequence[Look], last: Look) -> float:
    """Return the I/O that the rate before would have completed until the end, but was not."""
    first, begun = before[0], before[-1]
    quiet = begun.at - first.at
    rate = (begun.progress.operations - first.progress.operations) / quiet if quiet > 0 else 0.0
    done = last.progress.operations - begun.progress.operations
    return max(0.0, rate * (last.at - begun.at) - done)
