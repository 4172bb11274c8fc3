"""What comes of a run, and the reasons for which a run that ended well counts less."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pvebench.model.plausibility import (
    Figures,
    Implausibility,
    PlausibilityCheck,
    contradictions,
    cpu_out_of_range,
)
from pvebench.model.run import Outcome, Sample, Unit
from pvebench.model.workload import Case, Caveat, Conduct, Direction
from pvebench.runner.prepare import Evidence
from pvebench.runner.steady import Settled, steadiness
from pvebench.workloads import TOOLS, Parsed

# --- From a run's samples to its honesty figures and doubts; formulas in docs/measurement.md.

_Values = Mapping[tuple[str, Direction | None, str], float]
HostRates = Mapping[Direction, float]
LEAST_SHARE: Final = 0.5
"""Less than this share of the data (or flushes) is no longer the disk's work."""
STARVED: Final = 0.8
"""Share of the time in which the guest's CPUs were ready but had no CPU of the host."""
FASTER_THAN_HOST: Final = 1.10
FASTER_THAN_LINK: Final = 1.02
"""Over what the link carries: the ends of the window are not sharp."""
LEAST_SECONDS: Final = 3.0
"""In a shorter window, or run, the moments at the ends, seen late from outside, weigh too much."""
LEAST_BYTES: Final = 1 << 20
"""Of less than this nobody says how much of it reached the device."""


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
    implausibilities: tuple[Implausibility, ...]

    @property
    def reason(self) -> str:
        """All doubts in one line."""
        return "; ".join(implausibility.text for implausibility in self.implausibilities)


def judge(case: Case, samples: Iterable[Sample], around: Circumstances) -> Judgement:
    """Return the honesty figures of a run and everything that makes it implausible."""
    values = {(one.metric, one.direction, one.part): one.value for one in samples}
    if not case.workload.directions:
        return Judgement((), ())
    figures: list[Sample] = []
    doubts: list[Implausibility] = []
    for direction in case.workload.directions:
        doubts += contradictions(_figures(case, direction, values))
        made, found = _device_share(case, direction, values, around)
        figures, doubts = figures + made, doubts + found
        made, found = _against_host(case, direction, values, around.host)
        figures, doubts = figures + made, doubts + found
        made, found = _against_network(case, direction, values)
        figures, doubts = figures + made, doubts + found
    made, found = _flush_share(case, values)
    figures, doubts = figures + made, doubts + found + _cpu(case, values, around)
    reads = Direction.READ in case.workload.directions
    doubts += _doubt_not_filled(reads=reads, filled=around.filled)
    marks = [
        Sample("implausibility", None, 1.0, Unit.RATIO, str(doubt))
        for doubt in dict.fromkeys(implausibility.doubt for implausibility in doubts)
    ]
    return Judgement((*figures, *marks), tuple(doubts))


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
        seconds_step=TOOLS[case.workload.tool].seconds_step,
        in_flight=_in_flight(case) if timed else 0,
    )


def _in_flight(case: Case) -> int:
    parameters = case.workload.parameters
    return int(parameters.get("iodepth", 1)) * int(parameters.get("numjobs", 1))


def _device_share(
    case: Case, direction: Direction, values: _Values, around: Circumstances
) -> tuple[list[Sample], list[Implausibility]]:
    if direction is Direction.TRIM:
        return [], []
    disk = case.scenario.disk
    # Past the page cache QEMU's own bytes are exact; through it only the device's say when they
    # really move, with whatever else uses that device.
    exact = (disk.cache.direct or direction is Direction.READ) and disk.in_vm and around.local
    moved = values.get(("host_bytes", None, f"process_{direction}")) if exact else None
    if moved is None:
        moved = values.get(("host_bytes", None, f"device_{direction}"))
    window = values.get(("window", None, ""))
    size = values.get(("bytes", direction, ""))
    seconds = values.get(("runtime", direction, ""))
    if moved is None or not (window and size and seconds):
        return [], []
    # A timed run's window and the tool's own differ by moments: rates compare, bytes do not.
    timed = case.workload.runtime_seconds > 0
    share = (moved / (window if timed else 1.0)) / (size / (seconds if timed else 1.0))
    past_caches = disk.cache.direct and Caveat.CACHE not in case.workload.caveats
    long_enough = not timed or min(window, seconds) >= LEAST_SECONDS
    judged = past_caches and size >= LEAST_BYTES and long_enough
    # What was under way at the ends of the window may have been counted on one side only.
    unsure = _in_flight(case) * int(case.workload.parameters.get("bs", 0)) / size if timed else 0.0
    most = share * (_in_the_tools_time(window, seconds) if timed else 1.0) + 2 * unsure
    doubts = _doubt_device_share(str(direction), share, most) if judged else []
    return [Sample("device_share", direction, share, Unit.RATIO)], doubts


def _in_the_tools_time(window: float, seconds: float) -> float:
    """Return by what a share grows if all that was counted fell into the tool's own time.

    Counters that take long to be read, as by ssh, are of a longer window: what was done when
    nobody knows. A share that may be whole is not doubted.
    """
    return max(1.0, window / seconds)


def _flush_share(case: Case, values: _Values) -> tuple[list[Sample], list[Implausibility]]:
    issued = values.get(("sync_operations", None, ""))
    seen = values.get(("qemu_operations", None, "flush"))
    seconds = values.get(("runtime", Direction.WRITE, ""))
    window = values.get(("window", None, ""))
    disk = case.scenario.disk
    # Without a write cache to see, the guest has nothing to flush.
    if not issued or seen is None or not (seconds and window) or not disk.cache.write_cache:
        return [], []
    share = (seen / window) / (issued / seconds)
    judged = min(window, seconds) >= LEAST_SECONDS
    most = share * _in_the_tools_time(window, seconds)
    doubts = _doubt_flush_share(share, most) if judged else []
    return [Sample("flush_share", None, share, Unit.RATIO)], doubts


def _against_host(
    case: Case, direction: Direction, values: _Values, host: HostRates
) -> tuple[list[Sample], list[Implausibility]]:
    metric = "iops" if ("iops", direction, "") in values else "bandwidth"
    guest, own = values.get((metric, direction, "")), host.get(direction)
    if guest is None or not own or case.scenario.disk.on_host:
        return [], []
    ratio = Sample("guest_to_host", direction, guest / own, Unit.RATIO)
    if direction is not Direction.WRITE or not _synced(case):
        return [ratio], []
    return [ratio], _doubt_sync_write(guest, own)


def _against_network(
    case: Case, direction: Direction, values: _Values
) -> tuple[list[Sample], list[Implausibility]]:
    limit, speed = values.get(("network_limit", None, "")), values.get(("bandwidth", direction, ""))
    if not limit or speed is None or direction is Direction.TRIM:
        return [], []
    share = speed / limit
    judged = case.scenario.disk.cache.direct and Caveat.CACHE not in case.workload.caveats
    doubts = _doubt_network(str(direction), share) if judged else []
    return [Sample("network_share", direction, share, Unit.RATIO)], doubts


def _synced(case: Case) -> bool:
    """Return whether every write of the workload waits for the device, one at a time."""
    parameters = case.workload.parameters
    alone = parameters.get("iodepth") == 1 and parameters.get("numjobs") == 1
    waits = parameters.get("sync") or 1 in (parameters.get("fsync"), parameters.get("fdatasync"))
    return bool(alone and waits)


def _cpu(case: Case, values: _Values, around: Circumstances) -> list[Implausibility]:
    guest = {part: value for (metric, _, part), value in values.items() if metric == "guest_cpu"}
    found = cpu_out_of_range(guest)
    total = values.get(("host_cpu", None, "total"))
    if total is not None and around.host_cpus:
        window = values.get(("window", None, ""), 1.0)
        found += cpu_out_of_range({"of the host": total}, cpus=around.host_cpus, seconds=window)
    wait = values.get(("guest_cpu_wait", None, ""))
    # On a busy machine a second without a CPU happens to everybody.
    if wait is not None and values.get(("window", None, ""), 0.0) >= LEAST_SECONDS:
        found += _doubt_starved(wait / case.scenario.machine.cpus)
    return found


def _doubt_device_share(direction: str, share: float, at_most: float) -> list[Implausibility]:
    """Return a doubt if data that was to go past all caches did not come from the device.

    `at_most` is the share with all of which it cannot be said whether it was in the window.
    """
    if at_most >= LEAST_SHARE:
        return []
    return [
        Implausibility(
            PlausibilityCheck.DEVICE_SHARE,
            f"{direction}: only {share:.0%} of the bytes reached the device, although no cache is "
            f"in the way; the rest are holes, zeros, or a cache below",
        )
    ]


def _doubt_flush_share(share: float, at_most: float) -> list[Implausibility]:
    """Return a doubt if the guest's flushes got lost on the way to QEMU."""
    if at_most >= LEAST_SHARE:
        return []
    text = f"QEMU saw {share:.0%} of the flushes that the guest issued"
    return [Implausibility(PlausibilityCheck.FLUSH_SHARE, text)]


def _doubt_sync_write(guest_iops: float, host_iops: float) -> list[Implausibility]:
    """Return a doubt if a synced write at depth 1 is faster than the host's own device."""
    if guest_iops <= FASTER_THAN_HOST * host_iops:
        return []
    return [
        Implausibility(
            PlausibilityCheck.BEATS_HOST,
            f"{guest_iops:.0f} synced writes a second at depth 1, where the host's own device "
            f"makes {host_iops:.0f}: the writes are not on the device when they are said to be",
        )
    ]


def _doubt_network(direction: str, share: float) -> list[Implausibility]:
    """Return a doubt if more came over the network than its link carries."""
    if share <= FASTER_THAN_LINK:
        return []
    return [
        Implausibility(
            PlausibilityCheck.BEATS_NETWORK,
            f"{direction}: {share:.0%} of what the network's link carries, although no cache is in "
            f"the way; the data did not come from the server, or the link is another one",
        )
    ]


def _doubt_starved(wait: float) -> list[Implausibility]:
    """Return a doubt if the guest's CPUs waited for the host's most of the time."""
    if wait <= STARVED:
        return []
    text = f"the guest's CPUs waited for the host {wait:.0%} of the time; the host is overloaded"
    return [Implausibility(PlausibilityCheck.STARVED, text)]


def _doubt_not_filled(*, reads: bool, filled: bool) -> list[Implausibility]:
    """Return a doubt if something was read from a volume that was never written in full."""
    if filled or not reads:
        return []
    text = "the volume was not filled: reads of what was never written do not ask the storage"
    return [Implausibility(PlausibilityCheck.NOT_FILLED, text)]


NOISY_INTERVALS: Final = 5
"""Fewer intervals say too little to call a run noisy."""


@dataclasses.dataclass(slots=True)
class Result:
    """What comes of a run, filled as it goes."""

    outcome: Outcome = Outcome.OK
    reason: str = ""
    retryable: bool = False
    filled: bool = True
    samples: list[Sample] = dataclasses.field(default_factory=list)
    evidence: Evidence = dataclasses.field(default_factory=dict)
    written_bytes: int = 0

    def demote(self, outcome: Outcome, reason: str) -> None:
        """Lower a good outcome; the first reason stays, unless the new one ends being good."""
        if self.outcome is Outcome.OK or (self.outcome.good and not outcome.good):
            self.outcome, self.reason = outcome, reason

    def fail(self, outcome: Outcome, reason: str) -> None:
        """End it with a reason; numbers of a run that went wrong are none."""
        self.outcome, self.reason = outcome, reason
        self.samples.clear()

    def settled(self, settled: Settled) -> None:
        """Take over what was seen while the disk settled."""
        self.samples += settled.samples()
        self.evidence["steady_rates"] = "\n".join(f"{rate:.1f}" for rate in settled.rates)
        if not settled.steady:
            self.demote(Outcome.NOT_STEADY, settled.reason())

    def judge_noise(self, conduct: Conduct, parsed: Parsed) -> None:
        """Call it noisy if its own intervals differ too much."""
        enough = [len(values) >= NOISY_INTERVALS for values in parsed.intervals.values()]
        variations = [one.value for one in parsed.samples if one.metric == "iops_variation"]
        worst = max(variations, default=0.0)
        if all(enough) and worst > conduct.noisy_ratio:
            self.demote(
                Outcome.NOISY,
                f"the intervals vary by {worst:.0%} of their mean, "
                f"more than {conduct.noisy_ratio:.0%}",
            )


def slopes(parsed: Parsed) -> list[Sample]:
    """Return how much the rate still moved within the measured window, for each direction."""
    found = {name: steadiness(values) for name, values in parsed.intervals.items()}
    return [
        Sample("iops_slope", Direction(name), one.slope_ratio, Unit.RATIO)
        for name, one in found.items()
        if one is not None
    ]
