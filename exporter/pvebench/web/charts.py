"""Lines as SVG geometry: small ones for cells, a large one for a case. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pvebench.model.run import Unit
from pvebench.model.units import MIB
from pvebench.store import Point
from pvebench.web.texts import iso, show_clock, show_moment, show_value

SPARK_WIDTH: Final = 80
SPARK_HEIGHT: Final = 20
LEAST_RANGE: Final = 0.1
"""A sparkline's height stands for this share of the level at least: noise must not look wild."""

CHART_WIDTH: Final = 800
CHART_HEIGHT: Final = 300
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 24, 40
"""Margins of the large chart: room for what is written beside the axes."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A sparkline: points of the polyline, the last one again for its dot, and words for it."""

    points: str
    last_x: float
    last_y: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """One direction in a large chart: `points` of the polyline and each dot by itself."""

    name: str
    points: str
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class EnvironmentMark:
    """A change of the environment: where, its number in the picture, when, and what changed."""

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
    """Return the sparkline of one direction; None below two points."""
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
    """Return the large chart of a case, from zero upwards; None below two points.

    Args:
        points: oldest first, directions mixed.
        changes: when the environment changed, and what did.
    """
    if len({point.run for point in points}) < 2:
        return None
    start, end = points[0].finished, points[-1].finished
    seconds = (end - start).total_seconds() or 1.0
    values = axis_values(max(point.value for point in points), unit)
    top = values[-1]

    def x(moment: datetime) -> float:
        share = (moment - start).total_seconds() / seconds
        return round(LEFT + share * (CHART_WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(CHART_HEIGHT - BOTTOM - value / top * (CHART_HEIGHT - TOP - BOTTOM), 1)

    by_direction: dict[str, list[Point]] = {}
    for point in points:
        by_direction.setdefault(str(point.direction), []).append(point)
    lines = []
    for name, mine in sorted(by_direction.items()):
        dots = tuple((x(point.finished), y(point.value)) for point in mine)
        lines.append(Line(name, _polyline(dots), dots))
    return Chart(
        lines=tuple(lines),
        value_ticks=tuple(Tick(y(value), show_value(value, unit)) for value in values),
        time_ticks=tuple(
            # Always with the date: the two ends may be years apart.
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
    wanted = (highest / factor or 1.0) / 4
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= wanted)
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
