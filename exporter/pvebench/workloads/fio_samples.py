"""Samples from fio's report and IOPS log. Rates and counts of several jobs are summed.

The log has operations per second of each whole interval of the measured window. A line is
`milliseconds since the end of the ramp, IOPS of the interval that ends there, direction, block
size, priority`. Three properties are misleading (fio 3.33, `stat.c`):

- an interval without any I/O has no line: a stall is a gap, and is filled with 0 here;
- with `per_job_logs=0` the lines of the jobs follow each other: they are summed here;
- the last interval may have no line because its job ended first: it is omitted here.

The ramp is not in the log, and fio does not log the partial interval at the end. Lines are
not on a fixed grid: a helper thread that wakes late makes an interval longer, and shifts the
ones after it.
"""

from __future__ import annotations

import json
import math
import operator
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from pvebench.errors import OutputUnreadable, ToolFailed
from pvebench.model import run_metrics
from pvebench.model.figure import Figure
from pvebench.model.run import SUM, Sample, Unit
from pvebench.model.workload import Direction, Workload
from pvebench.workloads.fault_dip import dip_samples
from pvebench.workloads.fio_job import interval_milliseconds, is_search, writes_once
from pvebench.workloads.fio_report import (
    BIN_SHARE,
    Latency,
    Report,
    last_message,
    number,
    read_latency,
    read_report,
)
from pvebench.workloads.tool import CPU_LOG, Parsed

LATENCIES: Final = ("clat", "slat", "lat")
LOG_NAME: Final = "_iops.log"
MINIMUM_INTERVALS: Final = 3
"""Minimum number of intervals to compute a variation."""
_LINE: Final = re.compile(r"(\d{1,15}), (\d{1,15}), ([012])(, |\Z)", re.ASCII)
_DIRECTIONS: Final = (Direction.READ, Direction.WRITE, Direction.TRIM)
_Entry = tuple[int, int, Direction]


def parse(workload: Workload, output: str, logs: Mapping[str, str]) -> Parsed:
    """Return the samples in fio's JSON and IOPS log. Raises as `Tool.parse`."""
    report = read_report(output)
    messages = " ".join(report.messages.split())[:500]
    notes = [f"fio reported: {messages}"] if report.messages else []
    samples: list[Sample] = []
    ran_ms = max(_largest(report, direction, "runtime") for direction in workload.directions)
    for direction in workload.directions:
        samples += _rates(report, direction, workload, notes)
        for name in LATENCIES:
            sides = [side for job in report.jobs if isinstance(side := job.get(direction), dict)]
            blocks = [side.get(f"{name}_ns") for side in sides]
            samples += _latencies(name, direction, read_latency(blocks), notes)
    _check_runtime(report, workload, ran_ms)
    if is_search(workload):
        samples += _search_result(report, workload, ran_ms, samples)
        if samples[-1].value >= int(workload.parameters["iodepth"]):
            notes.append("the highest allowed depth meets the latency; more may be possible")
    samples += _syncs(report, workload, notes)
    samples += _whole_job(report, workload, logs.get(CPU_LOG, ""), notes)
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
        dip, dip_notes = dip_samples(intervals, interval_milliseconds(workload) / 1000)
        samples += [*dip, *_sum_of_each(report, "total_err", run_metrics.FAULT_ERRORS)]
        notes += dip_notes
    return Parsed(samples=tuple(samples), intervals=intervals, notes=tuple(notes))


def _values(report: Report, direction: Direction, key: str) -> list[float]:
    values = [number(job, direction, key) for job in report.jobs]
    return [value for value in values if value is not None]


def _largest(report: Report, direction: Direction, key: str) -> float:
    return max(_values(report, direction, key), default=0.0)


def _total(report: Report, direction: Direction, key: str) -> float:
    values = _values(report, direction, key)
    total = sum(values)
    if len(values) < len(report.jobs) or not math.isfinite(total):
        raise OutputUnreadable(
            f"fio's output has no usable number {key} for {direction}",
            cause="unsupported fio version or damaged output",
        )
    return total


def _rates(
    report: Report, direction: Direction, workload: Workload, notes: list[str]
) -> list[Sample]:
    operations = _total(report, direction, "total_ios")
    if operations == 0:
        raise ToolFailed(
            f"fio did not complete a single {direction}",
            cause=last_message(report.messages) or "the device stalled for the whole window",
            next_step="check the guest's kernel log and the storage",
            evidence=report.messages,
        )
    iops = _total(report, direction, "iops")
    bandwidth = _total(report, direction, "bw_bytes")
    size = _total(report, direction, "io_bytes")
    if any(number(job, "total_err") for job in report.jobs):
        # fio includes failed operations in the operations, but not in the bytes.
        operations, iops = (of / int(workload.parameters["bs"]) for of in (size, bandwidth))
    runtime = _largest(report, direction, "runtime") / 1000
    notes += _size_notes(direction, operations, size, workload)
    return [
        run_metrics.IOPS.sample(iops, direction),
        run_metrics.BANDWIDTH.sample(bandwidth, direction),
        run_metrics.OPERATIONS.sample(operations, direction),
        run_metrics.BYTES.sample(size, direction),
        *([run_metrics.RUNTIME.sample(runtime, direction)] if runtime else []),
    ]


def _is_complete(report: Report) -> bool:
    """Return whether the job moved as many bytes as its area has."""
    moved = sum(number(job, side, "io_bytes") or 0.0 for job in report.jobs for side in Direction)
    options = report.jobs[0].get("job options")
    return isinstance(options, dict) and moved >= int(options.get("size", 0)) > 0


def _check_runtime(report: Report, workload: Workload, ran_ms: float) -> None:
    """Reject a short window: a signal ends fio early with complete JSON and no error."""
    expected_ms = workload.runtime_seconds * 1000
    if ran_ms < 0.9 * expected_ms and not (writes_once(workload) and _is_complete(report)):
        raise ToolFailed(
            f"fio measured for {ran_ms / 1000:.1f} s instead of {expected_ms / 1000:.1f} s",
            cause=last_message(report.messages) or "fio was stopped",
            evidence=report.messages,
        )


def _search_result(
    report: Report, workload: Workload, ran_ms: float, samples: list[Sample]
) -> list[Sample]:
    """Return the resulting depth of a search, and check the latency at that depth.

    fio resets its statistics at that depth and measures one more window. Without a result it runs
    to its time limit, with the statistics of all depths together and no message about it.

    Raises:
        ToolFailed: no depth meets the latency.
    """
    parameters = workload.parameters
    depth = number(report.jobs[0], "latency_depth")
    window_ms = float(parameters["latency_window"]) * 1000
    target, share = int(parameters["latency_target"]) / 1e6, f"{parameters['latency_percentile']:g}"
    goal = f"{share}% of operations within {target * 1000:g} ms"
    if depth is None:
        raise OutputUnreadable("fio does not report the resulting depth")
    if not 0.9 * window_ms <= ran_ms <= 1.5 * window_ms + 1000:
        raise ToolFailed(
            f"no depth meets {goal}; the last one was {depth:.0f}",
            cause="the storage is too slow even at depth 1, or its latency varies too much between "
            "windows",
            next_step="increase latency_target or latency_window",
            evidence=report.messages,
        )
    latencies = {(s.metric, s.part, s.direction): s.value for s in samples}
    measured = [latencies.get(("lat_percentile", share, way)) for way in workload.directions]
    # A percentile is the middle of a bin. In a mix each direction has its own; fio uses both.
    if len(measured) == 1 and (measured[0] or 0.0) > target * (1 + 4 * BIN_SHARE):
        raise ToolFailed(f"fio's last window did not meet {goal}", evidence=report.messages)
    return [run_metrics.LATENCY_DEPTH.sample(depth)]


def _size_notes(
    direction: Direction, operations: float, size: float, workload: Workload
) -> list[str]:
    """Return a note if the mean size of operations differs from `bs`."""
    bs, in_flight = int(workload.parameters["bs"]), int(workload.parameters["iodepth"])
    slack = 0.01 * operations + in_flight * int(workload.parameters["numjobs"])
    if abs(size / bs - operations) <= slack:
        return []
    return [f"{direction}: {operations:.0f} operations of {bs} bytes transferred {size:.0f} bytes"]


def _latencies(
    name: str, direction: Direction | None, latency: Latency | None, notes: list[str]
) -> list[Sample]:
    prefix = f"{direction}: " if direction else ""
    if latency is None:
        # Engines that submit and wait in one call have no submission latency.
        return [] if name == "slat" else _note(notes, f"{prefix}fio measured no {name}")
    values = {"mean": latency.mean, "max": latency.maximum}
    if name in ("clat", "sync"):
        values |= {"min": latency.minimum, "stddev": latency.stddev}
    if not latency.percentiles:
        notes.append(f"{prefix}fio reported no {name} percentiles")
    elif latency.jobs > 1:
        notes.append(f"{prefix}{name} percentiles are the worst of {latency.jobs} jobs")
    return [
        *(
            run_metrics.LATENCIES[name, statistic].sample(value, direction)
            for statistic, value in values.items()
        ),
        *(
            run_metrics.LATENCIES[name, "percentile"].sample(value, direction, part)
            for part, value in latency.percentiles.items()
        ),
        *(_histogram(direction, latency) if name == "clat" and latency.buckets else ()),
    ]


def _histogram(direction: Direction | None, latency: Latency) -> list[Sample]:
    """Return samples that can be summed over runs: operations by bucket, and their total time."""
    total = latency.mean * latency.count
    return [
        *(
            run_metrics.CLAT_HISTOGRAM.sample(count, direction, bound)
            for bound, count in latency.buckets.items()
        ),
        Sample(run_metrics.CLAT_HISTOGRAM.name, direction, total, Unit.SECONDS, SUM),
    ]


def _note(notes: list[str], text: str) -> list[Sample]:
    notes.append(text)
    return []


def _syncs(report: Report, workload: Workload, notes: list[str]) -> list[Sample]:
    """Return the samples of fsync or fdatasync, which fio reports separately from the writes.

    `sync.total_ios` is 0 for ungrouped jobs even if they did sync; the count is in `N`.
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
            "fio reports no syncs, but the job requires them",
            cause="this fio version or I/O engine does not measure syncs",
        )
    count = run_metrics.SYNC_OPERATIONS.sample(latency.count)
    return [count, *_latencies("sync", None, latency, notes)]


def _whole_job(report: Report, workload: Workload, log: str, notes: list[str]) -> list[Sample]:
    """Return CPU and context switches. CPU is a share of the job time, averaged over jobs.

    Without a single context switch, fio's system counts none of them: on Windows, all are 0.

    Args:
        log: as of CPU_LOG; empty: none.
    """
    switches = [value for job in report.jobs if (value := number(job, "ctx")) is not None]
    if switches and not any(switches):
        counted = _counted_cpu(log, jobs=int(workload.parameters.get("numjobs", 1)))
        notes += ["guest CPU unknown: the guest's counters could not be read"] * (not counted)
        return counted
    weights = [number(job, "job_runtime") or 0.0 for job in report.jobs]
    if not sum(weights):
        weights = [1.0] * len(report.jobs)
    samples = []
    for part, key in (("user", "usr_cpu"), ("system", "sys_cpu")):
        if (shares := _of_each(report, key)) is not None:
            ratio = sum(map(operator.mul, shares, weights)) / sum(weights) / 100
            samples.append(run_metrics.GUEST_CPU.sample(ratio, part=part))
    return [*samples, *_sum_of_each(report, "ctx", run_metrics.CONTEXT_SWITCHES)]


def _of_each(report: Report, key: str) -> list[float] | None:
    """Return a number of each job; None: one has none."""
    numbers = [value for job in report.jobs if (value := number(job, key)) is not None]
    return numbers if len(numbers) == len(report.jobs) else None


def _sum_of_each(report: Report, key: str, figure: Figure) -> list[Sample]:
    numbers = _of_each(report, key)
    return [] if numbers is None else [figure.sample(sum(numbers))]


def _counted_cpu(log: str, *, jobs: int) -> list[Sample]:
    """Return the CPU of the whole guest per job; none if its counters are missing or decrease."""
    try:
        first, last = (
            {k: float(v) for k, v in json.loads(row).items()} for row in log.split("\n", 1)
        )
        seconds = last["at"] - first["at"]
        shares = {part: (last[part] - first[part]) / seconds / jobs for part in ("user", "system")}
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return []
    if seconds <= 0 or not all(0 <= share < math.inf for share in shares.values()):
        return []
    return [run_metrics.GUEST_CPU.sample(share, part=part) for part, share in shares.items()]


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
        notes.append(f"{direction}: variation computed by fio, which ignores intervals without I/O")
    return [run_metrics.IOPS_VARIATION.sample(deviation / mean, direction)] if mean > 0 else []


def read_intervals(
    logs: Mapping[str, str],
    directions: Iterable[Direction],
    *,
    width_ms: int,
    window_ms: float,
    ran_ms: float,
) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    """Return direction -> IOPS of each whole interval, and notes on the run.

    Args:
        logs: path or name -> content; the one with a name ending in `_iops.log` is read.
        directions: directions of the workload; others in the log are ignored.
        width_ms: `log_avg_msec` of the job.
        window_ms: runtime of the job.
        ran_ms: runtime reported by fio; longer if the last operations completed late.
    """
    text = next((content for name, content in logs.items() if name.endswith(LOG_NAME)), "")
    lines = text.splitlines()
    entries = [entry for line in lines if (entry := _entry(line))]
    notes = []
    if len(entries) < len(lines):
        notes.append(f"{len(lines) - len(entries)} lines of fio's IOPS log are unreadable")
    if not entries:
        return {}, (*notes, "fio wrote no IOPS log; no intervals available")
    last = max(time for time, _, _ in entries)
    if last > max(window_ms, ran_ms) + width_ms / 2:
        notes.append(
            f"fio's IOPS log ends at {last} ms, beyond its window of {window_ms:.0f} ms; "
            f"intervals ignored"
        )
        return {}, tuple(notes)
    window = min(window_ms, ran_ms)
    inside = [entry for entry in entries if entry[0] <= window + width_ms / 2]
    return _sum_up(inside, directions, width_ms, window), tuple(notes)


def _sum_up(
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
    # A stall that lasts to the end of the window leaves no lines; only the last interval is
    # uncertain, because it may also have been cut off.
    known = max(known, in_window - 1)
    return {
        str(direction): tuple(float(sums[direction, index]) for index in range(1, known + 1))
        for direction in directions
    }


def _thinner(lines: Counter[tuple[Direction, int]], last: int) -> bool:
    """Return whether the last interval lacks lines of jobs that logged other intervals."""
    highest: Counter[Direction] = Counter()
    for (direction, _), count in lines.items():
        highest[direction] = max(highest[direction], count)
    return any(lines[direction, last] < count for direction, count in highest.items())


def _entry(line: str) -> _Entry | None:
    match = _LINE.match(line.strip())
    return (int(match[1]), int(match[2]), _DIRECTIONS[int(match[3])]) if match else None


def _number_ticks(times: set[int], width_ms: int) -> dict[int, int]:
    """Return the number of the interval, from 1, for each end time.

    Times closer than half an interval are one tick, logged by several jobs; a longer gap counts as
    the nearest whole number of intervals.
    """
    indexes: dict[int, int] = {}
    tick, index = 0, 0
    for time in sorted(times):
        if index == 0 or time - tick >= width_ms / 2:
            index += max(1, round((time - tick) / width_ms))
            tick = time
        indexes[time] = index
    return indexes
