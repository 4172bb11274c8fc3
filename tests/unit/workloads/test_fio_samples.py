"""fio's IOPS log: whole intervals, stalls, and several jobs in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pvebench.model.workload import Direction
from pvebench.workloads.fio_samples import read_intervals

GOLDEN = Path(__file__).parents[2] / "golden" / "fio"
READ = (Direction.READ,)


def intervals(
    text: str, directions: tuple[Direction, ...] = READ, *, window: float = 2000, ran: float = 0
) -> tuple[dict[str, tuple[float, ...]], tuple[str, ...]]:
    logs = {"/run/pvebench/fio_bw.log": "1, 2, 0, 0, 0", "/run/pvebench/fio_iops.log": text}
    return read_intervals(logs, directions, width_ms=500, window_ms=window, ran_ms=ran or window)


def golden(name: str) -> str:
    return (GOLDEN / f"{name}_iops.log").read_text()


def steps(width: int, count: int) -> str:
    return "".join(f"{width * step}, {step}, 0, 0, 0\n" for step in range(1, count + 1))


@pytest.mark.parametrize(
    ("log", "options", "found"),
    [
        pytest.param(golden("randread"), {}, (109513, 105064, 105078, 107120), id="one job"),
        # Jobs follow each other in the log, and one of them did not log the last interval.
        (golden("grouped"), {}, (17993 + 17965 + 18008 + 18046, 73138, 69650)),
        (golden("ungrouped"), {}, (19006 + 18947 + 19102 + 18917, 80800, 79292)),
        # An interval without I/O has no line, except for the last of the window.
        (golden("stalls"), {"window": 4000, "ran": 4802}, (2, 0, 2, 0, 2, 0, 0, 2)),
        ("500, 8, 0, 0, 0\n", {}, (8, 0, 0)),
        ("2000, 8, 0, 0, 0\n", {}, (0, 0, 0, 8)),
        pytest.param(steps(620, 3), {}, (1, 2, 3), id="the logger wakes late"),
        pytest.param(steps(500, 7), {"ran": 3600}, (1, 2, 3, 4), id="the device ends late"),
    ],
)
def test_each_whole_interval_of_the_window_counts_once(
    log: str, options: dict[str, float], found: tuple[float, ...]
) -> None:
    assert intervals(log, **options) == ({"read": found}, ())


def test_mix_has_intervals_for_both_directions_and_only_the_asked_ones_are_returned() -> None:
    both = (Direction.READ, Direction.WRITE)
    assert intervals(golden("mixed"), both)[0] == {
        "read": (28775, 31596, 29593, 28178),
        "write": (9877, 10284, 9821, 9300),
    }
    assert list(intervals(golden("mixed"))[0]) == ["read"]


def test_log_that_goes_beyond_fios_own_window_is_not_used() -> None:
    found, notes = intervals("500, 8, 0, 0, 0\n9000, 8, 0, 0, 0\n")
    assert found == {}
    assert notes == (
        "fio's IOPS log ends at 9000 ms, beyond its window of 2000 ms; intervals ignored",
    )


def test_unreadable_lines_are_counted_and_noted() -> None:
    found, notes = intervals(golden("randread") + "2500, 1\nnonsense\n")
    assert found == {"read": (109513, 105064, 105078, 107120)}
    assert notes == ("2 lines of fio's IOPS log are unreadable",)


@pytest.mark.parametrize("logs", [{}, {"fio_iops.log": ""}, {"fio_bw.log": "500, 8, 0, 0, 0"}])
def test_missing_log_is_noted(logs: dict[str, str]) -> None:
    found, notes = read_intervals(logs, READ, width_ms=500, window_ms=2000, ran_ms=2000)
    assert found == {}
    assert notes == ("fio wrote no IOPS log; no intervals available",)
