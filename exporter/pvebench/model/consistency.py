"""Consistency of a result's numbers; the formulas are in docs/measurement.md.

The same rules apply to pvebench's runs and to published tables, where a lost decimal point or a
swapped row is a contradiction between the columns. What cannot be true of any set of values, such
as a mean above the maximum, is `impossible`: a parser rejects such output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

RATE_TOLERANCE: Final = 0.01
SIZE_TOLERANCE: Final = 0.02
CPU_TOLERANCE: Final = 0.02
"""Tolerance per CPU: the counters are not read at the same moment."""
CPU_TICKS_SECONDS: Final = 0.05
"""Maximum error of a CPU's counted time at both ends together: ticks are 10 ms."""


MAX_DEVICE_SHARE: Final = 64.0
"""Largest ratio of a device's bytes to the guest's that metadata and copies explain: 256 KiB
written for 4 KiB. A larger one contains I/O of other programs."""


def is_own_share(share: float) -> bool:
    """Return whether a device share can be that of the run alone."""
    return 0 <= share <= MAX_DEVICE_SHARE


class PlausibilityCheck(StrEnum):
    """Check that a run can fail; a closed set, for labels."""

    RATE = "rate"
    SIZE = "size"
    LATENCY = "latency"
    CLOCK = "clock"
    QEMU_BYTES = "qemu_bytes"
    CPU = "cpu"
    DEVICE_SHARE = "device_share"
    FLUSH_SHARE = "flush_share"
    BEATS_HOST = "beats_host"
    BEATS_NETWORK = "beats_network"
    STARVED = "guest_starved"
    NOT_FILLED = "not_filled"


@dataclass(frozen=True, slots=True)
class Implausibility:
    """Failed check, with a text that contains its numbers."""

    check: PlausibilityCheck
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Numbers of one direction in base units; None: not known.

    Attributes:
        size: bytes moved in `seconds`.
        iops_step, bandwidth_step, seconds_step, latency_step: one unit of the last printed digit;
            0: not rounded.
        in_flight: maximum operations in flight at the ends of the window, which may be counted in
            one of the columns only.
    """

    direction: str
    iops: float | None = None
    bandwidth: float | None = None
    block_bytes: int | None = None
    size: float | None = None
    seconds: float | None = None
    iops_step: float = 0.0
    bandwidth_step: float = 0.0
    seconds_step: float = 0.0
    in_flight: int = 0
    latency_mean: float | None = None
    latency_max: float | None = None
    latency_step: float = 0.0


def contradictions(figures: Figures) -> list[Implausibility]:
    """Return contradictions of IOPS, block size, bandwidth, size, time and latencies."""
    return [*_rate(figures), *_size(figures), *_latency(figures)]


def _rate(figures: Figures) -> Iterator[Implausibility]:
    if figures.iops is None or figures.bandwidth is None or not figures.block_bytes:
        return
    product = figures.iops * figures.block_bytes
    # A whole unit of the last digit, not half of one: many tools truncate instead of rounding.
    slack = RATE_TOLERANCE * figures.bandwidth
    slack += figures.iops_step * figures.block_bytes + figures.bandwidth_step
    if figures.seconds:
        slack += figures.in_flight * figures.block_bytes / figures.seconds
    if abs(product - figures.bandwidth) > slack:
        yield Implausibility(
            PlausibilityCheck.RATE,
            f"{figures.direction}: {figures.iops:.10g} IOPS x {figures.block_bytes} bytes = "
            f"{product:.10g} bytes/s, not {figures.bandwidth:.10g}",
        )


def _size(figures: Figures) -> Iterator[Implausibility]:
    if not figures.size or not figures.seconds or figures.bandwidth is None:
        return
    product = figures.bandwidth * figures.seconds
    slack = SIZE_TOLERANCE * figures.size + figures.bandwidth_step * figures.seconds
    slack += figures.seconds_step * figures.bandwidth
    if abs(product - figures.size) > slack:
        yield Implausibility(
            PlausibilityCheck.SIZE,
            f"{figures.direction}: {figures.bandwidth:.10g} bytes/s x {figures.seconds:.10g} s = "
            f"{product:.10g} bytes, not {figures.size:.10g}",
        )


def _latency(figures: Figures) -> list[Implausibility]:
    spread = Spread(
        what=f"{figures.direction}: latency",
        mean=figures.latency_mean,
        maximum=figures.latency_max,
        step=figures.latency_step,
    )
    return [Implausibility(PlausibilityCheck.LATENCY, text) for text in impossible(spread)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Statistics of one set of values, all in one unit; None: not known.

    Attributes:
        what: name of the values, for messages: `read: clat_ns`.
        percentiles: rank -> value.
        step: one unit of the last printed digit.
        bin_share: maximum relative error of a percentile that comes from bins.
        bins_end: all values above it are in one bin.
    """

    what: str
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None
    stddev: float | None = None
    percentiles: Mapping[float, float] = field(default_factory=dict)
    step: float = 0.0
    bin_share: float = 0.0
    bins_end: float = math.inf


def impossible(spread: Spread) -> list[str]:
    """Return descriptions of what cannot be true of any set of values."""
    return [f"{spread.what}: {text}" for text in (*_values(spread), *_ranks(spread))]


def _values(spread: Spread) -> Iterator[str]:
    """Yield contradictions of min, mean, max and stddev."""
    named = (("min", spread.minimum), ("mean", spread.mean), ("max", spread.maximum))
    known = [(name, value) for name, value in named if value is not None]
    for name, value in (*known, ("stddev", spread.stddev or 0.0)):
        if not (math.isfinite(value) and value >= 0):
            yield f"{name} is {value:.10g}"
    for (below, low), (above, high) in itertools.pairwise(known):
        if low > high + spread.step:
            yield f"{below} {low:.10g} is above {above} {high:.10g}"
    if spread.stddev is None or spread.minimum is None or spread.maximum is None:
        return
    # Popoviciu's inequality: the stddev is largest with half of the values at each end. Tools
    # divide by n - 1, which for two values increases it by the root of 2.
    widest = (spread.maximum - spread.minimum + 2 * spread.step) * math.sqrt(0.5)
    if spread.stddev > widest + spread.step:
        yield f"stddev {spread.stddev:.10g} is too large for min and max"


def _ranks(spread: Spread) -> Iterator[str]:
    """Yield contradictions of the percentiles."""
    ordered = sorted(spread.percentiles.items())
    for rank, value in ordered:
        if not 0 < rank <= 100:
            yield f"percentile {rank:.10g} does not exist"
        if not (math.isfinite(value) and value >= 0):
            yield f"percentile {rank:.10g} is {value:.10g}"
    for (lower, low), (higher, high) in itertools.pairwise(ordered):
        if low > high:
            yield f"percentile {lower:.10g} of {low:.10g} is above {higher:.10g} of {high:.10g}"
    if not ordered:
        return
    (lower, low), (higher, high) = ordered[0], ordered[-1]
    most, least = spread.maximum, spread.minimum
    if most is not None and high > (most + spread.step) * (1 + spread.bin_share):
        yield f"percentile {higher:.10g} of {high:.10g} is above max {most:.10g}"
    if least is None:
        return
    if low < (min(least, spread.bins_end) - spread.step) * (1 - spread.bin_share):
        yield f"percentile {lower:.10g} of {low:.10g} is below min {least:.10g}"


def cpu_out_of_range(
    shares: Mapping[str, float], *, cpus: float = 1.0, seconds: float = 10.0
) -> list[Implausibility]:
    """Return the shares that are negative or exceed all CPUs.

    Args:
        shares: in CPUs.
        cpus: number of CPUs.
        seconds: length of the window; in a short one single clock ticks weigh more.
    """
    slack = cpus * (CPU_TOLERANCE + CPU_TICKS_SECONDS / seconds)
    failed = [
        Implausibility(
            PlausibilityCheck.CPU, f"CPU {name} is {value * 100:.10g}% of {cpus:.10g} CPU"
        )
        for name, value in shares.items()
        if not -slack <= value <= cpus + slack
    ]
    whole = sum(shares.values())
    if not failed and len(shares) > 1 and whole > cpus + slack:
        names = " and ".join(shares)
        failed = [
            Implausibility(PlausibilityCheck.CPU, f"CPU {names} together are {whole * 100:.10g}%")
        ]
    return failed
