"""The buckets that latencies are counted in, the same for every case and node: they add up.

Each holds twice the time of the one before. Tools that count in binary bins (fio) have an edge of
theirs at every one of them, so no operation is between two buckets.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_EDGES: Final = tuple(1 << bit for bit in range(15, 31))
"""Nanoseconds: 33 us to 1.07 s."""
LATENCY_BOUNDS: Final = (*(repr(edge / 1e9) for edge in _EDGES), "+Inf")
"""Upper bounds in seconds, as Prometheus spells them."""
SUM: Final = "sum"
"""Part of a sample beside those of the buckets: all latencies together, in seconds."""


def latency_bound(nanoseconds: int) -> str:
    """Return the upper bound of the bucket that a latency is counted in."""
    return LATENCY_BOUNDS[bisect_right(_EDGES, nanoseconds)]
