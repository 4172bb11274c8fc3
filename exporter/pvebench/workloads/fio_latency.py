"""fio's latency statistics, of one job or of several taken together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pvebench.workloads.fio_json import number

NANOSECONDS: Final = 1e9
"""In a second. Dividing by it keeps 284672 ns at 0.000284672 s; multiplying does not."""
_PERCENTILE: Final = re.compile(r"\d{1,3}(\.\d+)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Times in seconds; None where fio gave none.

    Attributes:
        count: operations behind the figures, never 0.
        percentiles: `99.9` -> seconds.
        jobs: how many jobs are in it; of more than one, each percentile is the worst job's.
    """

    count: float
    mean: float | None
    minimum: float | None
    maximum: float | None
    stddev: float | None
    percentiles: Mapping[str, float]
    jobs: int


def read_latency(blocks: Iterable[Any]) -> Latency | None:
    """Return what fio's `…lat_ns` objects say together, or None if nothing was counted.

    Means are weighted by their counts and standard deviations pooled, both exactly.
    Percentiles of several jobs cannot be put together from percentiles: the largest is taken.
    """
    counted = [block for block in blocks if number(block, "N")]
    if not counted:
        return None
    counts = [number(block, "N") or 0.0 for block in counted]
    total = sum(counts)
    means = _all(counted, "mean")
    minima, maxima = _all(counted, "min"), _all(counted, "max")
    mean = math.fsum(m * n / total for m, n in zip(means, counts, strict=True)) if means else None
    return Latency(
        count=total,
        mean=_seconds(mean),
        minimum=_seconds(min(minima, default=None)),
        maximum=_seconds(max(maxima, default=None)),
        stddev=_seconds(_pooled(counts, means, _all(counted, "stddev"))),
        percentiles=_worst(counted),
        jobs=len(counted),
    )


def _all(blocks: list[Any], key: str) -> list[float]:
    """Return the values of `key`, or nothing unless every block has it."""
    values = [value for block in blocks if (value := number(block, key)) is not None]
    return values if len(values) == len(blocks) else []


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / NANOSECONDS


def _pooled(counts: list[float], means: list[float], deviations: list[float]) -> float | None:
    """Return the sample standard deviation of all operations, from those of the groups."""
    if not means or not deviations:
        return None
    if len(counts) == 1:
        return deviations[0]
    total = sum(counts)
    mean = sum(m * n / total for m, n in zip(means, counts, strict=True))
    squares = sum(
        (n - 1) * s * s + n * (m - mean) * (m - mean)
        for n, m, s in zip(counts, means, deviations, strict=True)
    )
    return math.sqrt(squares / (total - 1)) if total > 1 and squares >= 0 else None


def _worst(blocks: list[Any]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for block in blocks:
        table = block.get("percentile")
        for key in table if isinstance(table, dict) else ():
            value = number(table, key)
            if value is None or not _PERCENTILE.match(key):
                continue
            name = f"{float(key):g}"
            worst[name] = max(worst.get(name, 0.0), value / NANOSECONDS)
    return worst
