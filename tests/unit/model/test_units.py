from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pvebench.fields import Listen, Ratio
from pvebench.model.units import (
    format_size,
    parse_duration,
    parse_size,
    show_bytes,
    show_latency,
    show_seconds,
    whole_number,
)
from pvebench.model.week import parse_weekly, parse_window
from pvebench_lab.references.delimited import Decimal, decimal_number


@given(st.integers(min_value=0, max_value=2**60))
def test_a_formatted_size_reads_back_as_the_same_bytes(count: int) -> None:
    assert parse_size(format_size(count)) == count


@pytest.mark.parametrize(
    ("text", "count"), [("4k", 4096), ("4K", 4096), ("256M", 2**28), ("1GiB", 2**30), (512, 512)]
)
def test_sizes_count_in_steps_of_1024_as_fio_and_proxmox_do(text: str | int, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["4kB", "1.5G", "-1", "", "k", "4 k k", True])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8s", 8), ("500ms", 0.5), ("5m", 300), ("1.5h", 5400), ("1d", 86400)]
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["8", 8, "s", "1w", "1h30m", ""])
def test_a_duration_without_a_known_unit_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_duration, "٣s"),
        (parse_size, "٦٤M"),
        (TypeAdapter(Ratio).validate_python, "٢٠%"),
        (TypeAdapter(Ratio).validate_python, "0_2"),
        (TypeAdapter(Listen).validate_python, "127.0.0.1:٩٦٢٠"),
        (TypeAdapter(Listen).validate_python, "127.0.0.1:²"),
        (parse_weekly, "Mon ٠٨:00"),
        (parse_window, "٢٢:00-06:00"),
        (lambda text: decimal_number(text, Decimal.POINT), "١٢٣"),
    ],
)
def test_numbers_of_other_scripts_are_none(read: Callable[[str], object], text: str) -> None:
    """Python takes them for numbers (`float`, `\\d`); fio and QEMU, whom they are for, do not."""
    with pytest.raises(ValueError, match=r"write|decimal") as refused:
        read(text)
    assert text in str(refused.value)


def test_people_read_rounded_values() -> None:
    assert show_bytes(3_400_000_000) == "3.2 GiB"
    assert (show_seconds(45), show_seconds(200), show_seconds(7500)) == (
        "45 s",
        "3 min 20 s",
        "2 h 05 min",
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ns"),
        (0.0009046, "905 µs"),
        (0.0009996, "1 ms"),
        (0.00632, "6.32 ms"),
        (0.9996, "1 s"),
        (1.79, "1.79 s"),
        (1234.0, "1,234 s"),
    ],
)
def test_a_latency_has_three_digits_and_no_exponent(seconds: float, text: str) -> None:
    assert show_latency(seconds) == text


@pytest.mark.parametrize("text", ["", "²", "٣", "1_0", " 1", "-1", "1\n", "9" * 19, b"1\xff"])
def test_what_is_no_number_of_ascii_digits_is_none(text: str | bytes) -> None:
    assert whole_number(text) is None


def test_a_number_of_digits_is_read_as_text_and_as_bytes() -> None:
    assert [whole_number(one) for one in ("007", b"42", "9" * 18)] == [7, 42, 10**18 - 1]
