"""What a column of the user's can mean, and in which units its numbers may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pvebench.errors import ConfigError, Problem
from pvebench.model.units import GIB, KIB, MIB, TIB
from pvebench.report.delimited import Cell

# Upper and lower case matter: Mb/s would be bits to some and bytes to others, and KB/s is either
# 1000 or 1024; both are refused, with those that are clear.
_RATES: Final = {
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "KiB/s": float(KIB), "MiB/s": float(MIB),
    "GiB/s": float(GIB), "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8,
}  # fmt: skip
_TIMES: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
_SIZES: Final = {
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": float(KIB), "MiB": float(MIB),
    "GiB": float(GIB), "TiB": float(TIB),
}  # fmt: skip
NUMBERS: Final[dict[str, tuple[str, Mapping[str, float]]]] = {
    "iops": ("iops", {}),
    "bandwidth": ("bandwidth", _RATES),
    "latency_mean": ("clat_mean", _TIMES),
    "latency_max": ("clat_max", _TIMES),
    "size": ("bytes", _SIZES),
    "runtime": ("runtime", _TIMES),
}
"""Field -> its metric, and unit -> factor to the base unit; none: it is a plain number."""
TEXTS: Final = ("storage", "bus", "format", "cache", "tool", "rw", "scenario", "workload")
COUNTS: Final = ("iodepth", "numjobs")
SIDES: Final = ("read", "write")
FIELDS: Final = (
    "case", *TEXTS, "direction", "bs", *COUNTS, *NUMBERS,
    *(f"{side}_{name}" for side in SIDES for name in NUMBERS),
)  # fmt: skip
_UNIT_IN_HEADER: Final = re.compile(r"(?:[\[(]\s*(?P<b>[^\])]+?)\s*[\])]|\bin (?P<w>\S+))\s*\Z")


def plain_field(name: str) -> str:
    """Return a field without its side: `iops` of `read_iops`."""
    side, _, rest = name.partition("_")
    return rest if side in SIDES else name


def unit_factor(file: str, name: str, heading: Cell, given: str) -> float:
    """Return what turns the column's numbers into base units: as told, or as its header says."""
    units = NUMBERS[plain_field(name)][1]
    if not units:
        return 1.0
    found = _UNIT_IN_HEADER.search(heading.text)
    unit = given or ((found["b"] or found["w"]) if found else "")
    if not unit:
        message = f"{heading.text!r} does not say its unit; say it: --unit {name}={_example(units)}"
        raise complaint(file, heading, message)
    if unit not in units:
        message = f"{unit!r} is no unit of {name}; these are: {', '.join(units)}"
        raise complaint(file, heading, message)
    return units[unit]


def _example(units: Mapping[str, float]) -> str:
    return "MB/s" if units is _RATES else "ms" if units is _TIMES else "MiB"


def complaint(file: str, place: object, message: str) -> ConfigError:
    """Return the error about a cell of the file; without one it is about the header."""
    line, column = (place.line, place.column) if isinstance(place, Cell) else (1, 1)
    return ConfigError([Problem(file, line, column, message)])
