"""Lines: geometry and words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pvebench.drivers.clocks import START
from pvebench.model.run import Unit
from pvebench.model.units import MIB
from pvebench.model.workload import Direction
from pvebench.store.records import Point
from pvebench.web.views.charts import LINE_HEIGHT, SPARK_HEIGHT, WIDTH, axis_values, chart, spark


def points(values: list[float], direction: Direction = Direction.READ) -> list[Point]:
    return [
        Point(number, START + timedelta(hours=number), "e", direction, value)
        for number, value in enumerate(values)
    ]


def heights(line: str) -> list[float]:
    return [float(place.split(",")[1]) for place in line.split()]


def test_a_sparkline_goes_up_for_more_and_reports_its_ends() -> None:
    drawn = spark(points([100.0, 400.0, 200.0]), Unit.IOPS)
    assert drawn is not None
    assert drawn.label == "3 runs: first 100 IOPS, lowest 100 IOPS, highest 400 IOPS, last 200 IOPS"
    first, second, third = heights(drawn.points)
    assert second < third < first
    assert min(heights(drawn.points)) >= 0
    assert max(heights(drawn.points)) <= SPARK_HEIGHT


def test_small_noise_looks_small_in_a_sparkline() -> None:
    drawn = spark(points([1000.0, 1010.0, 1000.0]), Unit.IOPS)
    assert drawn is not None
    assert max(heights(drawn.points)) - min(heights(drawn.points)) < SPARK_HEIGHT / 5


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0, 5.0, 5.0]])
def test_a_level_line_stays_inside(values: list[float]) -> None:
    drawn = spark(points(values), Unit.IOPS)
    assert drawn is not None
    assert len(set(heights(drawn.points))) == 1
    assert 0 <= heights(drawn.points)[0] <= SPARK_HEIGHT
    assert chart(points(values), Unit.IOPS) is not None


def test_one_point_is_no_trend() -> None:
    assert spark(points([1.0]), Unit.IOPS) is None
    assert chart(points([1.0]), Unit.IOPS) is None


def test_a_chart_starts_at_zero_holds_all_points_and_marks_the_changes() -> None:
    both = sorted(
        points([100.0, 90.0]) + points([30.0, 40.0], Direction.WRITE), key=lambda one: one.run
    )
    change = START + timedelta(hours=1)
    drawn = chart(both, Unit.IOPS, changes=[(change, "kernel 1 → 2")])
    assert drawn is not None
    assert [line.name for line in drawn.lines] == ["read", "write"]
    places = [place for line in drawn.lines for place in line.dots]
    assert all(0 <= x <= WIDTH and 0 <= y <= LINE_HEIGHT for x, y in places)
    assert drawn.value_ticks[0].text == "0 IOPS"
    assert [(mark.number, mark.text) for mark in drawn.marks] == [(1, "kernel 1 → 2")]
    assert drawn.marks[0].at == drawn.lines[0].dots[1][0]
    assert "read: first 100 IOPS, lowest 90 IOPS, highest 100 IOPS, last 90 IOPS" in drawn.label


@pytest.mark.parametrize(
    ("highest", "unit", "expected"),
    [
        (26_292.0, Unit.IOPS, [0, 10_000, 20_000, 30_000]),
        (100.0, Unit.IOPS, [0, 25, 50, 75, 100]),
        (0.0, Unit.IOPS, [0, 0.25]),
        (95.9 * MIB, Unit.BYTES_PER_SECOND, [0, 25 * MIB, 50 * MIB, 75 * MIB, 100 * MIB]),
    ],
)
def test_axes_have_round_numbers(highest: float, unit: Unit, expected: list[float]) -> None:
    assert axis_values(highest, unit) == expected
