"""Do the numbers of a run hold together? Pure; each formula is in docs/measurement.md.

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
LEAST_SHARE: Final = 0.5
"""Less than this share of the data (or flushes) is no longer the disk's work."""
STARVED: Final = 0.8
"""Share of the time in which the guest's CPUs were ready but had no CPU of the host."""
FASTER_THAN_HOST: Final = 1.10
FASTER_THAN_LINK: Final = 1.02
"""Over what the link carries: the ends of the window are not sharp."""
LEAST_SECONDS: Final = 3.0
"""In a shorter window the moments at its ends, seen late from outside, weigh too much."""
LEAST_BYTES: Final = 1 << 20
"""Of less than this nobody says how much of it reached the device."""


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


def device_share(device_rate: float, guest_rate: float) -> float | None:
    """Return bytes that reached the backing device ÷ bytes the guest moved; both bytes/s."""
    return device_rate / guest_rate if guest_rate > 0 else None


def doubt_device_share(direction: str, share: float, *, unsure: float = 0.0) -> list[Suspicion]:
    """Return a doubt if data that was to go past all caches did not come from the device.

    `unsure` is the share of the data of which it cannot be said whether it was in the window.
    """
    if share + 2 * unsure >= LEAST_SHARE:
        return []
    return [
        Suspicion(
            Doubt.DEVICE_SHARE,
            f"{direction}: only {share:.0%} of the bytes reached the device, although no cache is "
            f"in the way; the rest are holes, zeros, or a cache below",
        )
    ]


def doubt_flush_share(share: float) -> list[Suspicion]:
    """Return a doubt if the guest's flushes got lost on the way to QEMU."""
    if share >= LEAST_SHARE:
        return []
    text = f"QEMU saw {share:.0%} of the flushes that the guest issued"
    return [Suspicion(Doubt.FLUSH_SHARE, text)]


def doubt_sync_write(guest_iops: float, host_iops: float) -> list[Suspicion]:
    """Return a doubt if a synced write at depth 1 is faster than the host's own device."""
    if guest_iops <= FASTER_THAN_HOST * host_iops:
        return []
    return [
        Suspicion(
            Doubt.BEATS_HOST,
            f"{guest_iops:.0f} synced writes a second at depth 1, where the host's own device "
            f"makes {host_iops:.0f}: the writes are not on the device when they are said to be",
        )
    ]


def doubt_network(direction: str, share: float) -> list[Suspicion]:
    """Return a doubt if more came over the network than its link carries."""
    if share <= FASTER_THAN_LINK:
        return []
    return [
        Suspicion(
            Doubt.BEATS_NETWORK,
            f"{direction}: {share:.0%} of what the network's link carries, although no cache is in "
            f"the way; the data did not come from the server, or the link is another one",
        )
    ]


def doubt_starved(wait: float) -> list[Suspicion]:
    """Return a doubt if the guest's CPUs waited for the host's most of the time."""
    if wait <= STARVED:
        return []
    text = f"the guest's CPUs waited for the host {wait:.0%} of the time; the host is overloaded"
    return [Suspicion(Doubt.STARVED, text)]


def doubt_not_filled(*, reads: bool, filled: bool) -> list[Suspicion]:
    """Return a doubt if something was read from a volume that was never written in full."""
    if filled or not reads:
        return []
    text = "the volume was not filled: reads of what was never written do not ask the storage"
    return [Suspicion(Doubt.NOT_FILLED, text)]
