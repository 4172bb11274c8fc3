"""What of a run is judged, and what related cases share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.workload import Direction
from pvebench.store import Number

Place = tuple[str, str]
"""Of a case's: figure, direction or ""."""
Values = Sequence[float | None]
PER_DIRECTION: Final = {
    ("iops", ""): "throughput",
    ("clat_percentile", "99"): "latency_p99",
    ("clat_max", ""): "longest_stall",
}
"""At a fixed depth, bandwidth and mean latency say the same as the I/O rate: one is judged."""
NUMBERS: Final[tuple[Number, ...]] = (
    *((metric, way.value, part) for metric, part in PER_DIRECTION for way in Direction),
    ("host_cpu", "", "qemu"),
    ("host_cpu", "", "total"),
    ("boot_time", "", ""),
)
"""Numbers of the store that figures are made from."""
_OF_DIRECTIONS: Final = [(name, way.value) for name in PER_DIRECTION.values() for way in Direction]
"""The figures that the first of them are."""
NOT_MEASURED: Final = math.nan
_DURABLE_CACHES: Final = ("directsync", "writethrough")
_DURABLE_OPTIONS: Final = ("fsync", "fdatasync", "sync")


def figures_of(runs: Sequence[Values], tool: str) -> dict[Place, list[float]]:
    """Return of each figure the values of runs, those without it NOT_MEASURED.

    Args:
        runs: of each the `NUMBERS`, in their order.
    """
    *of_directions, qemu, total, boot = zip(*runs, strict=True)
    found = {
        place: [value if value and value > 0 else NOT_MEASURED for value in column]
        for place, column in zip(_OF_DIRECTIONS, of_directions, strict=True)
    }
    cores = [
        own if own is not None else all_of_it for own, all_of_it in zip(qemu, total, strict=True)
    ]
    rates = [sum(filter(None, one)) for one in zip(*of_directions[: len(Direction)], strict=True)]
    found["cpu_cost", ""] = [
        used / rate if used is not None and rate > 0 else NOT_MEASURED
        for used, rate in zip(cores, rates, strict=True)
    ]
    if tool == "idle":
        found["idle_cost", ""] = [_or_not_measured(used) for used in cores]
    # Any run may have had to boot; only those made for it give an unbroken series.
    if tool == "boot":
        found["boot_time", ""] = [_or_not_measured(value) for value in boot]
    return {place: column for place, column in found.items() if not all(map(math.isnan, column))}


def _or_not_measured(value: float | None) -> float:
    return NOT_MEASURED if value is None else value


def shared_labels(definition: Definition) -> dict[str, str]:
    """Return what related cases share."""
    found = {key: definition.labels[key] for key in ("storage", "bus", "cache", "format")}
    found |= {
        key: definition.options[key] for key in ("aio", "iothread") if definition.options.get(key)
    }
    load = definition.parameters.get("rw")
    found |= {"rw": str(load)} if load else {"tool": definition.tool}
    if is_durable(definition):
        found["durable"] = "yes"
    return found


def is_durable(definition: Definition) -> bool:
    """Tell whether each write must reach the device before it counts."""
    if Direction.WRITE not in definition.directions:
        return False
    asked = any(definition.parameters.get(key) for key in _DURABLE_OPTIONS)
    return definition.cache != "unsafe" and (asked or definition.cache in _DURABLE_CACHES)
