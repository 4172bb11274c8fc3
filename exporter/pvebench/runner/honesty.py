"""From a run's samples to its honesty figures and doubts; the rules are in `analysis.honesty`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pvebench.analysis import honesty
from pvebench.analysis.honesty import Figures, Suspicion
from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Case, Caveat, Direction

_Values = Mapping[tuple[str, Direction | None, str], float]
HostRates = Mapping[Direction, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the samples do not say.

    Attributes:
        host_cpus: how many CPUs the host has; 0: unknown.
        local: whether QEMU's own I/O is block I/O on this machine, so that its bytes count.
        filled: whether the volume was written from end to end.
        host: direction -> I/O per second of the host's own run of this workload on this storage.
    """

    host_cpus: int = 0
    local: bool = True
    filled: bool = True
    host: HostRates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Further samples of a run, and what is doubtful about it."""

    samples: tuple[Sample, ...]
    suspicions: tuple[Suspicion, ...]

    @property
    def reason(self) -> str:
        """All doubts in one line."""
        return "; ".join(suspicion.text for suspicion in self.suspicions)


def judge(case: Case, samples: Iterable[Sample], around: Circumstances) -> Judgement:
    """Return the honesty figures of a run and everything that makes it suspicious."""
    values = {(one.metric, one.direction, one.part): one.value for one in samples}
    if not case.workload.directions:
        return Judgement((), ())
    figures: list[Sample] = []
    doubts: list[Suspicion] = []
    for direction in case.workload.directions:
        doubts += honesty.contradictions(_figures(case, direction, values))
        made, found = _device_share(case, direction, values, around)
        figures, doubts = figures + made, doubts + found
        made, found = _against_host(case, direction, values, around.host)
        figures, doubts = figures + made, doubts + found
        made, found = _against_network(case, direction, values)
        figures, doubts = figures + made, doubts + found
    made, found = _flush_share(case, values)
    figures, doubts = figures + made, doubts + found + _cpu(case, values, around)
    reads = Direction.READ in case.workload.directions
    doubts += honesty.doubt_not_filled(reads=reads, filled=around.filled)
    marks = [
        Sample("suspicion", None, 1.0, Unit.RATIO, str(doubt))
        for doubt in dict.fromkeys(suspicion.doubt for suspicion in doubts)
    ]
    return Judgement((*figures, *marks), tuple(doubts))


SECONDS_STEP: Final = {"hdparm": 0.01}
"""Tool -> the last digit of the times that it prints: much, where the whole takes 70 ms."""


def _figures(case: Case, direction: Direction, values: _Values) -> Figures:
    block = case.workload.parameters.get("bs")
    timed = case.workload.runtime_seconds > 0
    return Figures(
        direction=str(direction),
        iops=values.get(("iops", direction, "")),
        bandwidth=values.get(("bandwidth", direction, "")),
        block_bytes=int(block) if block else None,
        size=values.get(("bytes", direction, "")),
        seconds=values.get(("runtime", direction, "")),
        seconds_step=SECONDS_STEP.get(case.workload.tool, 0.0),
        in_flight=_in_flight(case) if timed else 0,
    )


def _in_flight(case: Case) -> int:
    parameters = case.workload.parameters
    return int(parameters.get("iodepth", 1)) * int(parameters.get("numjobs", 1))


def _device_share(
    case: Case, direction: Direction, values: _Values, around: Circumstances
) -> tuple[list[Sample], list[Suspicion]]:
    if direction is Direction.TRIM:
        return [], []
    disk = case.scenario.disk
    # Past the page cache QEMU's own bytes are exact; through it only the device's say when they
    # really move, with whatever else uses that device.
    exact = disk.cache.direct or direction is Direction.READ
    counter = f"process_{direction}" if exact and not disk.on_host else f"device_{direction}"
    moved = values.get(("host_bytes", None, counter))
    window = values.get(("window", None, ""))
    size = values.get(("bytes", direction, ""))
    seconds = values.get(("runtime", direction, ""))
    usable = around.local or counter.startswith("device_")
    if moved is None or not (window and size and seconds) or not usable:
        return [], []
    # A timed run's window and the tool's own differ by moments: rates compare, bytes do not.
    timed = case.workload.runtime_seconds > 0
    share = honesty.device_share(
        moved / (window if timed else 1.0), size / (seconds if timed else 1.0)
    )
    if share is None:
        return [], []
    past_caches = disk.cache.direct and Caveat.CACHE not in case.workload.caveats
    long_enough = not timed or window >= honesty.LEAST_SECONDS
    judged = past_caches and size >= honesty.LEAST_BYTES and long_enough
    # What was under way at the ends of the window may have been counted on one side only.
    unsure = _in_flight(case) * int(case.workload.parameters.get("bs", 0)) / size if timed else 0.0
    doubts = honesty.doubt_device_share(str(direction), share, unsure=unsure) if judged else []
    return [Sample("device_share", direction, share, Unit.RATIO)], doubts


def _flush_share(case: Case, values: _Values) -> tuple[list[Sample], list[Suspicion]]:
    issued = values.get(("sync_operations", None, ""))
    seen = values.get(("qemu_operations", None, "flush"))
    seconds = values.get(("runtime", Direction.WRITE, ""))
    window = values.get(("window", None, ""))
    disk = case.scenario.disk
    # Without a write cache to see, the guest has nothing to flush.
    if not issued or seen is None or not (seconds and window) or not disk.cache.write_cache:
        return [], []
    share = (seen / window) / (issued / seconds)
    judged = window >= honesty.LEAST_SECONDS
    doubts = honesty.doubt_flush_share(share) if judged else []
    return [Sample("flush_share", None, share, Unit.RATIO)], doubts


def _against_host(
    case: Case, direction: Direction, values: _Values, host: HostRates
) -> tuple[list[Sample], list[Suspicion]]:
    metric = "iops" if ("iops", direction, "") in values else "bandwidth"
    guest, own = values.get((metric, direction, "")), host.get(direction)
    if guest is None or not own or case.scenario.disk.on_host:
        return [], []
    ratio = Sample("guest_to_host", direction, guest / own, Unit.RATIO)
    if direction is not Direction.WRITE or not _synced(case):
        return [ratio], []
    return [ratio], honesty.doubt_sync_write(guest, own)


def _against_network(
    case: Case, direction: Direction, values: _Values
) -> tuple[list[Sample], list[Suspicion]]:
    limit, speed = values.get(("network_limit", None, "")), values.get(("bandwidth", direction, ""))
    if not limit or speed is None or direction is Direction.TRIM:
        return [], []
    share = speed / limit
    judged = case.scenario.disk.cache.direct and Caveat.CACHE not in case.workload.caveats
    doubts = honesty.doubt_network(str(direction), share) if judged else []
    return [Sample("network_share", direction, share, Unit.RATIO)], doubts


def _synced(case: Case) -> bool:
    """Return whether every write of the workload waits for the device, one at a time."""
    parameters = case.workload.parameters
    alone = parameters.get("iodepth") == 1 and parameters.get("numjobs") == 1
    waits = parameters.get("sync") or 1 in (parameters.get("fsync"), parameters.get("fdatasync"))
    return bool(alone and waits)


def _cpu(case: Case, values: _Values, around: Circumstances) -> list[Suspicion]:
    guest = {part: value for (metric, _, part), value in values.items() if metric == "guest_cpu"}
    found = honesty.cpu_out_of_range(guest)
    total = values.get(("host_cpu", None, "total"))
    if total is not None and around.host_cpus:
        window = values.get(("window", None, ""), 1.0)
        found += honesty.cpu_out_of_range(
            {"of the host": total}, cpus=around.host_cpus, seconds=window
        )
    wait = values.get(("guest_cpu_wait", None, ""))
    # On a busy machine a second without a CPU happens to everybody.
    if wait is not None and values.get(("window", None, ""), 0.0) >= honesty.LEAST_SECONDS:
        found += honesty.doubt_starved(wait / case.scenario.machine.cpus)
    return found
