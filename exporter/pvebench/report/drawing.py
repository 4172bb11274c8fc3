"""Charts as SVG geometry: bars of one workload, curves of a sweep. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 900
BAR, GAP, LABEL = 16, 6, 380
"""Pixels: height of a bar, space between two, and room for the names."""
VALUE: Final = 110
CHART_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 80, 30, 20, 44


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its length in pixels, the value in words, and whether to doubt it."""

    name: str
    y: int
    length: float
    text: str
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart."""

    width: int
    height: int
    label: int
    bar: int
    bars: tuple[Bar, ...]


def bars(values: Sequence[tuple[str, float, bool]], show: Callable[[float], str]) -> Bars:
    """Return a bar for each (name, value, doubtful); the longest is the largest value."""
    largest = max((value for _, value, _ in values), default=0.0) or 1.0
    room = WIDTH - LABEL - VALUE
    made = tuple(
        Bar(name, GAP + place * (BAR + GAP), round(room * value / largest, 1), show(value), doubt)
        for place, (name, value, doubt) in enumerate(values)
    )
    return Bars(WIDTH, GAP + len(values) * (BAR + GAP), LABEL, BAR, made)


@dataclass(frozen=True, slots=True)
class Curve:
    """One configuration in a sweep: (IOPS, seconds, what the point is), by rising IOPS."""

    name: str
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """A polyline, its dots with their words, and the number of its colour."""

    name: str
    colour: int
    points: str
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class SweepChart:
    """Latency over IOPS, both axes logarithmic."""

    width: int
    height: int
    left: int
    bottom: int
    right: int
    top: int
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    curves: tuple[DrawnCurve, ...]


def curves(lines: Sequence[Curve]) -> SweepChart:
    """Return latency against IOPS of every line in one chart."""
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    x_axis = _Axis.around(xs, LEFT, WIDTH - RIGHT)
    y_axis = _Axis.around(ys, CHART_HEIGHT - BOTTOM, TOP)
    drawn = []
    for number, line in enumerate(lines):
        dots = tuple(
            (
                x_axis.at(iops),
                y_axis.at(seconds),
                f"{line.name}, {words}: {iops:,.0f} IOPS, {seconds * 1000:.3g} ms",
            )
            for iops, seconds, words in line.points
        )
        points = " ".join(f"{x},{y}" for x, y, _ in dots)
        drawn.append(DrawnCurve(line.name, number % 8, points, dots))
    return SweepChart(
        WIDTH,
        CHART_HEIGHT,
        LEFT,
        CHART_HEIGHT - BOTTOM,
        WIDTH - RIGHT,
        TOP,
        tuple((x_axis.at(value), f"{value:,.0f}") for value in x_axis.decades),
        tuple((y_axis.at(value), f"{value * 1000:g} ms") for value in y_axis.decades),
        tuple(drawn),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis over whole decades, between two pixels."""

    low: int
    high: int
    start: float
    end: float

    @staticmethod
    def around(values: Sequence[float], start: float, end: float) -> _Axis:
        logs = [math.log10(value) for value in values if value > 0] or [0.0]
        low = math.floor(min(logs))
        return _Axis(low, max(low + 1, math.ceil(max(logs))), start, end)

    def at(self, value: float) -> float:
        share = (math.log10(max(value, 1e-12)) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]
