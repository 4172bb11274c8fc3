"""What of a run is judged, and what related cases share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pvebench.model.definition import Definition
from pvebench.model.workload import Direction

Values = Mapping[tuple[str, str, str], float]
"""(metric, direction or "", part) -> value, as the store gives them."""

METRICS: Final = ("iops", "clat_percentile", "clat_max", "host_cpu", "boot_time")
"""Metrics of the store that figures are made from."""
PARTS: Final = ("", "99", "qemu", "total")
"""Parts of them: of seven percentiles one is judged."""
PER_DIRECTION: Final = {
    ("iops", ""): "throughput",
    ("clat_percentile", "99"): "latency_p99",
    ("clat_max", ""): "longest_stall",
}
"""At a fixed depth, bandwidth and mean latency say the same as the I/O rate: one is judged."""
_DURABLE_CACHES: Final = ("directsync", "writethrough")
_DURABLE_OPTIONS: Final = ("fsync", "fdatasync", "sync")


def figures_of(values: Values, tool: str) -> Iterator[tuple[str, str, float]]:
    """Yield (figure, direction or "", value) of a run; what was not measured is absent."""
    for (metric, direction, part), value in values.items():
        name = PER_DIRECTION.get((metric, part))
        if name is not None and direction and value > 0:
            yield name, direction, value
    cores = values.get(("host_cpu", "", "qemu"), values.get(("host_cpu", "", "total")))
    rate = sum(value for (metric, _, _), value in values.items() if metric == "iops")
    if cores is not None and rate > 0:
        yield "cpu_cost", "", cores / rate
    if cores is not None and tool == "idle":
        yield "idle_cost", "", cores
    # Any run may have had to boot; only those made for it give an unbroken series.
    if tool == "boot" and ("boot_time", "", "") in values:
        yield "boot_time", "", values["boot_time", "", ""]


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
