"""Do the numbers of a result agree with each other? Each formula is in docs/measurement.md.

The same rules judge our own runs and tables that others published, where a lost decimal point
or a swapped row shows as a contradiction between the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RATE_TOLERANCE: Final = 0.01
SIZE_TOLERANCE: Final = 0.02
CPU_TOLERANCE: Final = 0.02
"""Of each CPU: counters are not all read at one moment."""
CPU_TICKS_SECONDS: Final = 0.05
"""How far a CPU's counted time may be off at the two ends together: they tick every 10 ms."""


class Doubt(StrEnum):
    """Why a run is suspicious; a closed set, for labels."""

    RATE = "rate"
    SIZE = "size"
    CPU = "cpu"
    DEVICE_SHARE = "device_share"
    FLUSH_SHARE = "flush_share"
    BEATS_HOST = "beats_host"
    BEATS_NETWORK = "beats_network"
    STARVED = "guest_starved"
    NOT_FILLED = "not_filled"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One doubt, in words with its numbers."""

    doubt: Doubt
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One direction's numbers in base units; None: not known.

    Attributes:
        size: bytes moved in `seconds`.
        iops_step, bandwidth_step, seconds_step: one unit of the last printed digit; 0: not
            rounded.
        in_flight: operations that may be under way at the two ends of the window, and so be
            counted in one of the columns only.
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


def contradictions(figures: Figures) -> list[Suspicion]:
    """Return where IOPS, block size, bandwidth, size and time do not agree."""
    return [*_rate(figures), *_size(figures)]


def _rate(figures: Figures) -> list[Suspicion]:
    if figures.iops is None or figures.bandwidth is None or not figures.block_bytes:
        return []
    product = figures.iops * figures.block_bytes
    # A whole unit of the last digit, not half of one: many tools cut instead of rounding.
    slack = RATE_TOLERANCE * figures.bandwidth
    slack += figures.iops_step * figures.block_bytes + figures.bandwidth_step
    if figures.seconds:
        slack += figures.in_flight * figures.block_bytes / figures.seconds
    if abs(product - figures.bandwidth) <= slack:
        return []
    return [
        Suspicion(
            Doubt.RATE,
            f"{figures.direction}: {figures.iops:.10g} IOPS x {figures.block_bytes} bytes are "
            f"{product:.10g} bytes/s, not {figures.bandwidth:.10g}",
        )
    ]


def _size(figures: Figures) -> list[Suspicion]:
    if not figures.size or not figures.seconds or figures.bandwidth is None:
        return []
    product = figures.bandwidth * figures.seconds
    slack = SIZE_TOLERANCE * figures.size + figures.bandwidth_step * figures.seconds
    slack += figures.seconds_step * figures.bandwidth
    if abs(product - figures.size) <= slack:
        return []
    return [
        Suspicion(
            Doubt.SIZE,
            f"{figures.direction}: {figures.bandwidth:.10g} bytes/s for {figures.seconds:.10g} s "
            f"are {product:.10g} bytes, not {figures.size:.10g}",
        )
    ]


def cpu_out_of_range(
    shares: Mapping[str, float], *, cpus: float = 1.0, seconds: float = 10.0
) -> list[Suspicion]:
    """Return what is below nothing or above all CPUs.

    Args:
        shares: in CPUs.
        cpus: how many there are.
        seconds: over which they were counted; in a short time single clock ticks weigh more.
    """
    slack = cpus * (CPU_TOLERANCE + CPU_TICKS_SECONDS / seconds)
    found = [
        Suspicion(Doubt.CPU, f"CPU {name} is {value * 100:.10g} % of {cpus:.10g} CPU")
        for name, value in shares.items()
        if not -slack <= value <= cpus + slack
    ]
    whole = sum(shares.values())
    if not found and len(shares) > 1 and whole > cpus + slack:
        words = " and ".join(shares)
        found = [Suspicion(Doubt.CPU, f"CPU {words} together are {whole * 100:.10g} %")]
    return found
