"""Lines: geometry and words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pvebench.drivers.clocks import START
from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB
from pvebench.model.workload import Direction
from pvebench.report.value_text import sample_rows, show_age, show_spread, show_value
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


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (9072.4, Unit.IOPS, "9,072 IOPS"),
        (1_234_567.0, Unit.IOPS, "1.23 M IOPS"),
        (35.5 * MIB, Unit.BYTES_PER_SECOND, "35.5 MiB/s"),
        (0.00659, Unit.SECONDS, "6.59 ms"),
        (0.000_012_3, Unit.SECONDS, "12.3 µs"),
        (8.0, Unit.SECONDS, "8 s"),
        (0.0211, Unit.RATIO, "2.11%"),
        (34.684, Unit.RATIO, "3,468%"),
        (0.5, Unit.CORES, "0.5 cores"),
        (4096.0, Unit.BYTES, "4.0 KiB"),
        (7900.0, Unit.OPERATIONS, "7,900 ops"),
    ],
)
def test_numbers_carry_units_that_people_read(value: float, unit: Unit, text: str) -> None:
    assert show_value(value, unit) == text


def test_values_of_a_run_have_names_and_numbers_for_people() -> None:
    write = Direction.WRITE
    samples = [
        Sample("device_share", write, 34.684, Unit.RATIO),
        Sample("device_share", Direction.READ, 0.93, Unit.RATIO),
        Sample("iops_slope", write, -3.39, Unit.RATIO),
        Sample("operation_lost", None, 344.2, Unit.OPERATIONS),
        Sample("operation_recovery", None, 0.0, Unit.SECONDS),
        Sample("fault_recovery", None, 2.0, Unit.SECONDS),
    ]
    assert list(sample_rows(samples)) == [
        ("device share", "read", "93%"),
        ("device share", "write", "34.7 bytes per byte written"),
        ("fault recovery", "", "2 s"),
        ("IOPS change over the run, fitted", "write", "-339%"),
        ("I/O lost to the operation", "", "344 ops"),
        ("operation recovery", "", "no dip below 50%"),
    ]


def test_every_unit_can_be_shown() -> None:
    assert all(show_value(1.0, unit) for unit in Unit)


def test_ages_and_spreads_are_short() -> None:
    assert [show_age(seconds) for seconds in (-1, 59, 60, 3600, 47 * 3600, 48 * 3600)] == [
        "0 s ago",
        "59 s ago",
        "1 min ago",
        "1 h ago",
        "47 h ago",
        "2 days ago",
    ]
    assert [show_spread(ratio) for ratio in (0.0, 0.031, 0.123)] == ["±0.0%", "±3.1%", "±12%"]
