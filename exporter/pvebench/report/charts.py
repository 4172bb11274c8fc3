"""Geometry of SVG charts: bars, curves, sparklines and line charts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.model.run import Unit
from pvebench.model.units import MIB
from pvebench.report.text import iso, show_clock, show_moment, show_value
from pvebench.store import Point

# --- bars of one workload, curves of a sweep ---

WIDTH: Final = 900
BAR, GAP, LABEL = 16, 6, 380
"""Height of a bar, gap between bars and width of the labels, in pixels."""
VALUE: Final = 110
CHART_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 80, 30, 20, 44


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, length in pixels, value as text, and whether its run failed."""

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
    width = WIDTH - LABEL - VALUE
    drawn = tuple(
        Bar(
            name,
            GAP + index * (BAR + GAP),
            round(width * value / largest, 1),
            show(value),
            doubtful,
        )
        for index, (name, value, doubtful) in enumerate(values)
    )
    return Bars(WIDTH, GAP + len(values) * (BAR + GAP), LABEL, BAR, drawn)


@dataclass(frozen=True, slots=True)
class Curve:
    """One configuration in a sweep: (IOPS, seconds, label of the point), by increasing IOPS."""

    name: str
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """A polyline, its dots with their labels, and the number of its color."""

    name: str
    color: int
    points: str
    dots: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class SweepChart:
    """Chart of latency against IOPS with two logarithmic axes."""

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
    """Return a chart of latency against IOPS with all lines."""
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
                f"{line.name}, {label}: {iops:,.0f} IOPS, {seconds * 1000:.3g} ms",
            )
            for iops, seconds, label in line.points
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


SPARK_WIDTH: Final = 80
SPARK_HEIGHT: Final = 20
LEAST_RANGE: Final = 0.1
"""Minimum height of a sparkline as a share of the level, so that noise does not look large."""

CHART_WIDTH: Final = 800
LINE_HEIGHT: Final = 300
LINE_LEFT, LINE_RIGHT, LINE_TOP, LINE_BOTTOM = 90, 20, 24, 40
"""Margins of the large chart in pixels, for the axis labels."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A sparkline: points of the polyline, its last point for the dot, and a label."""

    points: str
    last_x: float
    last_y: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """One direction in a large chart: `points` of the polyline and each dot separately."""

    name: str
    points: str
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A labeled position on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class EnvironmentMark:
    """A change of the environment: position, number in the chart, time, and changed facts."""

    at: float
    number: int
    iso: str
    moment: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A large chart."""

    lines: tuple[Line, ...]
    value_ticks: tuple[Tick, ...]
    time_ticks: tuple[Tick, ...]
    marks: tuple[EnvironmentMark, ...]
    label: str


def spark(points: Sequence[Point], unit: Unit) -> Spark | None:
    """Return the sparkline of one direction; None: fewer than two points."""
    if len(points) < 2:
        return None
    values = [point.value for point in points]
    low, high = min(values), max(values)
    span = max(high - low, LEAST_RANGE * abs(high)) or 1.0
    floor = (low + high - span) / 2
    step = (SPARK_WIDTH - 4) / (len(values) - 1)
    places = [
        (round(step * index, 1), round(2 + (SPARK_HEIGHT - 4) * (1 - (value - floor) / span), 1))
        for index, value in enumerate(values)
    ]
    first, lowest, highest, last = (show_value(v, unit) for v in (values[0], low, high, values[-1]))
    return Spark(
        points=_polyline(places),
        last_x=places[-1][0],
        last_y=places[-1][1],
        label=f"{len(values)} runs: first {first}, lowest {lowest}, highest {highest}, last {last}",
    )


def chart(
    points: Sequence[Point], unit: Unit, *, changes: Sequence[tuple[datetime, str]] = ()
) -> Chart | None:
    """Return the large chart of a case with an axis from zero; None: fewer than two runs.

    Args:
        points: oldest first, of all directions.
        changes: times of environment changes, and the changed facts.
    """
    if len({point.run for point in points}) < 2:
        return None
    start, end = points[0].finished, points[-1].finished
    seconds = (end - start).total_seconds() or 1.0
    values = axis_values(max(point.value for point in points), unit)
    top = values[-1]

    def x(moment: datetime) -> float:
        share = (moment - start).total_seconds() / seconds
        return round(LINE_LEFT + share * (CHART_WIDTH - LINE_LEFT - LINE_RIGHT), 1)

    def y(value: float) -> float:
        return round(
            LINE_HEIGHT - LINE_BOTTOM - value / top * (LINE_HEIGHT - LINE_TOP - LINE_BOTTOM), 1
        )

    by_direction: dict[str, list[Point]] = {}
    for point in points:
        by_direction.setdefault(str(point.direction), []).append(point)
    lines = []
    for name, own_points in sorted(by_direction.items()):
        dots = tuple((x(point.finished), y(point.value)) for point in own_points)
        lines.append(Line(name, _polyline(dots), dots))
    return Chart(
        lines=tuple(lines),
        value_ticks=tuple(Tick(y(value), show_value(value, unit)) for value in values),
        time_ticks=tuple(
            # Always with the date, because the range may span years.
            Tick(x(moment), f"{moment:%Y-%m-%d %H:%M}")
            for moment in (start, start + (end - start) / 2, end)
        ),
        marks=tuple(
            EnvironmentMark(x(moment), number, iso(moment), show_moment(moment), text)
            for number, (moment, text) in enumerate(changes, start=1)
        ),
        label=_chart_label(by_direction, unit, start, end),
    )


def axis_values(highest: float, unit: Unit) -> list[float]:
    """Return round values from zero to at least `highest`, three to six of them."""
    factor = MIB if unit in (Unit.BYTES_PER_SECOND, Unit.BYTES) else 1
    minimum = (highest / factor or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(minimum))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= minimum)
    steps = math.ceil(highest / factor / step - 1e-9) or 1
    return [number * step * factor for number in range(steps + 1)]


def _chart_label(
    by_direction: dict[str, list[Point]], unit: Unit, start: datetime, end: datetime
) -> str:
    parts = []
    for name, points in sorted(by_direction.items()):
        values = [point.value for point in points]
        first, low, high, last = (
            show_value(value, unit) for value in (values[0], min(values), max(values), values[-1])
        )
        parts.append(f"{name}: first {first}, lowest {low}, highest {high}, last {last}")
    span = f"{show_clock(start, end)} to {show_clock(end, end)}"
    return f"Trend from {span}; {'; '.join(parts)}"


def _polyline(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)
