"""What is judged: which numbers of a run, what their change means, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

FigureKind = Literal["speed", "stall", "cost", "operation", "accounting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A kind of number that is judged.

    Attributes:
        name: as in labels.
        kind: what its change means.
        more_is_better: whether a larger value is the better one.
        noun, worse, better: words of the verdict.
        least_effect: smallest change (log) worth a verdict.
        floor: smallest value that is told from zero, in the metric's unit.
    """

    name: str
    kind: FigureKind
    more_is_better: bool
    noun: str
    worse: str
    better: str
    least_effect: float
    floor: float


def _figure(
    name: str, kind: FigureKind, noun: str, words: tuple[str, str], least: float, floor: float
) -> Figure:
    return Figure(
        name=name,
        kind=kind,
        more_is_better=words[0] in {"slower", "smaller"},
        noun=noun,
        worse=words[0],
        better=words[1],
        least_effect=least,
        floor=floor,
    )


_HIGHER: Final = ("higher", "lower")
_LONGER: Final = ("longer", "shorter")
FIGURES: Final[Mapping[str, Figure]] = {
    figure.name: figure
    for figure in (
        _figure("throughput", "speed", "throughput", ("slower", "faster"), 0.015, 1e-3),
        _figure("longest_stall", "stall", "longest stall", _LONGER, 0.4, 1e-3),
        _figure("cpu_cost", "cost", "host CPU per I/O", _HIGHER, 0.03, 1e-9),
        _figure("idle_cost", "cost", "host CPU of the idle VM", _HIGHER, 0.05, 1e-5),
        _figure("operation_seconds", "operation", "duration", _LONGER, 0.05, 1e-4),
        _figure("boot_time", "operation", "boot time", _LONGER, 0.05, 1e-3),
        _figure("trimmed_bytes", "operation", "space given back", ("smaller", "larger"), 0.05, 1.0),
        _figure("io_pressure", "accounting", "reported I/O pressure", _HIGHER, 0.2, 1e-4),
        _figure("latency_p99", "speed", "p99 latency", _HIGHER, 0.05, 1e-7),
    )
}
"""In the order in which they are told: the first that moved is what a change is called by."""
