"""Judged figures: which numbers of a run have verdicts, and the words for their changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pvebench.model import figures
from pvebench.model.figure import Exported
from pvebench.model.workload import Direction

FigureKind = Literal["speed", "stall", "cost", "operation"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure with verdicts.

    Attributes:
        name: its name in labels.
        kind: meaning of its changes.
        source, part: the number of a run that it is read or computed from.
        noun, worse, better: words of the verdict.
        least_effect: smallest relevant change, a logarithm.
        floor: smallest value that differs from zero, in the figure's unit.
    """

    name: str
    kind: FigureKind
    source: Exported
    part: str
    noun: str
    worse: str
    better: str
    least_effect: float
    floor: float

    @property
    def more_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.worse == "slower"

    @property
    def per_direction(self) -> bool:
        """Whether a run has one value per direction."""
        return "direction" in self.source.metric.labels


_HIGHER: Final = ("higher", "lower")
_LONGER: Final = ("longer", "shorter")
_GAP: Final = "gap during the operation"
_IDLE: Final = "host CPU of the idle VM"
_TIME: Final = "duration"
_ROWS: Final = (
    Judged("throughput", "speed", figures.IOPS, "", "throughput", "slower", "faster", 0.015, 1e-3),
    Judged("longest_stall", "stall", figures.CLAT_MAX, "", "longest stall", *_LONGER, 0.4, 1e-3),
    Judged("operation_gap", "stall", figures.OPERATION_GAP, "", _GAP, *_LONGER, 0.4, 0.1),
    Judged("cpu_cost", "cost", figures.HOST_CPU, "qemu", "host CPU per I/O", *_HIGHER, 0.03, 1e-9),
    Judged("idle_cost", "cost", figures.HOST_CPU, "qemu", _IDLE, *_HIGHER, 0.05, 1e-5),
    Judged("operation_time", "operation", figures.OPERATION_TIME, "", _TIME, *_LONGER, 0.05, 1e-4),
    Judged("boot_time", "operation", figures.BOOT_TIME, "", "boot time", *_LONGER, 0.05, 1e-3),
    Judged(
        "latency_p99", "speed", figures.CLAT_PERCENTILE, "99", "p99 latency", *_HIGHER, 0.05, 1e-7
    ),
)
JUDGED: Final[Mapping[str, Judged]] = {row.name: row for row in _ROWS}
"""In display order: a change is named after the first one that shifted."""

Number = tuple[str, str, str]
"""Key of one of a run's numbers: metric, direction or "", part."""
CORES: Final[tuple[Number, ...]] = tuple(
    (figures.HOST_CPU.name, "", part) for part in ("qemu", "total")
)
NUMBER_OF: Final[Mapping[tuple[str, str], Number]] = {
    (row.name, way): (row.source.name, way, row.part)
    for row in _ROWS
    if row.source is not figures.HOST_CPU
    for way in (map(str, Direction) if row.per_direction else ("",))
}
"""Judged figure and its direction or "" -> the stored number it is."""
NUMBERS: Final[tuple[Number, ...]] = (*NUMBER_OF.values(), *CORES)
"""Stored numbers that judged figures are read or computed from."""
