"""Whether the numbers of a finished run can be true: what the tool, QEMU and the host counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pvebench.model import run_metrics
from pvebench.model.consistency import (
    Figures,
    Implausibility,
    PlausibilityCheck,
    contradictions,
    cpu_out_of_range,
    is_own_share,
)
from pvebench.model.figure import Figure, Values
from pvebench.model.run import Sample
from pvebench.model.run_metrics import DEVICE_SHARE, FLUSH_SHARE, GUEST_TO_HOST, NETWORK_SHARE
from pvebench.model.workload import Case, Caveat, Conduct, Direction
from pvebench.workloads import TOOLS, Parsed
from pvebench.workloads.fio_job import writes_once

HostRates = Mapping[Direction, float]
MIN_SHARE: Final = 0.5
"""Minimum share of the data (or flushes) that must reach the device."""
COLD_SHARE: Final = 0.9
"""Minimum share of the read bytes that must come from the device; below, the run is warm."""
STARVED: Final = 0.8
"""Maximum share of the time in which the guest's CPUs were ready but had no host CPU."""
TOLERANCE: Final = 0.02
"""Of bytes, time and operations in flight compared with those that were seen from outside."""
LOOK_SECONDS: Final = 0.2
"""Time between the counters of QEMU and the clock of one look, on a busy machine."""
CLOCK_SLACK: Final = 0.1
"""Maximum seconds of a tool's own time before its first I/O and after its last."""
FASTER_THAN_HOST: Final = 1.10
FASTER_THAN_LINK: Final = 1.02
"""Maximum ratio of bandwidth and link capacity: the ends of the window are not exact."""
MIN_SECONDS: Final = 3.0
"""Minimum seconds of window and run: late readings of counters matter more in a short one."""
PAGE_BYTES: Final = 4096
MIN_BYTES: Final = 1 << 20
"""Minimum bytes for a check of the share that reached the device."""


@dataclass(frozen=True, slots=True)
class PlausibilityResult:
    """Derived samples of a run and its failed plausibility checks."""

    samples: tuple[Sample, ...]
    implausibilities: tuple[Implausibility, ...]

    @property
    def reason(self) -> str:
        """All failed checks in one line."""
        return "; ".join(implausibility.text for implausibility in self.implausibilities)


def check_run(
    case: Case,
    samples: Iterable[Sample],
    *,
    host_cpus: int = 0,
    local: bool = True,
    filled: bool = True,
    host: HostRates | None = None,
    simulated: bool = False,
) -> PlausibilityResult:
    """Return the derived samples of a run and its failed plausibility checks.

    Args:
        host_cpus: number of the host's CPUs; 0: unknown.
        local: whether QEMU's own I/O is block I/O on this machine, so that its bytes count.
        filled: whether the volume was written from end to end.
        host: direction -> I/O per second of the host case with this workload on this storage.
        simulated: whether counters and latencies are simulated, each without the others.
    """
    values = Values(samples)
    if not case.workload.directions:
        return PlausibilityResult((), ())
    derived: list[Sample] = []
    failed: list[Implausibility] = []
    for direction in case.workload.directions:
        failed += contradictions(_figures(case, direction, values))
        failed += [] if simulated else _against_qemu(case, direction, values)
        for shares, failures in (
            _device_share(case, direction, values, local=local, simulated=simulated),
            _against_host(case, direction, values, host or {}),
            _against_network(case, direction, values),
        ):
            derived, failed = derived + shares, failed + failures
    shares, failures = _flush_share(case, values)
    derived, failed = derived + shares, failed + failures + _cpu(case, values, host_cpus)
    # Failed operations have no bytes, and fio counts them with the others or not at all.
    if not (simulated or case.workload.parameters.get("fault")):
        failed += [*_queue(case, values), *_clock(case, values)]
    reads = Direction.READ in case.workload.directions
    failed += _if(
        reads and not filled,
        PlausibilityCheck.NOT_FILLED,
        "volume not filled; reads of unwritten blocks bypass the storage",
    )
    marks = [
        run_metrics.IMPLAUSIBILITY.sample(1.0, part=str(check))
        for check in dict.fromkeys(implausibility.check for implausibility in failed)
    ]
    return PlausibilityResult((*derived, *marks), tuple(failed))


def _figures(case: Case, direction: Direction, values: Values) -> Figures:
    block = case.workload.parameters.get("bs")
    return Figures(
        direction=str(direction),
        iops=values.of(run_metrics.IOPS, direction),
        bandwidth=values.of(run_metrics.BANDWIDTH, direction),
        block_bytes=int(block) if block else None,
        size=values.of(run_metrics.BYTES, direction),
        seconds=values.of(run_metrics.RUNTIME, direction),
        seconds_step=TOOLS[case.workload.tool].seconds_step,
        in_flight=in_flight(case) if case.workload.runtime_seconds > 0 else 0,
    )


def in_flight(case: Case) -> int:
    """Return the maximum number of operations in flight, in all VMs."""
    return int(case.workload.parameters.get("iodepth", 1)) * _jobs(case)


def _jobs(case: Case) -> int:
    """Return the number of jobs in all VMs."""
    return int(case.workload.parameters.get("numjobs", 1)) * case.workload.vms


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes and seconds of a direction, as the tool counts them, and the window outside of it."""

    size: float
    seconds: float
    window: float
    timed: bool
    in_flight: float
    """Share of the bytes that I/O in flight is: it may be counted on one side only."""

    @property
    def brief(self) -> bool:
        """Whether late readings of counters matter."""
        return self.timed and min(self.window, self.seconds) < MIN_SECONDS


def _span(case: Case, direction: Direction, values: Values) -> _Span | None:
    """Return the span of a direction; None: something was not measured."""
    size, seconds = (
        values.of(run_metrics.BYTES, direction),
        values.of(run_metrics.RUNTIME, direction),
    )
    window = values.of(run_metrics.WINDOW)
    if not (window and size and seconds):
        return None
    uncertain = in_flight(case) * int(case.workload.parameters.get("bs", 0)) / size
    timed = case.workload.runtime_seconds > 0 and not writes_once(case.workload)
    return _Span(size, seconds, window, timed, uncertain)


def _moved(case: Case, direction: Direction, values: Values, *, local: bool) -> float | None:
    """Return the bytes that the device moved; None: unknown."""
    disk = case.scenario.disk
    # Without the page cache QEMU's own byte counters are exact. With it only the device's counters
    # show when data moves, together with other users of that device.
    uncached = disk.cache.direct or direction is Direction.READ
    exact = uncached and disk.in_vm and local
    moved = values.of(run_metrics.HOST_BYTES, part=f"process_{direction}") if exact else None
    if moved is None:
        moved = values.of(run_metrics.HOST_BYTES, part=f"device_{direction}")
    return moved


def _device_share(
    case: Case, direction: Direction, values: Values, *, local: bool, simulated: bool
) -> tuple[list[Sample], list[Implausibility]]:
    if direction is Direction.TRIM:
        return [], []
    moved = _moved(case, direction, values, local=local)
    span = _span(case, direction, values)
    if moved is None or span is None:
        return [] if simulated else _warm(case, direction, None), []
    # A timed run's window and the tool's own differ slightly: compare rates, not bytes. In a longer
    # window, as over ssh, all I/O may have happened in the tool's own time.
    share, longer, uncertain = moved / span.size, 1.0, 0.0
    if span.timed:
        share = (moved / span.window) / (span.size / span.seconds)
        longer, uncertain = max(1.0, span.window / span.seconds), span.in_flight
    most = share * longer + 2 * uncertain
    uncached = case.scenario.disk.cache.direct and Caveat.CACHE not in case.workload.caveats
    judged = uncached and span.size >= MIN_BYTES and not span.brief
    failed = _if(
        judged and most < MIN_SHARE,
        PlausibilityCheck.DEVICE_SHARE,
        f"{direction}: only {share:.0%} of the bytes reached the device, although caches are "
        f"bypassed; the rest are holes, zeros, or data of a lower cache",
    )
    if not is_own_share(share):  # other programs used the device
        return _warm(case, direction, None), failed
    sample = DEVICE_SHARE.sample(share, direction)
    counted = values.of(run_metrics.QEMU_BYTES, part=str(direction))
    if counted:  # in the same window, so nothing of it is outside
        most = moved / counted + 2 * uncertain
    most = min(most, _first_reads(case, values))
    return [sample, *_warm(case, direction, None if span.brief else most)], failed


def _first_reads(case: Case, values: Values) -> float:
    """Return the maximum share of random reads of data that the host's memory does not have yet.

    Read-ahead adds bytes to those of the device, and would hide repeated reads.
    """
    scenario, parameters = case.scenario, case.workload.parameters
    memory = scenario.disk.in_vm and not scenario.disk.cache.direct
    if not memory or not str(parameters.get("rw")).startswith("rand"):
        return math.inf
    area = int(parameters.get("size") or scenario.layout.file_bytes or scenario.volume_bytes)
    area *= case.workload.vms
    pages = max(1.0, PAGE_BYTES / int(parameters["bs"])) / area
    passes = pages * sum(
        values.of(run_metrics.BYTES, way) or 0.0 for way in case.workload.directions
    )
    ramp = case.workload.ramp_seconds / (_largest(values, run_metrics.RUNTIME) or 1.0)
    return -math.exp(-ramp * passes) * math.expm1(-passes) / passes if passes else 1.0


def _warm(case: Case, direction: Direction, at_most: float | None) -> list[Sample]:
    """Return the share of the read bytes that did not come from the device, if it matters.

    `at_most`: the share that did, including I/O that may be outside of the window; None: unknown.
    Modes that use the host's memory may have read anything from it then.
    """
    if direction is not Direction.READ or Caveat.CACHE in case.workload.caveats:
        return []
    if at_most is None:
        unknown = case.scenario.disk.in_vm and not case.scenario.disk.cache.direct
        return [run_metrics.WARM.sample(1.0, direction, run_metrics.UNKNOWN)] * unknown
    warm = at_most < COLD_SHARE
    return [run_metrics.WARM.sample(1.0 - at_most, direction)] * warm


def _against_qemu(case: Case, direction: Direction, values: Values) -> list[Implausibility]:
    """Compare the tool's bytes with those that QEMU counted, which are exact.

    The two windows are not the same: what is outside of one may be much at an uneven rate.
    Read-ahead and metadata add bytes to QEMU's. VMs of a team start one by one.
    """
    counted = values.of(run_metrics.QEMU_BYTES, part=str(direction))
    span, workload = _span(case, direction, values), case.workload
    other = Caveat.CACHE in workload.caveats or workload.parameters.get("fault") or workload.vms > 1
    if not counted or span is None or other or span.brief:
        return []
    ratio, edges = span.size / counted, 0.0
    if span.timed:
        ratio *= span.window / span.seconds
        lag = (values.of(run_metrics.WINDOW_LAG) or 0.0) + 2 * LOOK_SECONDS
        edges = lag + abs(span.window - span.seconds)
    uneven = 1 + 3 * (values.of(run_metrics.IOPS_VARIATION, direction) or 0.0)
    slack = TOLERANCE + edges / span.window * uneven + 2 * span.in_flight
    exact = span.timed and not case.scenario.layout.on_filesystem
    text = f"{direction}: the tool reports {ratio:.0%} of the bytes that QEMU counted"
    beyond = ratio > 1 + slack or (exact and ratio * (1 + slack) < 1)
    return _if(beyond, PlausibilityCheck.QEMU_BYTES, text)


def _largest(values: Values, figure: Figure) -> float:
    return max(values.of(figure, way) or 0.0 for way in Direction)


def _queue(case: Case, values: Values) -> list[Implausibility]:
    """Compare rate x mean latency with the operations that can be in flight (Little's law).

    Operations at the ends of the window spent a part of their latency outside of it.
    """
    depth, ways = in_flight(case), case.workload.directions
    mean, longest = run_metrics.LATENCIES["lat", "mean"], run_metrics.LATENCIES["lat", "max"]
    together = sum(
        (values.of(run_metrics.IOPS, way) or 0.0) * (values.of(mean, way) or 0.0) for way in ways
    )
    slack = TOLERANCE + _largest(values, longest) / (_largest(values, run_metrics.RUNTIME) or 1.0)
    text = f"IOPS x mean latency = {together:.3g} operations in flight, more than {depth}"
    return _if(together > depth * (1 + slack), PlausibilityCheck.LATENCY, text)


def _clock(case: Case, values: Values) -> list[Implausibility]:
    """Compare the tool's time with the host's: a guest's clock may be fast.

    A slow one increases the tool's rates; see `_against_qemu`. The host sees when operations end,
    which at a low rate of each job is long after the tool's start, and before its end.
    """
    rate = sum((values.of(run_metrics.IOPS, way) or 0.0) for way in case.workload.directions)
    pause = 2 * _jobs(case) / rate if rate else 0.0
    slack = CLOCK_SLACK + _largest(values, run_metrics.LATENCIES["lat", "max"]) + pause
    spent = values.of(run_metrics.IO_TIME) or math.inf
    own = _largest(values, run_metrics.RUNTIME) + case.workload.ramp_seconds
    text = f"the tool reports {own:.3g} s of I/O, the host saw {spent:.3g} s"
    return _if(own > spent * (1 + TOLERANCE) + slack, PlausibilityCheck.CLOCK, text)


def _flush_share(case: Case, values: Values) -> tuple[list[Sample], list[Implausibility]]:
    issued = values.of(run_metrics.SYNC_OPERATIONS)
    received = values.of(run_metrics.QEMU_OPERATIONS, part="flush")
    seconds = values.of(run_metrics.RUNTIME, Direction.WRITE)
    window = values.of(run_metrics.WINDOW)
    disk = case.scenario.disk
    # Without a visible write cache, the guest has nothing to flush.
    if not issued or received is None or not (seconds and window) or not disk.cache.write_cache:
        return [], []
    share = (received / window) / (issued / seconds)
    judged = min(window, seconds) >= MIN_SECONDS
    # A guest's kernel joins flushes of jobs that wait at the same time.
    missing = judged and share * max(1.0, window / seconds) < MIN_SHARE / _jobs(case)
    text = f"QEMU received only {share:.0%} of the guest's flushes"
    failed = _if(missing, PlausibilityCheck.FLUSH_SHARE, text)
    return [FLUSH_SHARE.sample(share)], failed


def _against_host(
    case: Case, direction: Direction, values: Values, host: HostRates
) -> tuple[list[Sample], list[Implausibility]]:
    guest, own = values.of(run_metrics.IOPS, direction), host.get(direction)
    guest = values.of(run_metrics.BANDWIDTH, direction) if guest is None else guest
    if guest is None or not own or case.scenario.disk.on_host:
        return [], []
    ratio = GUEST_TO_HOST.sample(guest / own, direction)
    synced = direction is Direction.WRITE and _synced(case)
    text = (
        f"{guest:.0f} synced writes per second at depth 1, but the host's own device reaches only "
        f"{own:.0f}: writes are confirmed before they are on the device"
    )
    faster = synced and guest > FASTER_THAN_HOST * own
    return [ratio], _if(faster, PlausibilityCheck.BEATS_HOST, text)


def _against_network(
    case: Case, direction: Direction, values: Values
) -> tuple[list[Sample], list[Implausibility]]:
    limit, speed = values.of(run_metrics.NETWORK_LIMIT), values.of(run_metrics.BANDWIDTH, direction)
    if not limit or speed is None or direction is Direction.TRIM:
        return [], []
    share = speed / limit
    judged = case.scenario.disk.cache.direct and Caveat.CACHE not in case.workload.caveats
    failed = _if(
        judged and share > FASTER_THAN_LINK,
        PlausibilityCheck.BEATS_NETWORK,
        f"{direction}: {share:.0%} of the network link's capacity, although caches are "
        f"bypassed; the data did not come from the server, or over another link",
    )
    return [NETWORK_SHARE.sample(share, direction)], failed


def _synced(case: Case) -> bool:
    """Return whether every write of the workload waits for the device, one at a time."""
    parameters = case.workload.parameters
    alone = parameters.get("iodepth") == 1 and parameters.get("numjobs") == 1
    waits = parameters.get("sync") or 1 in (parameters.get("fsync"), parameters.get("fdatasync"))
    return bool(alone and waits)


def _cpu(case: Case, values: Values, host_cpus: int) -> list[Implausibility]:
    guest, machine = values.parts(run_metrics.GUEST_CPU), case.scenario.machine
    # Of a guest with another system, all CPUs are counted.
    failed = cpu_out_of_range(guest, cpus=machine.cpus if machine.foreign else 1)
    total = values.of(run_metrics.HOST_CPU, part="total")
    if total is not None and host_cpus:
        window = values.of(run_metrics.WINDOW) or 1.0
        failed += cpu_out_of_range({"of the host": total}, cpus=host_cpus, seconds=window)
    wait = (values.of(run_metrics.GUEST_CPU_WAIT) or 0.0) / machine.cpus
    # On a busy machine every guest is without a CPU for a second at times.
    starved = wait > STARVED and (values.of(run_metrics.WINDOW) or 0.0) >= MIN_SECONDS
    text = f"guest CPUs waited {wait:.0%} of the time for a host CPU; the host is overloaded"
    return failed + _if(starved, PlausibilityCheck.STARVED, text)


def _if(failed: bool, check: PlausibilityCheck, text: str) -> list[Implausibility]:
    return [Implausibility(check, text)] * failed


# --- Noise.

_VARIATIONS: Final = (run_metrics.IOPS_VARIATION.name, run_metrics.VMS_VARIATION.name)
NOISY_INTERVALS: Final = 5
"""Minimum number of intervals for the outcome `noisy`."""


def noise_reason(samples: Iterable[Sample], conduct: Conduct, parsed: Parsed) -> str:
    """Return why a run is noisy: the intervals of it, or of one VM, differ; empty: it is not."""
    enough = all(len(values) >= NOISY_INTERVALS for values in parsed.intervals.values())
    worst = max((s.value for s in samples if s.metric in _VARIATIONS), default=0.0)
    if not enough or worst <= conduct.noisy_ratio:
        return ""
    variation = f"interval variation {_over(worst, conduct.noisy_ratio)}"
    return f"{variation}; raise `runtime`, or reduce other load"


def _over(value: float, limit: float) -> str:
    """Return `52% exceeds 50%`, with decimals where both would look alike."""
    pairs = [(f"{value:.{digits}%}", f"{limit:.{digits}%}") for digits in range(4)]
    shown, most = next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])
    return f"{shown} exceeds {most}"
