"""fio's report and IOPS log -> samples. Rates and counts of several jobs are added up.

The log has operations per second of each whole interval of the measured window. A line is
`milliseconds since the end of the ramp, IOPS of the interval that ends there, direction, block
size, priority`. Three things in it mislead (fio 3.33, `stat.c`):

- an interval without any I/O has no line: a stall is a gap, and is filled with 0 here;
- with `per_job_logs=0` the lines of the jobs follow each other: they are added up here;
- the last interval may have no line because its job ended first: it is left out here.

The ramp is not in the log, and fio does not log the partial interval at the end. Lines are
not on a fixed grid: a helper thread that wakes late makes an interval longer, and shifts the
ones after it.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model.run import SUM, Sample, Unit
from pvebench.model.workload import Direction, Workload
from pvebench.workloads.fault_dip import dip_samples
from pvebench.workloads.fio_job import interval_milliseconds, is_search
from pvebench.workloads.fio_json import (
    BIN_SHARE,
    Latency,
    Report,
    last_words,
    number,
    read_latency,
    read_report,
)
from pvebench.workloads.tool import Parsed

LATENCIES: Final = ("clat", "slat", "lat")
LOG_NAME: Final = "_iops.log"
MINIMUM_INTERVALS: Final = 3
"""Fewer say nothing about variation."""
_LINE: Final = re.compile(r"(\d{1,15}), (\d{1,15}), ([012])(, |\Z)", re.ASCII)
_DIRECTIONS: Final = (Direction.READ, Direction.WRITE, Direction.TRIM)
_Entry = tuple[int, int, Direction]
_Job = Mapping[str, Any]


def parse(workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
    """Return the samples in fio's JSON and IOPS log. Raises as `Room.parse`."""
    report = read_report(output)
    notes = [f"fio said: {' '.join(report.said.split())[:500]}"] if report.said else []
    samples: list[Sample] = []
    ran_ms = max(_largest(report, direction, "runtime") for direction in workload.directions)
    for direction in workload.directions:
        samples += _rates(report, direction, workload, notes)
        for name in LATENCIES:
            blocks = [job[direction].get(f"{name}_ns") for job in _with(report, direction)]
            samples += _latencies(name, direction, read_latency(blocks), notes)
    _ran_to_its_end(report, workload, ran_ms)
    if is_search(workload):
        samples += _found_depth(report, workload, ran_ms, samples)
        if samples[-1].value >= int(workload.parameters["iodepth"]):
            notes.append("the latency is kept at the greatest depth tried: more may be possible")
    samples += _syncs(report, workload, notes)
    samples += _whole_job(report)
    if is_search(workload):
        return Parsed(samples=tuple(samples), notes=tuple(notes))
    intervals, log_notes = read_intervals(
        logs,
        workload.directions,
        width_ms=interval_milliseconds(workload),
        window_ms=workload.runtime_seconds * 1000,
        ran_ms=ran_ms,
    )
    notes += log_notes
    for direction in workload.directions:
        steps = intervals.get(direction, ())
        samples += _variation(report, direction, steps, workload, notes)
    if workload.parameters.get("fault"):
        found, more = dip_samples(intervals, interval_milliseconds(workload) / 1000)
        samples += [*found, *_errors(report)]
        notes += more
    return Parsed(samples=tuple(samples), intervals=intervals, notes=tuple(notes))


def _with(report: Report, direction: Direction) -> list[_Job]:
    return [job for job in report.jobs if isinstance(job.get(direction), dict)]


def _values(report: Report, direction: Direction, key: str) -> list[float]:
    found = [number(job, direction, key) for job in report.jobs]
    return [value for value in found if value is not None]


def _largest(report: Report, direction: Direction, key: str) -> float:
    return max(_values(report, direction, key), default=0.0)


def _total(report: Report, direction: Direction, key: str) -> float:
    values = _values(report, direction, key)
    total = sum(values)
    if len(values) < len(report.jobs) or not math.isfinite(total):
        raise OutputUnreadable(
            f"fio's output has no usable number {key} for {direction}",
            cause="another version of fio, or a damaged output",
        )
    return total


def _rates(
    report: Report, direction: Direction, workload: Workload, notes: list[str]
) -> list[Sample]:
    operations = _total(report, direction, "total_ios")
    if operations == 0:
        raise ToolFailed(
            f"fio did not complete a single {direction}",
            cause=last_words(report.said) or "the device stalled for the whole window",
            next_step="look at the guest's kernel log and at the storage",
            evidence=report.said,
        )
    iops = _total(report, direction, "iops")
    bandwidth = _total(report, direction, "bw_bytes")
    size = _total(report, direction, "io_bytes")
    if any(number(job, "total_err") for job in report.jobs):
        # fio counts what failed among the operations, but not among the bytes.
        operations, iops = (of / int(workload.parameters["bs"]) for of in (size, bandwidth))
    runtime = _largest(report, direction, "runtime") / 1000
    notes += _doubts(direction, operations, size, workload)
    return [
        Sample("iops", direction, iops, Unit.IOPS),
        Sample("bandwidth", direction, bandwidth, Unit.BYTES_PER_SECOND),
        Sample("operations", direction, operations, Unit.OPERATIONS),
        Sample("bytes", direction, size, Unit.BYTES),
        *([Sample("runtime", direction, runtime, Unit.SECONDS)] if runtime else []),
    ]


def _ran_to_its_end(report: Report, workload: Workload, ran_ms: float) -> None:
    """Refuse a window cut short: a signal ends fio early with complete JSON and no error."""
    asked_ms = workload.runtime_seconds * 1000
    if ran_ms < 0.9 * asked_ms:
        raise ToolFailed(
            f"fio measured for {ran_ms / 1000:.1f} s instead of {asked_ms / 1000:.1f} s",
            cause=last_words(report.said) or "it was stopped",
            evidence=report.said,
        )


def _found_depth(
    report: Report, workload: Workload, ran_ms: float, samples: list[Sample]
) -> list[Sample]:
    """Return the depth that a search settled at, proved by the latency that it must keep.

    fio resets its figures when it is there and measures one window more; one that finds nothing
    goes on to its time limit, with figures of all depths together and no word about it.

    Raises:
        ToolFailed: it found none.
    """
    parameters = workload.parameters
    depth = number(report.jobs[0], "latency_depth")
    window_ms = float(parameters["latency_window"]) * 1000
    target, share = int(parameters["latency_target"]) / 1e6, f"{parameters['latency_percentile']:g}"
    kept = f"{share} % of operations within {target * 1000:g} ms"
    if depth is None:
        raise OutputUnreadable("fio does not tell the depth that it found")
    if not 0.9 * window_ms <= ran_ms <= 1.5 * window_ms + 1000:
        raise ToolFailed(
            f"fio found no depth that keeps {kept}; its last was {depth:.0f}",
            cause="the storage is slower than that one operation at a time, or its latency varies "
            "too much from window to window",
            next_step="choose a longer latency_target or latency_window",
            evidence=report.said,
        )
    latencies = {(s.metric, s.part, s.direction): s.value for s in samples}
    found = [latencies.get(("lat_percentile", share, one)) for one in workload.directions]
    # A percentile is the middle of a bin; of a mix each direction has its own, fio counts both.
    if len(found) == 1 and (found[0] or 0.0) > target * (1 + 4 * BIN_SHARE):
        raise ToolFailed(f"fio's last window did not keep {kept}", evidence=report.said)
    return [Sample("latency_depth", None, depth, Unit.OPERATIONS)]


def _doubts(direction: Direction, operations: float, size: float, workload: Workload) -> list[str]:
    """Say where operations were of another size than asked for."""
    bs, in_flight = int(workload.parameters["bs"]), int(workload.parameters["iodepth"])
    slack = 0.01 * operations + in_flight * int(workload.parameters["numjobs"])
    if abs(size / bs - operations) <= slack:
        return []
    return [f"{direction}: {operations:.0f} operations moved {size:.0f} bytes, not {bs} each"]


def _latencies(
    name: str, direction: Direction | None, latency: Latency | None, notes: list[str]
) -> list[Sample]:
    who = f"{direction}: " if direction else ""
    if latency is None:
        # Engines that submit and wait in one call have no submission latency.
        return [] if name == "slat" else _note(notes, f"{who}fio measured no {name}")
    figures = {"mean": latency.mean, "max": latency.maximum}
    if name in ("clat", "sync"):
        figures |= {"min": latency.minimum, "stddev": latency.stddev}
    if not latency.percentiles:
        notes.append(f"{who}fio gave no {name} percentiles")
    elif latency.jobs > 1:
        notes.append(f"{who}{name} percentiles are the worst of {latency.jobs} jobs")
    return [
        *(
            Sample(f"{name}_{figure}", direction, value, Unit.SECONDS)
            for figure, value in figures.items()
        ),
        *(
            Sample(f"{name}_percentile", direction, value, Unit.SECONDS, part)
            for part, value in latency.percentiles.items()
        ),
        *(_histogram(direction, latency) if name == "clat" and latency.buckets else ()),
    ]


def _histogram(direction: Direction | None, latency: Latency) -> list[Sample]:
    """Return what can be added up over runs: operations by bucket, and the sum of their times."""
    name, total = "clat_histogram", latency.mean * latency.count
    return [
        *(
            Sample(name, direction, count, Unit.OPERATIONS, bound)
            for bound, count in latency.buckets.items()
        ),
        Sample(name, direction, total, Unit.SECONDS, SUM),
    ]


def _note(notes: list[str], text: str) -> list[Sample]:
    notes.append(text)
    return []


def _syncs(report: Report, workload: Workload, notes: list[str]) -> list[Sample]:
    """Return the samples of fsync or fdatasync, which fio keeps apart from the writes.

    `sync.total_ios` is 0 for ungrouped jobs although they did sync; the count is in `N`.
    """
    every = int(workload.parameters["fsync"]) or int(workload.parameters["fdatasync"])
    if not every:
        return []
    blocks = [job["sync"].get("lat_ns") for job in report.jobs if isinstance(job.get("sync"), dict)]
    latency = read_latency(blocks)
    if latency is None:
        if _total(report, Direction.WRITE, "total_ios") < 2 * every:
            return _note(notes, "too few writes for a single sync")
        raise ToolFailed(
            "fio was told to sync its writes but reports no sync",
            cause="this version of fio or its engine does not measure syncs",
        )
    count = Sample("sync_operations", None, latency.count, Unit.OPERATIONS)
    return [count, *_latencies("sync", None, latency, notes)]


def _whole_job(report: Report) -> list[Sample]:
    """Return CPU and context switches. CPU is the share of a job's time, averaged over jobs."""
    samples = []
    weights = [number(job, "job_runtime") or 0.0 for job in report.jobs]
    if not sum(weights):
        weights = [1.0] * len(report.jobs)
    for part, key in (("user", "usr_cpu"), ("system", "sys_cpu")):
        shares = [number(job, key) for job in report.jobs]
        known = [(s, w) for s, w in zip(shares, weights, strict=True) if s is not None]
        if len(known) == len(shares):
            ratio = sum(s * w for s, w in known) / sum(weights) / 100
            samples.append(Sample("guest_cpu", None, ratio, Unit.RATIO, part))
    switches = [value for job in report.jobs if (value := number(job, "ctx")) is not None]
    if len(switches) == len(report.jobs):
        samples.append(Sample("context_switches", None, sum(switches), Unit.OPERATIONS))
    return samples


def _errors(report: Report) -> list[Sample]:
    """Return how many operations failed; `continue_on_error` goes on, and counts them."""
    counts = [number(job, "total_err") for job in report.jobs]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return []
    return [Sample("fault_errors", None, sum(known), Unit.OPERATIONS)]


def _variation(
    report: Report,
    direction: Direction,
    steps: tuple[float, ...],
    workload: Workload,
    notes: list[str],
) -> list[Sample]:
    if len(steps) >= MINIMUM_INTERVALS:
        mean, deviation = statistics.fmean(steps), statistics.stdev(steps)
        iops = sum(_values(report, direction, "iops"))
        covered = len(steps) * interval_milliseconds(workload) / 1000
        complete = covered > 0.9 * workload.runtime_seconds
        if complete and abs(mean - iops) > 0.1 * iops + int(workload.parameters["numjobs"]):
            notes.append(f"{direction}: the intervals average {mean:.1f} IOPS, the run {iops:.1f}")
    else:
        mean = _largest(report, direction, "iops_mean")
        deviation = _largest(report, direction, "iops_stddev")
        if _largest(report, direction, "iops_samples") < MINIMUM_INTERVALS:
            return []
        notes.append(f"{direction}: variation is fio's own, which overlooks intervals without I/O")
    return [Sample("iops_variation", direction, deviation / mean, Unit.RATIO)] if mean > 0 else []


def read_intervals(
    logs: Mapping[str, str],
    directions: Iterable[Direction],
    *,
    width_ms: int,
    window_ms: float,
    ran_ms: float,
) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    """Return direction -> IOPS of each whole interval, and notes for the reader of the run.

    Args:
        logs: path or name -> content; the one whose name ends in `_iops.log` is read.
        directions: those of the workload; others in the log are ignored.
        width_ms: the `log_avg_msec` that the job asked for.
        window_ms: the window that the job asked for.
        ran_ms: fio's own runtime; longer where the last operations were slow to come back.
    """
    text = next((content for name, content in logs.items() if name.endswith(LOG_NAME)), "")
    lines = text.splitlines()
    entries = [entry for line in lines if (entry := _entry(line))]
    notes = []
    if len(entries) < len(lines):
        notes.append(f"{len(lines) - len(entries)} lines of fio's IOPS log are unreadable")
    if not entries:
        return {}, (*notes, "fio left no IOPS log: there are no intervals")
    last = max(time for time, _, _ in entries)
    if last > max(window_ms, ran_ms) + width_ms / 2:
        notes.append(
            f"fio's IOPS log ends at {last} ms, beyond its window of {window_ms:.0f} ms: "
            f"the intervals are not used"
        )
        return {}, tuple(notes)
    window = min(window_ms, ran_ms)
    inside = [entry for entry in entries if entry[0] <= window + width_ms / 2]
    return _add_up(inside, directions, width_ms, window), tuple(notes)


def _add_up(
    entries: list[_Entry], directions: Iterable[Direction], width_ms: int, window_ms: float
) -> dict[str, tuple[float, ...]]:
    indexes = _number_ticks({time for time, _, _ in entries}, width_ms)
    sums: Counter[tuple[Direction, int]] = Counter()
    lines: Counter[tuple[Direction, int]] = Counter()
    for time, value, direction in entries:
        sums[direction, indexes[time]] += value
        lines[direction, indexes[time]] += 1
    known = max(indexes.values(), default=0)
    in_window = int((window_ms + width_ms / 20) // width_ms)
    if known >= in_window and _thinner(lines, known):
        known -= 1
    # A stall that lasts to the end of the window leaves no lines; only the very last
    # interval is in doubt, because it may as well have been cut off.
    known = max(known, in_window - 1)
    return {
        str(direction): tuple(float(sums[direction, index]) for index in range(1, known + 1))
        for direction in directions
    }


def _thinner(lines: Counter[tuple[Direction, int]], last: int) -> bool:
    """Return whether the last interval lacks lines of jobs that logged in others."""
    usual: Counter[Direction] = Counter()
    for (direction, _), count in lines.items():
        usual[direction] = max(usual[direction], count)
    return any(lines[direction, last] < count for direction, count in usual.items())


def _entry(line: str) -> _Entry | None:
    match = _LINE.match(line.strip())
    return (int(match[1]), int(match[2]), _DIRECTIONS[int(match[3])]) if match else None


def _number_ticks(times: set[int], width_ms: int) -> dict[int, int]:
    """Return the interval's number, from 1, for each time at which one ended.

    Times closer than half an interval are the same tick, seen by several jobs; a longer
    gap counts as the number of intervals that fit into it best.
    """
    indexes: dict[int, int] = {}
    tick, index = 0, 0
    for time in sorted(times):
        if index == 0 or time - tick >= width_ms / 2:
            index += max(1, round((time - tick) / width_ms))
            tick = time
        indexes[time] = index
    return indexes
