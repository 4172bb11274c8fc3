"""What of a run is judged, and what related cases share."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pvebench.model.definition import Definition
from pvebench.model.workload import Direction
from pvebench.store import Number

if TYPE_CHECKING:
    Column = array[float]

Place = tuple[str, str]
"""Of a case's: figure, direction or ""."""
PER_DIRECTION: Final = {
    ("iops", ""): "throughput",
    ("clat_percentile", "99"): "latency_p99",
    ("clat_max", ""): "longest_stall",
}
"""At a fixed depth, bandwidth and mean latency say the same as the I/O rate: one is judged."""
_CORES: Final = (("host_cpu", "", "qemu"), ("host_cpu", "", "total"))
_BOOT: Final = ("boot_time", "", "")
NUMBERS: Final[tuple[Number, ...]] = (
    *((metric, way.value, part) for metric, part in PER_DIRECTION for way in Direction),
    *_CORES,
    _BOOT,
)
"""Numbers of the store that figures are made from."""
_OF_DIRECTIONS: Final = [(name, way.value) for name in PER_DIRECTION.values() for way in Direction]
"""The figures that the first of them are."""
_RATES: Final = _OF_DIRECTIONS[: len(Direction)]
NOT_MEASURED: Final = math.nan
_DURABLE_CACHES: Final = ("directsync", "writethrough")
_DURABLE_OPTIONS: Final = ("fsync", "fdatasync", "sync")


def figures_of(values: Mapping[Number, Column], tool: str) -> dict[Place, Column]:
    """Return of each figure the values of runs, those without it NOT_MEASURED.

    Args:
        values: [runs] of each of the `NUMBERS` that one of them has.
    """
    found = {
        place: _positive(values[number])
        for place, number in zip(_OF_DIRECTIONS, NUMBERS, strict=False)
        if number in values
    }
    cores = _first_measured(*(values.get(number) for number in _CORES))
    rates = [found[place] for place in _RATES if place in found]
    if cores is not None and rates:
        found["cpu_cost", ""] = array("d", map(_cost, cores, _sums(rates)))
    if cores is not None and tool == "idle":
        found["idle_cost", ""] = cores
    # Any run may have had to boot; only those made for it give an unbroken series.
    if tool == "boot" and _BOOT in values:
        found["boot_time", ""] = values[_BOOT]
    return {place: column for place, column in found.items() if not all(map(math.isnan, column))}


def _positive(column: Column) -> Column:
    return array("d", [value if value > 0 else NOT_MEASURED for value in column])


def _first_measured(one: Column | None, other: Column | None) -> Column | None:
    if one is None or other is None:
        return one if other is None else other
    return array("d", map(_either, one, other))


def _either(one: float, other: float) -> float:
    return other if math.isnan(one) else one


def _sums(columns: Sequence[Column]) -> Iterable[float]:
    """Return what the runs measured in all directions together."""
    if len(columns) == 1:
        return columns[0]
    return [sum(value for value in row if value > 0) for row in zip(*columns, strict=True)]


def _cost(cores: float, rate: float) -> float:
    return cores / rate if rate > 0 else NOT_MEASURED


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
