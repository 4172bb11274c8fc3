"""Values, units and ages as text."""

from __future__ import annotations

import pytest

from pvebench.model.run import Sample, Unit
from pvebench.model.units import MIB
from pvebench.model.workload import Direction
from pvebench.report.value_text import sample_rows, show_age, show_spread, show_value


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
